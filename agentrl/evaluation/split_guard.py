"""Step 1 of the flow: whether held-out tasks are among those that train, as they are or nearly so.

A task's **own words** are what is compared: runs of words that many tasks have in common are the
wording of a family ("State the final answer to the following arithmetic problem"), and without them
two sums are as different as their numbers. Two tasks that give different answers are different
problems, however alike they read.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from agentrl.errors import ConfigError
from agentrl.task import Task

SHINGLE_WORDS = 3
"""Length of the runs of words that are compared."""

COMMON_FRACTION = 0.02
"""A run of words in more of the tasks than this is wording that they share."""

COMMON_AT_LEAST = 4
"""However few tasks there are."""

LEAST_SHINGLES = 5
"""A task with fewer words of its own is only compared as a whole."""

ROUNDING = 1e-9
"""Error of a product of floats, which must not ask for one shingle more."""

LISTED = 3

_WORD = re.compile(r"\w+|[^\w\s]")
_STOPS = frozenset(".,;:!?'\"`")
"""Punctuation that does not change a sentence, unlike a minus."""

Shingles = frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPair:
    """A held-out task, and the train task that is most like it."""

    heldout: Task
    train: Task
    similarity: float
    """Jaccard's, of their own words; 1 for tasks that say the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitOverlap:
    """Overlap of two splits, as far as they were looked at."""

    train: int
    """Train tasks that were looked at."""
    heldout: int
    exact: tuple[TaskPair, ...]
    """Held-out tasks that are train tasks."""
    near: tuple[TaskPair, ...]
    """Held-out tasks that are nearly one, the most alike first."""

    @property
    def near_fraction(self) -> float:
        """Return the share of held-out tasks that have a near-duplicate."""
        return len(self.near) / self.heldout if self.heldout else 0.0


def find_overlap(
    train: Sequence[Task], heldout: Sequence[Task], *, similarity: float = 0.8
) -> SplitOverlap:
    """Compare two samples of tasks; `similarity` and more makes a near-duplicate.

    Exact overlap is of `Task.fingerprint`, text and answer. Near-duplicates say the same but for
    case, space and punctuation, or their own words are as similar as that, and none gives another
    answer.
    """
    train_tasks = {task.fingerprint: task for task in train}
    exact = [
        TaskPair(heldout=task, train=train_tasks[task.fingerprint], similarity=1.0)
        for task in heldout
        if task.fingerprint in train_tasks
    ]
    same = {pair.heldout.fingerprint for pair in exact}
    rest = [task for task in heldout if task.fingerprint not in same]
    near = sorted(_match(train, rest, similarity), key=lambda pair: -pair.similarity)
    return SplitOverlap(
        train=len(train), heldout=len(heldout), exact=tuple(exact), near=tuple(near)
    )


def check_overlap(found: SplitOverlap, *, max_near_fraction: float) -> None:
    """Raise `ConfigError`, showing pairs, for exact overlap and for too many near-duplicates."""
    if found.exact:
        raise ConfigError(
            f"{len(found.exact)} of {found.heldout} held-out tasks are also train tasks: "
            f"{_format_pairs(found.exact)}. Scores on them measure memorisation; keep the splits "
            "of the environment disjoint, or set split_guard.allow: true"
        )
    if found.near_fraction > max_near_fraction:
        raise ConfigError(
            f"{len(found.near)} of {found.heldout} held-out tasks ({found.near_fraction:.1%}) are "
            "near-duplicates of train tasks, but split_guard.max_near_fraction is "
            f"{max_near_fraction:g}: {_format_pairs(found.near)}. Inspect them with agentrl "
            "check-splits; keep the splits disjoint, or set split_guard.allow: true"
        )


def _match(train: Sequence[Task], heldout: Sequence[Task], similarity: float) -> Iterable[TaskPair]:
    words = {id(task): _words(task) for task in (*train, *heldout)}
    answers = {id(task): _answer(task) for task in (*train, *heldout)}
    whole: dict[str, list[Task]] = defaultdict(list)
    for task in train:
        whole[_plain(words[id(task)])].append(task)
    shingles = _drop_common({key: _shingles(task_words) for key, task_words in words.items()})
    alike = compare_shingles(
        [shingles[id(t)] for t in heldout], [shingles[id(t)] for t in train], similarity
    )
    for at, task in enumerate(heldout):
        pairs = [(1.0, other) for other in whole[_plain(words[id(task)])]]
        pairs += [(ratio, train[other]) for other, ratio in alike.get(at, ())]
        own = answers[id(task)]
        fit = [pair for pair in pairs if own is None or answers[id(pair[1])] in (None, own)]
        if fit:
            ratio, other = max(fit, key=lambda pair: pair[0])
            yield TaskPair(heldout=task, train=other, similarity=ratio)


def _words(task: Task) -> list[str]:
    """Return the words of a task, without those of the system message, which all share."""
    texts = [message.text for message in task.messages if message.role != "system"]
    return _WORD.findall(" ".join(texts).lower())


def _plain(words: Iterable[str]) -> str:
    return " ".join(word for word in words if word not in _STOPS)


def _answer(task: Task) -> str | None:
    if task.answer is None:
        return None
    return _plain(_WORD.findall(json.dumps(task.answer, sort_keys=True, default=str).lower()))


def _shingles(words: Sequence[str]) -> Shingles:
    last = len(words) - SHINGLE_WORDS + 1
    return frozenset(" ".join(words[at : at + SHINGLE_WORDS]) for at in range(last))


def _drop_common(shingles: Mapping[int, Shingles]) -> dict[int, Shingles]:
    """Return the shingles of each task that are not wording it shares with many."""
    counts = Counter(one for task_shingles in shingles.values() for one in task_shingles)
    most = max(COMMON_AT_LEAST, COMMON_FRACTION * len(shingles))
    common = {one for one, count in counts.items() if count > most}
    rare_shingles = {key: task_shingles - common for key, task_shingles in shingles.items()}
    return {
        key: task_shingles if len(task_shingles) >= LEAST_SHINGLES else frozenset[str]()
        for key, task_shingles in rare_shingles.items()
    }


def compare_shingles(
    heldout: Sequence[Shingles], train: Sequence[Shingles], similarity: float
) -> dict[int, list[tuple[int, float]]]:
    """Return for each held-out task the train tasks that are as similar, with how much."""
    places = _index_shingles(heldout)
    matches: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for other, two in enumerate(train):
        for at in _find_candidates(two, places, similarity):
            one = heldout[at]
            jaccard = len(one & two) / len(one | two)
            if jaccard >= similarity:
                matches[at].append((other, jaccard))
    return matches


def _index_shingles(tasks: Sequence[Shingles]) -> dict[str, list[int]]:
    """Return the tasks that each shingle is in, by their places in the sequence."""
    places: dict[str, list[int]] = defaultdict(list)
    for at, shingles in enumerate(tasks):
        for one in shingles:
            places[one].append(at)
    return dict(places)


def _find_candidates(
    shingles: Shingles, places: Mapping[str, Sequence[int]], similarity: float
) -> set[int]:
    """Return all indexed tasks that may be as similar, and few others.

    Two tasks that are as similar share at least `similarity` of the shingles of each. So most tasks
    are settled by how many of their shingles are indexed at all, and of the indexed ones a similar
    task holds one of the rarest: the prefix filter of AllPairs (Bayardo et al., 2007).
    """
    shared = shingles & places.keys()
    needed = max(1, ceil(similarity * len(shingles) - ROUNDING))
    spare = len(shared) - needed
    if spare < 0:
        return set()
    rarest = sorted(shared, key=lambda one: len(places[one]))[: spare + 1]
    return {at for one in rarest for at in places[one]}


def _format_pairs(pairs: Sequence[TaskPair]) -> str:
    parts = [
        f"{pair.heldout.id} equals {pair.train.id}"
        if pair.similarity == 1
        else f"{pair.heldout.id} is {pair.similarity:.0%} similar to {pair.train.id}"
        for pair in pairs[:LISTED]
    ]
    more = len(pairs) - len(parts)
    return ", ".join([*parts, *([f"and {more} more"] if more else [])])
