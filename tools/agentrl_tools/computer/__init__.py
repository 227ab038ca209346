"""The tool of agents that use a computer by its screen, mouse and keyboard."""

from agentrl_tools.computer.computer import Computer, Machine
from agentrl_tools.computer.grid import Coordinates, Grid

__all__ = ["Computer", "Coordinates", "Grid", "Machine"]
