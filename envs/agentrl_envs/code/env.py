"""The same problems with a Python interpreter at hand, and a player that shows how to use it."""

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.authoring.toolset import ToolSet
from agentrl.env import Action, Info, Observation, Step, call, say
from agentrl.message import Message
from agentrl.task import Task
from agentrl_envs.code.recipes import code_for
from agentrl_envs.reasoning.env import VerifiedEnv, format_answer, task_stream
from agentrl_envs.reasoning.mixture import Difficulty, Families, mixture, names_of
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
        heldout_families: Families = (),
        partial_credit: bool = True,
        system: str = SYSTEM,
        tool_timeout_s: float = 30.0,
        milestones: bool = False,
    ) -> None:
        """Choose problems as `ReasoningEnv` does.

        Args:
            families: As there.
            difficulty: As there.
            size: As there.
            heldout_fraction: As there.
            heldout_families: As there.
            partial_credit: As there.
            system: The system message; empty for none.
            tool_timeout_s: Deadline of one call of the tool.
            milestones: Report two milestones: the interpreter has shown the right answer, and it
                was given. The first is settled by the turn that shows it, or by the last call.
        """
        self.milestones = 2 if milestones else 0
        self._shown = self._called = False
        problem_families = mixture(families, difficulty, heldout_families)
        super().__init__(
            problem_families,
            partial_credit=partial_credit,
            tasks=task_stream(
                problem_families,
                size=size,
                heldout_fraction=heldout_fraction,
                heldout_families=names_of(heldout_families),
            ),
            tools=(Python,),
            system=system,
            gold=play,
            tool_timeout_s=tool_timeout_s,
        )

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        self._shown = self._called = False
        return await super().reset(seed=seed, options=options)

    async def _answer_calls(self, toolbox: ToolSet, action: Action) -> Step:
        step = await super()._answer_calls(toolbox, action)
        if not self.milestones or self._shown:
            return step
        task, _ = self._require_running()
        self._called = True
        for message in step[0].messages:
            self._shown = self._shown or await self._judge(task, message.text.strip()) >= 1
        return (
            *step[:4],
            {**step[4], "reward_components": self._milestone(1, is_reached=self._shown)},
        )

    async def _score(self, task: Task, toolbox: ToolSet) -> tuple[float, Info]:
        reward, info = await super()._score(task, toolbox)
        if not self.milestones:
            return reward, info
        # Without a call the answer settles both.
        components = {} if self._called else self._milestone(1, is_reached=False)
        components |= self._milestone(2, is_reached=reward >= 1)
        return reward, {**info, "reward_components": components}

    def _milestone(self, number: int, *, is_reached: bool) -> dict[str, float]:
        return {
            f"milestone/{number}": float(is_reached),
            f"milestone_turn/{number}": float(self._turns - 1),
        }


def play(task: Task, seen: Sequence[Message]) -> Action:
    """Write a program for the question, then answer with what it printed.

    Raises `ConfigError` for a family without a scripted player.
    """
    if seen[-1].role == "tool":
        return say(format_answer(seen[-1].text.strip(), seen))
    return call("python", code=code_for(task.data["family"], str(task.prompt)))
