"""Trajectories that others recorded, as recordings; `recorded.convert` is the command."""
