"""Allocation and curation: which tasks, how many trajectories of each, and which of them train."""
