"""Models that are there without a hub: in files, and in packages of the Python package index."""
