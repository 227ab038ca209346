"""The tasks of MiniWoB++: families of small pages, a problem per seed."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Final

from agentrl.env import Action
from agentrl.errors import ConfigError
from agentrl.message import Message
from agentrl.runtime.seeds import derive
from agentrl.task import Split, Task
from agentrl_envs.families import MINIWOB
from agentrl_envs.web.miniwob.players import PLAYERS, scene_of
from agentrl_envs.web.miniwob.world import MiniWobSite

SEED_RANGES: Final[Mapping[Split, range]] = {
    "train": range(2**30),
    "heldout": range(2**30, 2**31),
}
"""Ranges of the seeds of problems, by split."""
_LONGEST_STREAM = 2**24


class MiniWobPack:
    """Problems of some families, in turn.

    The splits have different seeds; families in `heldout_families` are in the held-out split alone.
    """

    clock: Final = "steps"
    """Unless the environment says otherwise: no page goes on while an agent thinks."""

    def __init__(
        self,
        *,
        families: str | Sequence[str],
        heldout_families: str | Sequence[str] = (),
        size: int | None = None,
        partial_credit: bool = False,
    ) -> None:
        """Choose problems.

        Args:
            families: A family, several, or `all`.
            heldout_families: Families of which only the held-out split has problems.
            size: At most so many tasks per split; None sets no end.
            partial_credit: Pay what the page pays between 0 and 1; otherwise only its full reward
                counts, as 1.
        """
        heldout = _check_families(heldout_families) if heldout_families else ()
        both = _check_families(families)
        if size is not None and size < 1:
            raise ConfigError(
                f"size must be at least 1 task per split, got {size}; omit it to use the default"
            )
        train = tuple(family for family in both if family not in heldout)
        if not train:
            raise ConfigError(
                f"all of families={list(both)} are in heldout_families, which leaves none to train "
                "on; remove one from heldout_families"
            )
        self._families: Mapping[Split, Sequence[str]] = {
            "train": train,
            "heldout": tuple(dict.fromkeys((*both, *heldout))),
        }
        self._size = size
        self._partial_credit = partial_credit

    @property
    def has_gold(self) -> bool:
        """Return whether every family that is trained on has a player."""
        return all(family in PLAYERS for family in self._families["train"])

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        return islice(self._stream_tasks(split, seed), self._size)

    def _stream_tasks(self, split: Split, seed: int) -> Iterator[Task]:
        seeds = SEED_RANGES[split]
        families = self._families[split]
        last = len(seeds) - _LONGEST_STREAM
        starts = [derive("miniwob", family, split, seed) % last for family in families]
        for number in range(_LONGEST_STREAM):
            for family, start in zip(families, starts, strict=True):
                yield task_of(family, seeds[start + number], split=split)

    def world(self, task: Task) -> MiniWobSite:
        return MiniWobSite(
            task.data["family"], task.data["seed"], partial_credit=self._partial_credit
        )

    def gold(self, task: Task, seen: Sequence[Message]) -> Action:
        """Return the next action of the family's player; `KeyError` where there is none."""
        player = PLAYERS[task.data["family"]]
        return player(scene_of(seen))


def task_of(family: str, seed: int, *, split: Split = "train") -> Task:
    """Return a problem by name: a family, and the seed of its page."""
    return Task(
        prompt=f"MiniWoB++ {family}, seed {seed}",
        id=f"{family}-{seed}",
        split=split,
        seed=seed,
        data={"family": family, "seed": seed},
        tags=(family,),
    )


def _check_families(families: str | Sequence[str]) -> tuple[str, ...]:
    if families == "all":
        return MINIWOB
    names = [families] if isinstance(families, str) else list(families)
    if not names:
        raise ConfigError(f"families is empty; name some of {', '.join(MINIWOB)}, or all")
    for name in names:
        if name not in MINIWOB:
            near = get_close_matches(str(name), MINIWOB, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"MiniWoB++ has no family {name!r}.{hint} The families are {', '.join(MINIWOB)}"
            )
    return tuple(dict.fromkeys(names))
