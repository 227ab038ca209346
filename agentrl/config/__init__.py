"""One file is one whole run: typed, complete, closed."""
