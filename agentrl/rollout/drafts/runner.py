"""Play of a scheduler's trajectories with drafts, and the drafts they leave for the next time."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from agentrl.errors import ConfigError
from agentrl.events.log import EventLog
from agentrl.events.state import GroupState
from agentrl.policy import Sampling, ScoringEngine
from agentrl.rollout.drafts.cache import CachedDraft, DraftCache, DraftKey
from agentrl.rollout.drafts.draft import DraftTrajectory
from agentrl.rollout.drafts.engine import DraftingEngine, DraftReuseSettings
from agentrl.rollout.drafts.replaying_env import ReplayingEnv
from agentrl.rollout.episode import EpisodeRunner
from agentrl.rollout.runner import RolloutRunner
from agentrl.rollout.scheduler.slot import RolloutSlot
from agentrl.runtime.seeds import derive
from agentrl.task import Task
from agentrl.trajectory import Leaf, Tree, Truncated, reward_of

NOTE = "DraftFigures"
"""Key of the note in a record."""


@dataclass(slots=True)
class DraftMetrics:
    """Counts since the last call of `take`."""

    trajectories: int = 0
    drafts: int = 0
    whole: int = 0
    """Of those, the ones that stood to their end and were not gone on with."""
    reused_tokens: int = 0

    @classmethod
    def from_rollout(cls, draft: DraftTrajectory | None, *, reused: int, sampled: int) -> Self:
        """Return the counts of one trajectory that ended, with the draft it began with."""
        has_draft = draft is not None
        whole = has_draft and reused > 0 and sampled == 0
        return cls(trajectories=1, drafts=int(has_draft), whole=int(whole), reused_tokens=reused)

    def add(self, other: "DraftMetrics") -> None:
        """Count what others have counted."""
        self.trajectories += other.trajectories
        self.drafts += other.drafts
        self.whole += other.whole
        self.reused_tokens += other.reused_tokens

    def take(self) -> dict[str, float]:
        """Return the figures, and begin again.

        `skip_ratio` is the share of all trajectories that were reused whole, `mean_cut` the tokens
        that stood per draft.
        """
        counted = {
            "drafts/found": float(self.drafts),
            "drafts/skip_ratio": self.whole / max(1, self.trajectories),
            "drafts/mean_cut": self.reused_tokens / max(1, self.drafts),
            "drafts/saved_tokens": float(self.reused_tokens),
        }
        self.trajectories = self.drafts = self.whole = self.reused_tokens = 0
        return counted


@dataclass(slots=True, kw_only=True)
class DraftingRunner:
    """Plays a slot; give it to a scheduler as `play`. The world of a task and sample always has one
    seed, so that a draft meets the world it was played in."""

    rollouts: RolloutRunner
    sampling: Sampling
    cache: DraftCache
    seed: int
    reusing: DraftReuseSettings = field(default_factory=DraftReuseSettings)
    max_age: int | None = None
    """Drafts whose oldest token is older would not train, and are not used; with a residual every
    token is new."""
    events: EventLog | None = None
    """The scheduler's; what a trajectory has reused is noted with its end."""
    _figures: DraftMetrics = field(default_factory=DraftMetrics)
    _kept: list[tuple[int, DraftMetrics]] = field(default_factory=list[tuple[int, DraftMetrics]])
    """Counts of a killed run, by the version at which their groups were opened."""

    def __post_init__(self) -> None:
        if not isinstance(self.rollouts.engine, ScoringEngine):
            raise ConfigError(
                f"rollout.drafts is set, but the engine, a {type(self.rollouts.engine).__name__}, "
                "cannot score tokens; set rollout.drafts to null, or use an engine with `score`"
            )

    async def __call__(self, slot: RolloutSlot) -> Leaf:
        """Play one trajectory, and keep it if it has a reward."""
        version = self._engine.version
        key = (slot.tree.task.id, slot.attempt.sample)
        world = await self.rollouts.restore_env(slot)
        entry = self._find_draft(key, version) if world is None else None
        episode = self.rollouts.episode(slot, self.sampling, world=world)
        if world is None:
            episode.env_seed = world_seed(self.seed, slot.tree.task, slot.attempt.sample)
        remembered = self._wrap_env(episode, key, entry)
        engine = DraftingEngine(
            engine=self._engine,
            chat=self.rollouts.chat,
            reusing=self.reusing,
            draft=entry and entry.draft,
            seed=slot.seed,
        )
        slot.sampler = engine
        leaf = await episode.run()
        counts = DraftMetrics.from_rollout(
            entry and entry.draft, reused=engine.reused_tokens, sampled=engine.sampled_tokens
        )
        self._figures.add(counts)
        if self.events is not None:
            number, sample = slot.attempt.group, slot.attempt.sample
            self.events.note(number, {NOTE: asdict(counts)}, sample=sample, with_end=True)
        draft = _build_draft(slot.tree, leaf, engine)
        if draft is not None:
            memory = None if remembered is None else remembered.seen
            new_entry = CachedDraft(draft, slot.attempt.group, memory)
            self.cache.keep(key, new_entry, version=self._engine.version)
        return leaf

    def adopt(self, groups: Sequence[GroupState]) -> None:
        """Keep what has ended before a resume and is not trained yet, and count it in its step.

        Events hold no alternatives, so with a residual these drafts are not used.
        """
        for group in groups:
            later = {id(event) for event in group.later}
            self._kept += [
                (group.opened.step, DraftMetrics(**note.note[NOTE]))
                for note in group.notes
                if id(note) in later and NOTE in note.note
            ]
            for sample, rollout in sorted(group.latest().items()):
                if (
                    rollout.leaf is None
                    or (draft := _build_draft(group.tree, rollout.leaf)) is None
                ):
                    continue
                self.cache.keep(
                    (group.task.id, sample),
                    CachedDraft(draft, group.id),
                    version=self._engine.version,
                )

    def list_drafts(self) -> tuple[Mapping[str, Any], ...]:
        """Return the drafts of the steps that are done, as `agentrl.store.codec` packs them."""
        return self.cache.plain(version=self._engine.version)

    def figures(self) -> dict[str, float]:
        """Return the draft metrics since the last call."""
        version = self._engine.version
        for step, counts in self._kept:
            if step < version:
                self._figures.add(counts)
        self._kept = [(step, counts) for step, counts in self._kept if step >= version]
        return self._figures.take()

    @property
    def _engine(self) -> ScoringEngine:
        engine = self.rollouts.engine
        assert isinstance(engine, ScoringEngine)
        return engine

    def _find_draft(self, key: DraftKey, version: int) -> CachedDraft | None:
        entry = self.cache.find(key, version=version)
        if entry is None or (oldest := entry.draft.oldest) is None:
            return None
        too_old = self.max_age is not None and version - oldest > self.max_age
        return None if too_old and not self.reusing.residual else entry

    def _wrap_env(
        self, episode: EpisodeRunner, key: DraftKey, found: CachedDraft | None
    ) -> ReplayingEnv | None:
        if self.reusing.reuse != "trust" or episode.begin is not None:
            return None
        world = ReplayingEnv(
            episode.env,
            found and found.world,
            reset_s=self.rollouts.limits.reset_s,
            step_s=self.rollouts.limits.step_s,
            on_mismatch=lambda: self.cache.forget(key),
        )
        episode.env = world
        return world


def _build_draft(
    tree: Tree, leaf: Leaf, engine: DraftingEngine | None = None
) -> DraftTrajectory | None:
    """Return a trajectory as a draft; None for one without a reward, or that was out of time."""
    if leaf.node is None or reward_of(leaf.outcome) is None:
        return None
    if isinstance(leaf.outcome, Truncated) and leaf.outcome.limit == "seconds":
        return None
    return DraftTrajectory.from_path(tree.path(leaf.node), None if engine is None else engine.known)


def world_seed(seed: int, task: Task, sample: int) -> int:
    """Return the seed of a task's world in a run with drafts, the same every time it comes up."""
    return derive(seed, "world", task.id, sample)
