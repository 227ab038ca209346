"""Keys of the training section, one file per slot: a class per method, with its keys and their
defaults."""
