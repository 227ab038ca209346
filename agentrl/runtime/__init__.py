"""Processes, files, threads and services of the machine that a run is on."""
