"""One question, one answer: reasoning-gym's families as a single-turn environment."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Self

from agentrl.authoring.tool_env import ToolEnv
from agentrl.env import Action, say
from agentrl.errors import ConfigError
from agentrl.message import Message
from agentrl.rewards import drop_thoughts, last_text, tagged_answer
from agentrl.task import Split, Task
from agentrl_envs.reasoning.family import ReasoningFamily
from agentrl_envs.reasoning.mixture import Difficulty, Families, mixture, names_of
from agentrl_envs.reasoning.tasks import entry_of, tasks_of
from agentrl_envs.reasoning.verifiers import VerifierPool

_LABELLED = re.compile(r"\banswer:", re.IGNORECASE)
SYSTEM = (
    "Solve the problem. You may think first. Then give the final answer, in exactly the form the "
    "problem asks for, between <answer> and </answer>."
)


class VerifiedEnv(ToolEnv):
    """Problems of families, scored by the families' own verifiers.

    The verifiers run in processes of their own. A run's environments share those; an environment
    outside of a run has its own until it is closed.
    """

    def __init__(
        self, families: Mapping[str, ReasoningFamily], *, partial_credit: bool, **settings: Any
    ) -> None:
        """Score with these families; `settings` are those of `ToolEnv`."""
        self._families = families
        self._partial_credit = partial_credit
        self._verifiers: VerifierPool | None = None
        super().__init__(reward=self._verdict, answer=find_answer, **settings)

    async def fork(self) -> Self:
        other = await super().fork()
        other._verifiers, other._reward = None, other._verdict
        return other

    async def close(self) -> None:
        verifiers, self._verifiers = self._verifiers, None
        try:
            await super().close()
        finally:
            if verifiers is not None:
                await verifiers.close()

    async def _verdict(self, task: Task, messages: Sequence[Message]) -> float:
        score = await self._judge(task, final_answer(last_text(messages)))
        return score if self._partial_credit else float(score >= 1)

    async def _judge(self, task: Task, answer: str) -> float:
        family = self._families.get(task.data["family"])
        if family is None:
            raise ConfigError(
                f"task {task.id!r} belongs to the family {task.data['family']!r}, but this "
                f"environment has {', '.join(self._families)}; create it with the task's own "
                "families"
            )
        score = family.decide(answer, entry_of(task))
        if score is None:
            score = await (await self._find_pool()).judge(family, task, answer)
        return score

    async def _find_pool(self) -> VerifierPool:
        pool = await VerifierPool.find_shared()
        if pool is None:
            pool = self._verifiers = self._verifiers or VerifierPool()
        return pool


class ReasoningEnv(VerifiedEnv):
    """Asks one problem and scores the reply with the family's own verifier.

    The answer is what stands between the last `<answer>` tags, else what follows the last
    `Answer:`, else the whole reply.
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
    ) -> None:
        """Choose problems.

        Args:
            families: A name, several names, or reasoning-gym's parameters by name.
            difficulty: A level of reasoning-gym's curriculum, for all families or by name; what
                `families` sets wins over it.
            size: At most so many tasks per split; None gives all there are.
            heldout_fraction: Share of all problems kept for the held-out split.
            heldout_families: More families, as `families`, with problems in the held-out split
                alone.
            partial_credit: Pay what the verifier says; False pays 1 for a perfect answer or 0.
            system: The system message; empty for none.
        """
        families_by_name = mixture(families, difficulty, heldout_families)
        super().__init__(
            families_by_name,
            partial_credit=partial_credit,
            tasks=task_stream(
                families_by_name,
                size=size,
                heldout_fraction=heldout_fraction,
                heldout_families=names_of(heldout_families),
            ),
            system=system,
            gold=play,
        )


def play(task: Task, seen: Sequence[Message]) -> Action:
    """Give the reference answer."""
    return say(format_answer(require_reference(task), seen))


def task_stream(
    families: Mapping[str, ReasoningFamily],
    *,
    size: int | None,
    heldout_fraction: float,
    heldout_families: Collection[str] = (),
) -> Callable[[Split, int], Iterator[Task]]:
    """Return the task source of these families; raise `ConfigError` for what leaves a split empty.

    Families that `heldout_families` names have no training tasks. The function is quick: problems
    are made as they are asked for.
    """
    if size is not None and size < 1:
        raise ConfigError(
            f"size must be at least 1 task per split, got {size}; omit it to use all tasks"
        )
    if not 0 < heldout_fraction < 1:
        raise ConfigError(
            f"heldout_fraction must be between 0 and 1, got {heldout_fraction}; 0.1 is the default"
        )

    def tasks(split: Split, seed: int) -> Iterator[Task]:
        of_split = {
            name: family
            for name, family in families.items()
            if split == "heldout" or name not in heldout_families
        }
        return tasks_of(of_split, split, seed, size=size, heldout_fraction=heldout_fraction)

    return tasks


def require_reference(task: Task) -> str:
    """Return the reference answer; raise `ConfigError` for a family that gives none."""
    if task.answer is None:
        raise ConfigError(
            f"reasoning-gym gives no reference answer for the family {task.data['family']!r} (task "
            f"{task.id!r}); its problems can be scored, but no gold player can solve them"
        )
    return str(task.answer)


def format_answer(answer: str, seen: Sequence[Message]) -> str:
    """Return an answer in the form the system message asks for: tagged if it names the tags."""
    uses_tags = any("<answer>" in message.text for message in seen if message.role == "system")
    return f"<answer>{answer}</answer>" if uses_tags else answer


def find_answer(task: Task, messages: Sequence[Message]) -> str | None:
    """Return the final answer with single spaces, to be compared with others; None for none."""
    return " ".join(final_answer(last_text(messages)).split()) or None


def final_answer(text: str) -> str:
    """Return the answer a text gives, stripped of white space.

    The last `<answer>...</answer>` counts, else what follows the last `Answer:`, else all of it;
    thoughts never do.
    """
    text = drop_thoughts(text)
    tagged = tagged_answer(text)
    return (_LABELLED.split(text)[-1] if tagged is None else tagged).strip()
