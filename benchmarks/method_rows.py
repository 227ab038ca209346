"""Rows of `benchmarks/methods.py`: each method in its situation, as changes of one config.

A situation is a run of GRPO; with a method's keys on top it is that method's run. So the twin of
every method of a situation is the same run, and nothing but the method differs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Keys = Mapping[str, Any]

BASE: Keys = {
    "env.id": "benchmarks.sums:SumsEnv",
    "env.kwargs": {},
    "policy.make": None,
    "warmstart": None,
    "run.threads": 1,
    "run.checkpoint_every": 1000,
    "store": None,
    "engine.slots": 128,
    "rollout.tasks_per_step": 8,
    "rollout.group_size": 8,
    "rollout.concurrency": 128,
    "rollout.max_turns": 4,
    "evaluate.tasks": 100,
    "evaluate.every": 3,
}
"""What every run has over `configs/quickstart.yaml`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A run of GRPO that others are compared with."""

    meaning: str
    """The situation in words, for the table."""
    keys: Keys = field(default_factory=dict[str, Any])
    """Keys over `BASE`."""
    steps: int = 12
    """Number of steps of the twin; the tokens that they sample are everybody's budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRow:
    """A method in a situation."""

    situation: str
    keys: Keys
    """Keys over those of the situation."""
    note: str = ""
    """What the row leaves open, for the table."""


SITUATIONS: Mapping[str, Situation] = {
    "fresh": Situation(meaning="fresh data, one update per batch, sums of 2 or 3 terms"),
    "turns": Situation(meaning="three turns: sums of 3 terms", keys={"env.kwargs": {"terms": [3]}}),
    "sparse": Situation(
        meaning="rarer success: sums of 3 or 4 terms; none of 4 were in the warm start",
        keys={"env.kwargs": {"terms": [3, 4]}},
    ),
    "known": Situation(meaning="24 tasks, again and again", keys={"env.task_limit": 24}),
    "pairs": Situation(
        meaning="groups of 2", keys={"rollout.tasks_per_step": 32, "rollout.group_size": 2}
    ),
    "noisy": Situation(
        meaning="one reward in ten is off by 5, up or down",
        keys={"learn.group_reward": {"name": "custom", "function": "benchmarks.sums:pay_noisily"}},
    ),
    "nudged": Situation(
        meaning="half of the prompts suggest a strategy",
        keys={
            "env.id": "agentrl_envs.strategies:NudgedEnv",
            "env.kwargs": {
                "env": "benchmarks.sums:SumsEnv",
                "strategies": ["add twice", "say it"],
            },
        },
    ),
    "reused": Situation(
        meaning="four updates per batch: two passes in two parts",
        keys={"learn.minibatches": 2, "learn.epochs": 2},
    ),
    "stale": Situation(
        meaning="data 4 versions old, two updates per batch",
        keys={
            "rollout.mode": "async",
            "rollout.max_staleness": 4,
            "rollout.backlog": 4,
            "learn.minibatches": 2,
        },
        steps=15,
    ),
    "long": Situation(
        meaning="three turns at most, none to spare",
        keys={"env.kwargs": {"terms": [3]}, "rollout.max_turns": 3},
    ),
}

_TREES: Keys = {
    "rollout.branching.topology": "tree_grpo",
    "rollout.branching.trees": 2,
    "rollout.branching.rounds": 1,
    "rollout.branching.width": 3,
}
_UNSURE: Keys = {"rollout.branching.topology": "aepo", "rollout.branching.probe_tokens": 4}


def _row(situation: str, note: str = "", **keys: Any) -> MethodRow:
    return MethodRow(
        situation=situation,
        keys={key.replace("__", "."): value for key, value in keys.items()},
        note=note,
    )


def _advantage(situation: str, name: str, /, **knobs: Any) -> MethodRow:
    return MethodRow(situation=situation, keys={"learn.advantage": {"name": name, **knobs}})


ROWS: Mapping[str, MethodRow] = {
    "group_reward.majority": _row(
        "fresh", "no reward of the environment trains", learn__group_reward={"name": "majority"}
    ),
    "group_reward.dare": _row(
        "fresh", "no reward of the environment trains", learn__group_reward={"name": "dare"}
    ),
    "reward_shaping.overlong": _row(
        "long",
        learn__reward_shaping=[{"name": "overlong", "limit_tokens": 32, "buffer_tokens": 12}],
    ),
    "reward_shaping.fapo": _row("turns", learn__reward_shaping=[{"name": "fapo"}]),
    "advantage.rloo": _advantage("fresh", "rloo"),
    "advantage.reinforce_pp": _advantage("fresh", "reinforce_pp"),
    "advantage.reinforce_pp_baseline": _advantage("fresh", "reinforce_pp_baseline"),
    "advantage.gae": MethodRow(
        situation="fresh", keys={"learn.advantage": {"name": "gae"}, "learn.critic": {}}
    ),
    "advantage.segment_reinforce": _advantage("turns", "segment_reinforce"),
    "advantage.gigpo": _advantage("turns", "gigpo"),
    "advantage.ui_s1": _advantage("turns", "ui_s1", match_reward=0.0),
    "advantage.milestones": _advantage("turns", "milestones"),
    "advantage.nudge": _advantage("nudged", "nudge"),
    "advantage.mc_grpo": _advantage("pairs", "mc_grpo"),
    "advantage.gapo": _advantage("noisy", "gapo"),
    "advantage.poise": _advantage("pairs", "poise"),
    "advantage.xrpo": _advantage("sparse", "xrpo"),
    "advantage.echo": _advantage("fresh", "echo"),
    "advantage.arpo": _row(
        "turns",
        learn__advantage={"name": "arpo"},
        rollout__branching__topology="arpo",
        rollout__branching__probe_tokens=4,
    ),
    "advantage.aepo": _row(
        "turns",
        "with its topology and its loss",
        learn__advantage={"name": "aepo"},
        learn__loss={"name": "aepo"},
        **_UNSURE,
    ),
    "advantage.tree_grpo": _row("turns", learn__advantage={"name": "tree_grpo"}, **_TREES),
    "advantage.tree_rl": _row(
        "turns", "on Tree-GRPO's trees", learn__advantage={"name": "tree_rl"}, **_TREES
    ),
    "advantage.branch_grpo": _row(
        "turns", "on AEPO's trees", learn__advantage={"name": "branch_grpo"}, **_UNSURE
    ),
    "loss.aepo": _row("reused", learn__loss={"name": "aepo"}),
    "loss.gspo": _row(
        "reused",
        learn__loss={"name": "gspo"},
        learn__correction={"name": "tis", "level": "geometric"},
    ),
    "loss.cispo": _row("reused", learn__loss={"name": "cispo"}),
    "loss.sapo": _row("reused", learn__loss={"name": "sapo"}),
    "loss.m2po": _row("stale", learn__loss={"name": "m2po"}, learn__correction={"name": "none"}),
    "loss.bapo": _row("reused", learn__loss={"name": "bapo"}),
    "loss.reinforce": _row(
        "reused", learn__loss={"name": "reinforce"}, learn__proximal={"name": "current"}
    ),
    "proximal.behaviour": _row(
        "stale", learn__proximal={"name": "behaviour"}, learn__correction={"name": "none"}
    ),
    "proximal.current": _row("stale", learn__proximal={"name": "current"}),
    "proximal.log_linear": _row("stale", learn__proximal={"name": "log_linear"}),
    "proximal.linear": _row("stale", learn__proximal={"name": "linear"}),
    "proximal.ewma": _row(
        "stale",
        "PPO-EWMA as published",
        learn__proximal={"name": "ewma"},
        learn__correction={"name": "floored"},
    ),
    "proximal.revised_ewma": _row("stale", learn__proximal={"name": "revised_ewma"}),
    "proximal.snapshot": _row("stale", learn__proximal={"name": "snapshot"}),
    "correction.none": _row("stale", learn__correction={"name": "none"}),
    "correction.icepop": _row("stale", learn__correction={"name": "icepop"}),
    "correction.floored": _row("stale", learn__correction={"name": "floored"}),
    "rejection.divergence": _row("stale", learn__rejection=[{"name": "divergence"}]),
    "rejection.veto": _row("stale", learn__rejection=[{"name": "veto"}]),
    "rejection.opsm": _row("stale", learn__rejection=[{"name": "opsm", "anchor": "behaviour"}]),
    "selection.d3s": _row("fresh", run__steps=12, learn__selection=[{"name": "d3s"}]),
    "selection.overlong": _row("long", learn__selection=[{"name": "overlong"}]),
    "selection.pivot": _row(
        "pairs",
        "MC-GRPO as published: 2 of 3 train",
        rollout__tasks_per_step=21,
        rollout__group_size=3,
        learn__advantage={"name": "mc_grpo"},
        learn__selection=[{"name": "pivot"}],
    ),
    "selection.branch_pruning": _row(
        "turns",
        "`branch_grpo` on AEPO's trees",
        learn__advantage={"name": "branch_grpo"},
        learn__selection=[{"name": "branch_pruning"}],
        **_UNSURE,
    ),
    "sampler.uniform": _row("known", curation__sampler={"name": "uniform"}),
    "hint.remove": _row("nudged", learn__hint={"name": "remove"}),
    "hint.distill": _row(
        "nudged",
        "NudgeRL, both terms",
        learn__hint={"name": "distill"},
        learn__advantage={"name": "nudge"},
    ),
    "sampler.cdas": _row("known", curation__sampler={"name": "cdas"}),
    "sampler.vade": _row("known", curation__sampler={"name": "vade"}),
    "allocation.dart": _row("known", curation__allocation={"name": "dart"}),
    "allocation.dars": _row("sparse", curation__allocation={"name": "dars"}),
    "allocation.xrpo": _row("sparse", curation__allocation={"name": "xrpo"}),
    "allocation.duet": _row("sparse", curation__allocation={"name": "duet"}),
    "filter.dapo": _row("sparse", curation__filter={"name": "dapo"}),
    "pool.success": _row("known", curation__pool={"name": "success"}),
    "members.balanced": _row(
        "fresh",
        "four of eight trajectories train",
        curation__members={"name": "balanced", "most": 4},
    ),
    "steps.high_entropy": _row("turns", curation__steps={"name": "high_entropy"}),
    "branching.fan_out": _row(
        "turns", rollout__branching__topology="fan_out", rollout__branching__turns=[1]
    ),
    "branching.monitored": _row(
        "turns",
        "`advantage.aepo` with AEPO's pre-monitoring",
        learn__advantage={"name": "aepo"},
        learn__loss={"name": "aepo"},
        rollout__branching__split="monitored",
        **_UNSURE,
    ),
    "rollout.drafts": _row("known", "SPEC-RL", rollout__drafts={}),
    "rollout.schedule": _row(
        "fresh",
        "SIRI",
        rollout__schedule={"period_steps": 6, "min_turn_tokens": 8, "min_turns": 3},
    ),
    "rollout.growth": _row(
        "turns", "AgentMath's budgets", rollout__growth={"turns": 2, "turn_tokens": 8}
    ),
    "kl.reset_every": _row(
        "fresh",
        "a KL penalty whose reference is reset every 4 steps, as in BroRL",
        learn__kl={"reset_every": 4},
    ),
    "mode.partial": _row("fresh", "APRIL", rollout__mode="partial"),
    "mode.async": _row("fresh", "one version old at most", rollout__mode="async"),
}
"""Every method that is not the default of its slot, by slot and name."""
