"""Building blocks for authors of environments, tools, judges and human players."""
