"""The groups of one step, from request to batch: a state machine that only counts."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from agentrl.rollout.curation.dapo import DynamicSamplingFilter, NothingToLearn, Verdict, to_ask
from agentrl.rollout.curation.outcomes import GroupOutcome

DROPPED: tuple[Verdict, ...] = ("all_right", "all_wrong", "even", "too_easy", "too_few")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedGroup:
    """A finished group and what became of it."""

    group: GroupOutcome
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCollection:
    """Groups of a step: running, kept and dropped. Values that JSON can hold."""

    step: int
    wanted: int
    carried: tuple[GroupOutcome, ...] = ()
    """Complete groups that an earlier step had too many of."""
    judged: tuple[JudgedGroup, ...] = ()
    """In the order they ended."""
    running: tuple[int, ...] = ()
    """Ordinals."""
    started: int = 0
    """Groups of this step so far: the next ordinal."""
    rounds: int = 0
    exhausted: bool = False
    """The sampler has no further task for this step."""

    @property
    def kept(self) -> tuple[GroupOutcome, ...]:
        """Groups that may train: carried ones first, then in the order they ended."""
        return self.carried + tuple(j.group for j in self.judged if j.verdict == "kept")

    @property
    def batch(self) -> tuple[GroupOutcome, ...]:
        """Groups that train: the first `wanted` of the kept ones."""
        return self.kept[: self.wanted]

    @property
    def surplus(self) -> tuple[GroupOutcome, ...]:
        """Return the kept groups that the batch has no place for."""
        return self.kept[self.wanted :]

    @property
    def full(self) -> bool:
        """Return whether the batch is complete; what still runs is not needed."""
        return len(self.kept) >= self.wanted


def missing_groups(state: StepCollection, rule: DynamicSamplingFilter | None) -> int:
    """Return the number of groups to start now; 0 while running ones may still fill the batch."""
    if state.exhausted:
        return 0
    live = len(state.kept) + len(state.running)
    return to_ask(rule, wanted=state.wanted, live=live, rounds=state.rounds)


def started(state: StepCollection, *, asked: int, got: int) -> StepCollection:
    """Return the state after a round asked the sampler for so many tasks and got some."""
    ordinals = range(state.started, state.started + got)
    return replace(
        state,
        running=(*state.running, *ordinals),
        started=state.started + got,
        rounds=state.rounds + 1,
        exhausted=got < asked,
    )


def ended(state: StepCollection, judged: JudgedGroup) -> StepCollection:
    """Return the state after a running group ended. Raises `ValueError` for one that does not run.

    A group lends its place to nobody: ending twice, or in another step, is a mistake of the caller.
    """
    ordinal = judged.group.ordinal
    if judged.group.step != state.step or ordinal not in state.running:
        raise ValueError(
            f"group {judged.group.key} is not running in step {state.step}; each group that was "
            "started ends once"
        )
    ordinals = tuple(other for other in state.running if other != ordinal)
    return replace(state, running=ordinals, judged=(*state.judged, judged))


def is_done(state: StepCollection, rule: DynamicSamplingFilter | None) -> bool:
    """Return whether nothing more can join the batch: it is full, or nothing runs or may start."""
    return state.full or (not state.running and not missing_groups(state, rule))


def check_enough(state: StepCollection, rule: DynamicSamplingFilter | None) -> None:
    """Raise `NothingToLearn` for an empty batch, and for a short one where the rule says so.

    Without a rule nothing is ever dropped, and the trainer says what a batch of failures lacks.
    """
    size = len(state.batch)
    if rule is None or size == state.wanted or (size and rule.short == "train"):
        return
    counts = Counter(judged.verdict for judged in state.judged)
    causes = ", ".join(f"{counts[name]} {name}" for name in DROPPED if counts[name]) or "none ended"
    raise NothingToLearn(
        f"step {state.step} found {size} of {state.wanted} groups that can teach something in "
        f"{state.rounds} rounds ({causes}); {rule.ways_out}"
    )


def carried_over(
    groups: Iterable[GroupOutcome], *, version: int, max_age: int
) -> tuple[GroupOutcome, ...]:
    """Return the groups that a step of trainer version `version` may still train on."""
    return tuple(g for g in groups if version - g.oldest_version <= max_age)
