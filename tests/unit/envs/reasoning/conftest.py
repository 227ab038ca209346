"""Two families import matplotlib, which starts a process to list the machine's fonts where no
earlier import has: here, for a test may not."""

from importlib import import_module

import_module("matplotlib.font_manager")
