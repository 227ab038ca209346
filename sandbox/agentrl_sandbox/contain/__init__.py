"""Processes of a container without an engine: standard library only, run with `-I -S`."""
