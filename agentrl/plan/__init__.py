"""What a run needs and how long it takes, from its config alone: no weights, no device."""
