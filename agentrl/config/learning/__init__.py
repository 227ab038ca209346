"""Keys of the learning half, a file per slot: a class per method, its knobs with their defaults."""
