"""The command line, one file per command. Commands import what they need when they run."""

from agentrl.cli.app import main

__all__ = ["main"]
