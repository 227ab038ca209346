"""The command line, one file per command. Commands import what they need when they run.

This module imports nothing, so that Ctrl-C while commands are imported is caught. While Python
imports `agentrl` itself, before this module, it is not.
"""

import sys


def main() -> None:
    """Run a command; exits 130 after Ctrl-C, also while it is imported."""
    try:
        from agentrl.cli import app, console

        console.keep_streams_open()
        app.main()
    except KeyboardInterrupt:
        sys.exit(130)
