"""Programs to write: the agent leaves `solution.py` behind, and it is graded apart."""

from agentrl_envs.programs.env import ProgramsEnv, grade

__all__ = ["ProgramsEnv", "grade"]
