"""Everything a session offers, as one source of tools."""

from agentrl_tools.files import Files
from agentrl_tools.python import Python
from agentrl_tools.shell import Shell


class Workspace(Files, Shell, Python):
    """A Python interpreter, a shell and file tools on one session.

    For other selections combine the parts in a class of your own: `class Mine(ReadFile, Shell)`.
    """
