"""Methods by the situation that they are for, for `agentrl methods --for` and docs/choosing.md."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError

FIGURES = Path(__file__).with_name("method_figures.json")
"""Figure of each row of `benchmarks/methods.py` that was run; `--record` writes it."""
NO_FIGURE = "no figure; from the source"


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodAdvice:
    """A method for a situation."""

    name: str
    """Name of the method in words."""
    overrides: tuple[str, ...]
    """Keys to set, as on the command line."""
    use: str
    """Its effect there, and its needs."""
    row: str = ""
    """Its row in `benchmarks/methods.py`."""
    result: str = ""
    """Figure from another part of docs/results.md."""

    def describe_evidence(self) -> str:
        """Return the figures that there are, or `NO_FIGURE`."""
        figure = read_figures().get(self.row, "")
        return "; ".join(filter(None, (figure, self.result))) or NO_FIGURE


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSituation:
    """A situation, and methods for it, the first to try first."""

    meaning: str
    advice: tuple[MethodAdvice, ...]
    pages: tuple[str, ...] = ()
    """Names of the pages of docs/ that say more."""


@cache
def read_figures() -> Mapping[str, str]:
    """Return the figure of every row of `benchmarks/methods.py` that was run."""
    return json.loads(FIGURES.read_text(encoding="utf-8"))


SITUATIONS: Mapping[str, TrainingSituation] = {
    "sparse-reward": TrainingSituation(
        meaning="Few trajectories of a group succeed, or none.",
        advice=(
            MethodAdvice(
                name="warm start on demonstrations",
                overrides=("warmstart={}",),
                use="A policy that never succeeds has nothing to compare; demonstrate first.",
                result="every run of docs/results.md begins so",
            ),
            MethodAdvice(
                name="DAPO's dynamic sampling",
                overrides=("curation.filter={name: dapo}",),
                use="Replaces groups whose rewards are equal; what they cost is lost.",
                row="filter.dapo",
            ),
            MethodAdvice(
                name="DARS",
                overrides=("curation.allocation={name: dars}",),
                use="Gives tasks that mostly fail a second round of trajectories.",
                row="allocation.dars",
            ),
            MethodAdvice(
                name="milestones",
                overrides=("learn.advantage={name: milestones}",),
                use="Credits the way to each milestone, which the environment has to report.",
                row="advantage.milestones",
            ),
            MethodAdvice(
                name="VADE",
                overrides=("curation.sampler={name: vade}", "env.task_limit=1000"),
                use="Draws tasks that are neither solved nor hopeless.",
                row="sampler.vade",
            ),
            MethodAdvice(
                name="DART's pool of successes",
                overrides=("curation.pool={name: success}", "env.task_limit=1000"),
                use="Lends an old success to a group that has none.",
                row="pool.success",
            ),
            MethodAdvice(
                name="XRPO's novelty bonus",
                overrides=("learn.advantage={name: xrpo}",),
                use="Pays more for right trajectories that were unlikely.",
                row="advantage.xrpo",
            ),
            MethodAdvice(
                name="NudgeRL",
                overrides=("learn.advantage={name: nudge}",),
                use="Suggests strategies in prompts, by an environment such as `NudgedEnv`.",
                row="advantage.nudge",
            ),
            MethodAdvice(
                name="NudgeRL's second term",
                overrides=("learn.advantage={name: nudge}", "learn.hint={name: distill}"),
                use="Teaches what was found with a hint to the policy without it, too.",
                row="hint.distill",
            ),
            MethodAdvice(
                name="removed hints",
                overrides=("learn.hint={name: remove}",),
                use="Trains what was sampled after a hint as if the prompt had none.",
                row="hint.remove",
            ),
        ),
        pages=("curation", "how-to/no-rise"),
    ),
    "expensive-environments": TrainingSituation(
        meaning="A step of the environment costs more than the policy's tokens.",
        advice=(
            MethodAdvice(
                name="AEPO's trees",
                overrides=("rollout.branching.topology=aepo", "learn.advantage={name: aepo}"),
                use="Branches where the policy is unsure, and shares all steps before.",
                row="advantage.aepo",
                result="16 leaves took 0.76 of the environment seconds of 16 chains",
            ),
            MethodAdvice(
                name="Tree-GRPO",
                overrides=(
                    "rollout.branching={topology: tree_grpo, trees: 2, rounds: 1, width: 3}",
                    "learn.advantage={name: tree_grpo}",
                ),
                use="Branches at random places; groups have trees x (1 + rounds x width).",
                row="advantage.tree_grpo",
                result="16 leaves took 0.67 of the environment seconds of 16 chains",
            ),
            MethodAdvice(
                name="SPEC-RL, answers trusted",
                overrides=("rollout.drafts={reuse: trust}", "env.task_limit=1000"),
                use="Reuses a task's last trajectory; no tool runs while actions are the same.",
                row="rollout.drafts",
            ),
            MethodAdvice(
                name="DART's allocation",
                overrides=("curation.allocation={name: dart}", "env.task_limit=1000"),
                use="Gives tasks that are nearly solved fewer trajectories and turns.",
                row="allocation.dart",
            ),
            MethodAdvice(
                name="semi-online training",
                overrides=("env.id=recorded/Expert-v0", "learn.advantage={name: ui_s1}"),
                use="Trains on recordings without the environment.",
                result="gained nothing over more supervision on desktops",
            ),
        ),
        pages=("branching", "scheduling", "semi-online"),
    ),
    "long-tails": TrainingSituation(
        meaning="A few trajectories take much longer than the rest.",
        advice=(
            MethodAdvice(
                name="asynchronous rollouts",
                overrides=("rollout.mode=async", "rollout.max_staleness=1"),
                use="Samples while it trains; see `stale-data` for larger bounds.",
                row="mode.async",
                result="2.4 to 4.3 times the trajectories per second of `sync`, in virtual time",
            ),
            MethodAdvice(
                name="partial rollouts (APRIL)",
                overrides=("rollout.mode=partial",),
                use="Unfinished trajectories wait for the next step.",
                row="mode.partial",
                result="1.4 to 2.6 times the trajectories per second of `sync`, in virtual time",
            ),
            MethodAdvice(
                name="redundancy",
                overrides=("rollout.redundancy=2",),
                use="Starts more than needed and stops the last; prefers short ones.",
            ),
        ),
        pages=("scheduling",),
    ),
    "long-contexts": TrainingSituation(
        meaning="Trajectories grow to the limits of the context.",
        advice=(
            MethodAdvice(
                name="DAPO's overlong filter",
                overrides=("learn.selection=[{name: overlong}]",),
                use="What a limit has cut off does not train.",
                row="selection.overlong",
            ),
            MethodAdvice(
                name="DAPO's soft overlong punishment",
                overrides=(
                    "learn.reward_shaping=[{name: overlong, limit_tokens: 180, buffer_tokens: 60}]",
                ),
                use="Deducts for length before the limit cuts.",
                row="reward_shaping.overlong",
            ),
            MethodAdvice(
                name="SIRI",
                overrides=("rollout.schedule={min_turn_tokens: 32}",),
                use="Tightens the limits and relaxes them again, in periods.",
                row="rollout.schedule",
            ),
            MethodAdvice(
                name="AgentMath's budgets",
                overrides=("rollout.growth={turns: 2, turn_tokens: 32}",),
                use="Begins with short limits, and raises them when trajectories are cut.",
                row="rollout.growth",
            ),
            MethodAdvice(
                name="segments",
                overrides=("rollout.mode=partial", "rollout.segment={tokens: 512}"),
                use="Bounds what a trajectory takes per version of the weights.",
            ),
        ),
        pages=("learning", "scale"),
    ),
    "stale-data": TrainingSituation(
        meaning="Tokens that train were sampled by older weights.",
        advice=(
            MethodAdvice(
                name="M2PO",
                overrides=("learn.loss={name: m2po}", "learn.correction={name: none}"),
                use="Clips only as much as the whole batch is off.",
                row="loss.m2po",
                result="0.96 [0.94, 0.98] at staleness 4 beside GRPO's 0.86 [0.81, 0.89]; "
                "0.81 [0.77, 0.85] beside 0.97 [0.94, 0.98] at 16",
            ),
            MethodAdvice(
                name="CISPO",
                overrides=(
                    "learn.loss={name: cispo}",
                    "learn.proximal={name: behaviour}",
                    "learn.correction={name: none}",
                ),
                use="Weighs tokens by a bounded ratio instead of dropping them.",
                result="0.93 [0.90, 0.95] at staleness 4 beside GRPO's 0.86 [0.81, 0.89]",
            ),
            MethodAdvice(
                name="PPO-EWMA",
                overrides=("learn.proximal={name: ewma}", "learn.correction={name: floored}"),
                use="Anchors the clip to a moving average of the weights.",
                row="proximal.ewma",
            ),
            MethodAdvice(
                name="revised EWMA",
                overrides=("learn.proximal={name: revised_ewma}",),
                use="Centres that average on the weights that sampled.",
                row="proximal.revised_ewma",
            ),
            MethodAdvice(
                name="snapshots",
                overrides=("learn.proximal={name: snapshot}",),
                use="Keeps old weights in host memory for exact log-probs.",
                row="proximal.snapshot",
            ),
            MethodAdvice(
                name="interpolated anchor",
                overrides=("learn.proximal={name: log_linear}",),
                use="Needs no forward pass for the anchor.",
                row="proximal.log_linear",
            ),
            MethodAdvice(
                name="IcePop",
                overrides=("learn.correction={name: icepop}",),
                use="Drops tokens that are too far off instead of weighing them down.",
                row="correction.icepop",
            ),
            MethodAdvice(
                name="OPSM",
                overrides=("learn.rejection=[{name: opsm, anchor: behaviour}]",),
                use="Drops failures from which the policy has moved away.",
                row="rejection.opsm",
            ),
            MethodAdvice(
                name="a bound on age",
                overrides=("rollout.mode=async", "rollout.max_start_lag=4"),
                use="Begins trajectories again that are too old (RollArt).",
            ),
        ),
        pages=("scheduling", "methods"),
    ),
    "reused-batches": TrainingSituation(
        meaning="A batch makes several optimiser steps.",
        advice=(
            MethodAdvice(
                name="GSPO",
                overrides=(
                    "learn.loss={name: gspo}",
                    "learn.correction={name: tis, level: geometric}",
                ),
                use="Clips whole trajectories.",
                row="loss.gspo",
            ),
            MethodAdvice(
                name="CISPO",
                overrides=("learn.loss={name: cispo}",),
                use="Drops no token.",
                row="loss.cispo",
            ),
            MethodAdvice(
                name="SAPO",
                overrides=("learn.loss={name: sapo}",),
                use="Fades gradients out instead of clipping.",
                row="loss.sapo",
            ),
            MethodAdvice(
                name="BAPO",
                overrides=("learn.loss={name: bapo}",),
                use="Widens the clip until what went well contributes enough.",
                row="loss.bapo",
            ),
            MethodAdvice(
                name="clip-higher",
                overrides=("learn.loss={name: ppo_clip, clip_high: 0.28}",),
                use="Leaves unlikely tokens room to grow (DAPO).",
            ),
        ),
        pages=("methods",),
    ),
    "many-turns": TrainingSituation(
        meaning="One reward at the end has to credit many turns.",
        advice=(
            MethodAdvice(
                name="GiGPO",
                overrides=("learn.advantage={name: gigpo}",),
                use="Compares turns that began in the same state.",
                row="advantage.gigpo",
            ),
            MethodAdvice(
                name="UI-S1's credit",
                overrides=("learn.advantage={name: ui_s1, match_reward: 0.0}",),
                use="Compares turns of the same index.",
                row="advantage.ui_s1",
                result="the only one of six methods that never fell at staleness 4",
            ),
            MethodAdvice(
                name="milestones",
                overrides=("learn.advantage={name: milestones}",),
                use="Credits the way to each milestone, which the environment has to report.",
                row="advantage.milestones",
            ),
            MethodAdvice(
                name="a critic",
                overrides=("learn.advantage={name: gae, level: turn}", "learn.critic={}"),
                use="Learns the value of every turn.",
                row="advantage.gae",
            ),
            MethodAdvice(
                name="segment REINFORCE",
                overrides=("learn.advantage={name: segment_reinforce}",),
                use="Has no baseline by default.",
                row="advantage.segment_reinforce",
            ),
            MethodAdvice(
                name="TreeRL",
                overrides=(
                    "rollout.branching={topology: tree_grpo, trees: 2, rounds: 1, width: 3}",
                    "learn.advantage={name: tree_rl}",
                ),
                use="Values a turn by the branches that follow it.",
                row="advantage.tree_rl",
            ),
            MethodAdvice(
                name="BranchGRPO",
                overrides=(
                    "rollout.branching.topology=aepo",
                    "learn.advantage={name: branch_grpo}",
                ),
                use="Compares segments of the same depth.",
                row="advantage.branch_grpo",
            ),
            MethodAdvice(
                name="BranchGRPO with pruning",
                overrides=(
                    "rollout.branching.topology=aepo",
                    "learn.advantage={name: branch_grpo}",
                    "learn.selection=[{name: branch_pruning}]",
                ),
                use="Trains only the better half of what comes after each last branch point.",
                row="selection.branch_pruning",
            ),
        ),
        pages=("methods", "branching"),
    ),
    "known-tasks": TrainingSituation(
        meaning="A limited set of tasks comes up again and again.",
        advice=(
            MethodAdvice(
                name="SPEC-RL",
                overrides=("rollout.drafts={}", "env.task_limit=1000"),
                use="Samples only from where the last trajectory of a task no longer stands.",
                row="rollout.drafts",
            ),
            MethodAdvice(
                name="VADE",
                overrides=("curation.sampler={name: vade}", "env.task_limit=1000"),
                use="Draws tasks that are neither solved nor hopeless.",
                row="sampler.vade",
            ),
            MethodAdvice(
                name="CDAS",
                overrides=("curation.sampler={name: cdas}", "env.task_limit=1000"),
                use="Draws tasks from around the policy's competence; others may wait for ever.",
                row="sampler.cdas",
            ),
            MethodAdvice(
                name="DART's allocation",
                overrides=("curation.allocation={name: dart}", "env.task_limit=1000"),
                use="Gives tasks that are nearly solved fewer trajectories and turns.",
                row="allocation.dart",
            ),
        ),
        pages=("curation", "scheduling"),
    ),
    "recordings": TrainingSituation(
        meaning="Somebody has recorded good trajectories.",
        advice=(
            MethodAdvice(
                name="warm start on recordings",
                overrides=("warmstart={recordings: recordings/sums.jsonl}",),
                use="Supervised training first; try it before all else.",
                result="on desktops more of it did at least as well as UI-S1",
            ),
            MethodAdvice(
                name="UI-S1, semi-online",
                overrides=("env.id=recorded/Expert-v0", "learn.advantage={name: ui_s1}"),
                use="The policy acts on its own history and is compared with the expert.",
                result="worse than more supervision: SOP -0.037 [-0.067, -0.007]; the same from "
                "a weaker start",
            ),
        ),
        pages=("recordings", "semi-online"),
    ),
    "small-groups": TrainingSituation(
        meaning="A task affords only two to four trajectories.",
        advice=(
            MethodAdvice(
                name="MC-GRPO",
                overrides=(
                    "learn.advantage={name: mc_grpo}",
                    "learn.selection=[{name: pivot}]",
                    "rollout.group_size=3",
                ),
                use="Compares with the median of the group, which does not train.",
                row="selection.pivot",
            ),
            MethodAdvice(
                name="REINFORCE++",
                overrides=("learn.advantage={name: reinforce_pp}",),
                use="Compares with the whole batch; works with groups of one.",
                row="advantage.reinforce_pp",
            ),
            MethodAdvice(
                name="a critic",
                overrides=("learn.advantage={name: gae}", "learn.critic={}"),
                use="Needs no group.",
                row="advantage.gae",
            ),
            MethodAdvice(
                name="RLOO",
                overrides=("learn.advantage={name: rloo}",),
                use="Leaves the own reward out of the baseline.",
                row="advantage.rloo",
            ),
        ),
        pages=("methods",),
    ),
    "no-labels": TrainingSituation(
        meaning="Nobody knows the right answers.",
        advice=(
            MethodAdvice(
                name="TTRL",
                overrides=("learn.group_reward={name: majority}",),
                use="Pays the answer that most of a group give; the environment reports answers.",
                row="group_reward.majority",
            ),
            MethodAdvice(
                name="DARE",
                overrides=("learn.group_reward={name: dare}",),
                use="Pays each answer its share of the votes; watch `group_reward/top_env_reward`.",
                row="group_reward.dare",
            ),
        ),
        pages=("methods",),
    ),
    "noisy-reward": TrainingSituation(
        meaning="Some rewards are far off.",
        advice=(
            MethodAdvice(
                name="GAPO",
                overrides=("learn.advantage={name: gapo}",),
                use="Compares with the densest part of the group.",
                row="advantage.gapo",
            ),
            MethodAdvice(
                name="MC-GRPO",
                overrides=("learn.advantage={name: mc_grpo}",),
                use="Compares with the median, and bounds the advantage.",
                row="advantage.mc_grpo",
            ),
        ),
        pages=("methods",),
    ),
    "flawed-successes": TrainingSituation(
        meaning="Right answers are reached in wrong ways.",
        advice=(
            MethodAdvice(
                name="FAPO",
                overrides=("learn.reward_shaping=[{name: fapo}]",),
                use="Pays less where the environment reports a wrong step.",
                row="reward_shaping.fapo",
            ),
        ),
        pages=("how-to/reward-hacking",),
    ),
    "early-certainty": TrainingSituation(
        meaning="Entropy falls to 0 before the reward has risen.",
        advice=(
            MethodAdvice(
                name="clip-higher",
                overrides=("learn.loss={name: ppo_clip, clip_high: 0.28}",),
                use="Leaves unlikely tokens room (DAPO); matters with several updates a batch.",
            ),
            MethodAdvice(
                name="ECHO's shaping",
                overrides=("learn.advantage={name: echo}",),
                use="Credits tokens more where the policy was unsure.",
                row="advantage.echo",
            ),
            MethodAdvice(
                name="high-entropy steps",
                overrides=("curation.steps={name: high_entropy}",),
                use="Leaves out the turns at which the policy was sure (DART).",
                row="steps.high_entropy",
            ),
            MethodAdvice(
                name="entropy bonus",
                overrides=("learn.entropy_bonus=0.001",),
                use="Adds the policy's exact entropy to the loss.",
            ),
        ),
        pages=("learning", "evaluation"),
    ),
    "slow-training": TrainingSituation(
        meaning="The trainer, not the rollouts, is what takes long.",
        advice=(
            MethodAdvice(
                name="D3S",
                overrides=("learn.selection=[{name: d3s}]",),
                use="Trains on the trajectories and tokens that count most.",
                row="selection.d3s",
            ),
            MethodAdvice(
                name="balanced members",
                overrides=("curation.members={name: balanced, most: 4}",),
                use="Trains on some of a group, both outcomes among them.",
                row="members.balanced",
            ),
            MethodAdvice(
                name="tree layout",
                overrides=("learn.layout=tree",),
                use="Computes what trajectories share once; the default, and the same result.",
                result="1.3 times as fast as packed rows on one GPU",
            ),
        ),
        pages=("learning", "scale"),
    ),
}
"""Advice by situation."""


def find_situation(name: str) -> TrainingSituation:
    """Return a situation by name. Raises `ConfigError` for another one."""
    if name not in SITUATIONS:
        raise ConfigError(
            f"{name!r} is not a situation; the situations are {', '.join(SITUATIONS)}"
        )
    return SITUATIONS[name]


def to_json(name: str) -> dict[str, Any]:
    """Return a situation as plain values."""
    situation = find_situation(name)
    return {
        "situation": name,
        "meaning": situation.meaning,
        "methods": [
            {
                "method": each.name,
                "overrides": list(each.overrides),
                "use": each.use,
                "row": each.row or None,
                "evidence": each.describe_evidence(),
            }
            for each in situation.advice
        ],
        "pages": [f"docs/{page}.md" for page in situation.pages],
    }


def markdown(names: Iterable[str] = SITUATIONS) -> str:
    """Return a table per situation, for the documentation."""
    parts: list[str] = []
    for name in names:
        situation = find_situation(name)
        parts += [f"## {name}", "", situation.meaning, ""]
        parts += ["| method | set | what it does | evidence |", "| --- | --- | --- | --- |"]
        for each in situation.advice:
            overrides = "<br>".join(f"`{override}`" for override in each.overrides)
            parts.append(f"| {each.name} | {overrides} | {each.use} | {each.describe_evidence()} |")
        links = ", ".join(f"[{page}]({page}.md)" for page in situation.pages)
        parts += ["", f"More: {links}.", ""]
    return "\n".join(parts)
