"""The command line, one file per command. Commands import what they need when they run.

This module imports nothing, so that Ctrl-C while commands are imported is caught. While Python
imports `agentrl` itself, before this module, it is not.
"""

import atexit
import os
import sys
from gc import freeze, get_threshold, set_threshold  # a command is called gc

_NEW_OBJECTS = 50_000
"""Objects made between two collections. With Python's 700, importing torch and transformers takes
an eighth longer."""


def main() -> None:
    """Run a command; exits 130 after Ctrl-C, also while it is imported."""
    try:
        set_threshold(_NEW_OBJECTS, *get_threshold()[1:])
        # Python's end looks for garbage several times: with torch, half a second for nothing.
        atexit.register(freeze)
        from agentrl.cli import completion, console

        console.keep_streams_open()
        if completion.answer_shell(os.environ):
            return
        from agentrl.cli import app

        app.main()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        from agentrl.cli import stray_threads

        stray_threads.end_soon(sys.exception())
