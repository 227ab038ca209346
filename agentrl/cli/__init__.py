"""The command line, one file per command. Commands import what they need when they run.

Nothing is imported here: Ctrl-C while the rest is imported has to find somebody who catches it.
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
