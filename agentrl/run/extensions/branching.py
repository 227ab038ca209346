"""From `rollout.branching` to the trees of a run."""

from dataclasses import replace
from pathlib import Path

from agentrl.config.branching import BranchingSection
from agentrl.config.run import RunConfig
from agentrl.rollout.branching.aepo import (
    AepoPaperRule,
    AepoRule,
    MonitoredRootSplit,
    OnlineRootSplit,
    StaticRootSplit,
)
from agentrl.rollout.branching.arpo import ArpoPaperRule, ArpoRule
from agentrl.rollout.branching.balanced import EntropyBalancedTopology
from agentrl.rollout.branching.branching_topology import BranchingTopology
from agentrl.rollout.branching.budget import BranchBudget
from agentrl.rollout.branching.entropy import EntropySignal
from agentrl.rollout.branching.fixed_topologies import FanOutTopology, TreeGrpoTopology
from agentrl.rollout.branching.log import BranchLog
from agentrl.rollout.branching.rule import BranchRule
from agentrl.rollout.branching.summary import BranchingSummary
from agentrl.rollout.branching.topology import AnyTopology
from agentrl.rollout.runner import RolloutRunner
from agentrl.run import build
from agentrl.runtime.seeds import derive
from agentrl.store.run import RunStore
from agentrl.task import Task


def build_branching_topology(
    config: RunConfig,
    rollouts: RolloutRunner,
    *,
    folder: Path,
    vocabulary: int,
    record: RunStore | None = None,
) -> BranchingTopology | None:
    """Return the branching topology of the groups, or None where nothing branches.

    Every decision is logged in `folder`. On resume, decisions of steps after the engine's version
    are dropped, and the others are what the run goes on from. The state needed to go on with a
    group goes into `record`.
    """
    base_topology = build_tree_planner(config, vocabulary=vocabulary)
    if base_topology is None:
        return None
    log = BranchLog(folder)
    observed = log.resume_after(rollouts.engine.version)
    if isinstance(base_topology, EntropyBalancedTopology):
        base_topology = replace(base_topology, prior=observed)

    def write(shaped: BranchingSummary) -> None:
        # What is over now is for the step that the engine's weights are used in.
        log.write(rollouts.engine.version + 1, shaped)

    # Before the scheduler restores its groups: their trees have the seeds that they had.
    repeats = build.build_seed_repeats(config, record)

    def seed(number: int, task: Task) -> int:
        step = number // config.rollout.tasks_per_step
        again = repeats.find_repeat(number, task.id, step=step)
        return derive(config.run.seed, "rollouts", step, *again)

    return BranchingTopology(
        topology=base_topology,
        rollouts=rollouts,
        sampling=build.build_train_sampling(config),
        seed=seed,
        on_over=write,
        events=None if record is None else record.events,
    )


def build_tree_planner(config: RunConfig, *, vocabulary: int) -> AnyTopology | None:
    """Return the rule by which trajectories branch, or None where none do.

    `vocabulary` is the number of tokens the policy may choose from.
    """
    section = config.rollout.branching
    budget = BranchBudget(
        leaves=config.rollout.group_size,
        tokens=section.budget_tokens,
        retries=config.rollout.retries,
        path_branches=section.path_branches,
    )
    match section.topology:
        case "none":
            return None
        case "tree_grpo":
            return TreeGrpoTopology(
                trees=section.trees,
                rounds=section.rounds,
                width=section.width,
                tokens=section.budget_tokens,
            )
        case "fan_out":
            return FanOutTopology(
                budget=budget, width=section.width, turns=section.turns, roots=section.roots
            )
        case "aepo" | "arpo" | "aepo_paper" | "arpo_paper" as name:
            splits = {
                "online": OnlineRootSplit(temperature=section.temperature, roots=section.roots),
                "monitored": MonitoredRootSplit(temperature=section.temperature),
                "static": StaticRootSplit(roots=section.roots),
            }
            return EntropyBalancedTopology(
                budget=budget,
                signal=EntropySignal(
                    vocabulary=vocabulary,
                    tokens=section.probe_tokens,
                    top_k=section.top_logprobs,
                ),
                rule=_branch_rule(section),
                split=splits[section.split],
                beam=section.beam,
                name=name,
            )


def _branch_rule(section: BranchingSection) -> BranchRule:
    base, weight, threshold = section.base, section.weight, section.threshold
    match section.topology:
        case "arpo":
            return ArpoRule(base=base, weight=weight)
        case "arpo_paper":
            return ArpoPaperRule(alpha=base, beta=weight, threshold=threshold)
        case "aepo_paper":
            return AepoPaperRule(
                alpha=base, gamma=weight, threshold=threshold, penalty=section.penalty
            )
        case "aepo":
            return AepoRule(base=base, weight=weight, penalty=section.penalty)
        case "none" | "tree_grpo" | "fan_out" as name:
            raise ValueError(
                f"{name} has no branch rule; ask for one of an entropy-balanced topology"
            )
