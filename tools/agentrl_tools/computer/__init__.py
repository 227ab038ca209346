"""The tool of agents that use a computer by its screen, mouse and keyboard."""

from agentrl_tools.computer.computer import Computer, ComputerMachine
from agentrl_tools.computer.grid import Coordinates, PointGrid

__all__ = ["Computer", "ComputerMachine", "Coordinates", "PointGrid"]
