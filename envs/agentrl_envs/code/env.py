"""The same problems with a Python interpreter at hand, and a player that shows how to use it."""

from collections.abc import Sequence

from agentrl.env import Action, call, say
from agentrl.message import Message
from agentrl.task import Task
from agentrl_envs.code.recipes import code_for
from agentrl_envs.reasoning.env import VerifiedEnv, format_answer, task_stream
from agentrl_envs.reasoning.mixture import Difficulty, Families, mixture
from agentrl_tools.python import Python

SYSTEM = (
    "Solve the problem. You can run Python with the tool `python`: it echoes the last expression, "
    "and names live on from call to call. When you know the final answer, give it in exactly the "
    "form the problem asks for, between <answer> and </answer>."
)


class CodeEnv(VerifiedEnv):
    """A problem and a stateful Python interpreter in a sandbox; the last message is the answer.

    Scored as `ReasoningEnv` is. Forks copy the interpreter with all its names.
    """

    def __init__(
        self,
        *,
        families: Families,
        difficulty: Difficulty = None,
        size: int | None = None,
        heldout_fraction: float = 0.1,
        partial_credit: bool = True,
        system: str = SYSTEM,
        tool_timeout_s: float = 30.0,
    ) -> None:
        """Choose problems as `ReasoningEnv` does; `tool_timeout_s` bounds one call of the tool."""
        problem_families = mixture(families, difficulty)
        super().__init__(
            problem_families,
            partial_credit=partial_credit,
            tasks=task_stream(problem_families, size=size, heldout_fraction=heldout_fraction),
            tools=(Python,),
            system=system,
            gold=play,
            tool_timeout_s=tool_timeout_s,
        )


def play(task: Task, seen: Sequence[Message]) -> Action:
    """Write a program for the question, then answer with what it printed.

    Raises `ConfigError` for a family without a scripted player.
    """
    if seen[-1].role == "tool":
        return say(format_answer(seen[-1].text.strip(), seen))
    return call("python", code=code_for(task.data["family"], str(task.prompt)))
