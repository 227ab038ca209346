"""Optional parts of a run, each of one config section."""
