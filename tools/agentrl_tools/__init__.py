"""Tools that agents may call. Each module holds one; import what you need from it."""
