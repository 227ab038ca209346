"""From the sections `curation` and `rollout.drafts` to what chooses tasks and is used again."""

from collections.abc import Callable, Mapping
from typing import Any

from agentrl.config.run import RunConfig
from agentrl.rollout.curation.group_curation import GroupCuration, SavedCuration
from agentrl.rollout.curation.rules import build_curation_rules
from agentrl.rollout.curation.state_json import decode
from agentrl.rollout.curation.task_curator import TaskCurator
from agentrl.rollout.drafts.cache import DraftCache
from agentrl.rollout.drafts.engine import DraftReuseSettings
from agentrl.rollout.drafts.runner import DraftingRunner
from agentrl.rollout.drafts.verify import AcceptanceRule
from agentrl.rollout.runner import RolloutRunner
from agentrl.rollout.task_sampler import TaskSampler
from agentrl.run.build import build_train_sampling
from agentrl.runtime.seeds import derive
from agentrl.store.codec import pack, unpack
from agentrl.store.run import RunStore

DRAFTS = "drafts.bin"
"""The file of a checkpoint that holds the trajectories of `rollout.drafts`."""
SUCCESSES = "successes.bin"
"""The file of a checkpoint that holds the trajectories of `curation.pool`."""


def build_curation(
    config: RunConfig,
    stream: TaskSampler,
    known: Callable[[], TaskSampler],
    *,
    version: int,
    saved: Mapping[str, Any] | None,
    stored: bytes | None = None,
) -> GroupCuration | None:
    """Return the curation of tasks and groups, or None where nothing is chosen.

    Tasks come from `stream`, or are those of a fresh one, `known`, of which a sampler chooses.
    `saved` is what `GroupCuration.saved` was at the checkpoint of `version`, and `stored` the file
    of `curation_files` there.
    """
    rules = build_curation_rules(config.curation.model_dump())
    if rules.does_nothing:
        return None
    before = None if saved is None else decode(SavedCuration, saved)
    curator = TaskCurator(
        rules,
        stream if rules.sampler is None else known(),
        seed=derive(config.run.seed, "curation"),
        group_size=config.rollout.group_size,
        max_turns=config.rollout.max_turns,
        state=before and before.state,
        branches=None if stored is None else unpack(stored),
    )
    return GroupCuration(
        curator=curator,
        wanted=config.rollout.tasks_per_step,
        version=version,
        saved_before=before,
    )


def build_drafts(
    config: RunConfig,
    rollouts: RolloutRunner,
    *,
    vocabulary: int,
    stored: bytes | None,
    record: RunStore | None = None,
) -> DraftingRunner | None:
    """Return the runner that plays with drafts, or None where every token is sampled anew.

    `vocabulary` is the number of tokens the policy may choose from, `stored` the file of a
    checkpoint.
    """
    section = config.rollout.drafts
    if section is None:
        return None
    cache = DraftCache(section.capacity_tokens, rollouts.engine.version)
    if stored is not None:
        cache.restore(unpack(stored))
    rule = AcceptanceRule(leniency=section.leniency, scale=section.scale, floor=section.floor)
    return DraftingRunner(
        rollouts=rollouts,
        sampling=build_train_sampling(config),
        cache=cache,
        seed=config.run.seed,
        reusing=DraftReuseSettings(
            rule=rule,
            residual=section.residual,
            alternatives=min(section.alternatives, vocabulary),
            reuse=section.reuse,
        ),
        max_age=config.rollout.max_age,
        events=None if record is None else record.events,
    )


def draft_files(drafts: DraftingRunner | None) -> dict[str, bytes]:
    """Return the files of a checkpoint that hold the drafts."""
    return {} if drafts is None else {DRAFTS: pack(drafts.list_drafts())}


def curation_files(curation: GroupCuration) -> dict[str, bytes]:
    """Return the files of a checkpoint that hold curation: the successes that may be lent."""
    return {SUCCESSES: pack(curation.stored)} if curation.curator.rules.pool else {}
