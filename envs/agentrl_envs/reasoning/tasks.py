"""Step 1 for these families: tasks of a split, endless where the family is, each problem once."""

import hashlib
import math
from collections.abc import Iterator, Mapping
from itertools import islice

from agentrl.errors import ConfigError
from agentrl.runtime.seeds import derive
from agentrl.task import Split, Task, split_of
from agentrl_envs.families import interleave
from agentrl_envs.reasoning.family import Entry, ReasoningFamily
from agentrl_envs.reasoning.record import from_json, to_json

SEED_RANGES: Mapping[Split, range] = {
    "train": range(2**31),
    "heldout": range(2**31, 2**32),
}
"""Ranges of the seeds of problems, by split; one family takes no seed above 32 bits."""
_LONGEST_STREAM = 2**24


def tasks_of(
    families: Mapping[str, ReasoningFamily],
    split: Split,
    seed: int,
    *,
    size: int | None = None,
    heldout_fraction: float = 0.1,
) -> Iterator[Task]:
    """Yield a split's tasks, one family after the other in turn; a pure function of the arguments.

    A family whose problems are used up drops out. Raises `ConfigError` if a family has no problem
    for the split at all.
    """
    streams = [
        _stream_tasks(family, split, seed, heldout_fraction=heldout_fraction)
        for family in families.values()
    ]
    return islice(interleave(streams), size)


def entry_of(task: Task) -> Entry:
    """Return reasoning-gym's entry of a task, built afresh."""
    return {"question": task.prompt, "answer": task.answer, **from_json(task.data["entry"])}


def _stream_tasks(
    family: ReasoningFamily, split: Split, seed: int, *, heldout_fraction: float
) -> Iterator[Task]:
    """Yield one family's tasks. The text of a problem decides its split, beside its seed."""
    share = heldout_fraction if split == "heldout" else 1 - heldout_fraction
    patience = math.ceil(100 / share)
    digests = set[bytes]()
    since_new = 0
    seeds = SEED_RANGES[split]
    offset = derive("reasoning", family.name, split, seed) % (len(seeds) - _LONGEST_STREAM)
    for problem_seed, entry in family.entries(seeds.start + offset):
        question = str(entry["question"])
        digest = hashlib.blake2b(question.encode(), digest_size=8).digest()
        if digest not in digests and split_of(question, heldout_fraction=heldout_fraction) == split:
            digests.add(digest)
            since_new = 0
            yield _build_task(family.name, split, problem_seed, entry)
        elif (since_new := since_new + 1) >= patience:
            break
    if not digests:
        raise ConfigError(
            f"task family {family.name!r} has too few distinct problems with these parameters: "
            f"none of {patience} falls into the split {split!r}; widen its parameters, "
            f"or change heldout_fraction={heldout_fraction:g}"
        )


def _build_task(family: str, split: Split, seed: int, entry: Entry) -> Task:
    rest = {key: value for key, value in entry.items() if key not in ("question", "answer")}
    return Task(
        prompt=str(entry["question"]),
        answer=entry["answer"],
        split=split,
        seed=seed,
        data={"family": family, "entry": to_json(rest)},
        tags=(family,),
    )
