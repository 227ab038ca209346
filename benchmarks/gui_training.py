"""Training on desktops: how busy they are and what is trained per second, `sync` beside `async`.

`sync` is DART's own baseline: a batch of trajectories, of which the slowest is waited for, then an
optimiser step during which no desktop has anything to do. `async` is its decoupled training. Two
parts, which have nothing to do with each other but the trajectories:

- for real: `configs/gui_tree.yaml` with templates of very different lengths, from one warm-started
  policy, in both modes on the same desktops. Everything shares this machine's cores, so only what
  waits (for a screen to come to rest, for the slowest trajectory) can be overlapped;
- in virtual time: the latencies of those trajectories, with as many desktops as DART has
  trajectories in a batch or more, and an engine and a trainer that cost what those of a large
  policy cost on accelerators of their own. Assumptions, not measurements: `SCALES` has them all.

A desktop is *held* while it has an episode, and *works* while it does what the episode asks. The
shares are of all desktops over all the time from the first optimiser step to the last one. Where
every trajectory trains, the share of work grows as training does: nothing else can come out.
"""

import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from agentrl.metrics.latency_trace import LatencyTrace, TrajectoryCost, read_trace
from agentrl.rollout.scheduler.policy import SchedulerPolicy
from agentrl.simulate.engine import EngineSpeed
from agentrl.simulate.study import StudySetting, compare
from benchmarks.commands import CONFIGS, MADE, agentrl
from benchmarks.harness import Benchmark, parser
from benchmarks.metered import read_episodes, utilisation

CONFIG = CONFIGS / "gui_tree.yaml"
ENV_GOAL, TRAINING_GOAL = 5.5, 1.9
"""What DART reports over its own baseline: environments in use, here those held, and training."""
MODES = {"sync": {}, "async": {"rollout.max_staleness": "2"}}
WINDOW_STEPS = 1
"""Steps that are not measured, at the beginning."""
TEMPLATES = ("press", "press_in_order", "add_row", "switches", "delete_row", "move_row")
"""Of two to fifteen actions."""
PLACES = 8
"""Desktops of the part that is real."""
STEP_TASKS, STEP_GROUP = 4, 4
"""Of its steps: as many trajectories as two rounds on all desktops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What is assumed of a run on accelerators."""

    desktops: int
    staleness: int
    """Versions ahead of the trainer at which a group may be begun: with many desktops it is what
    keeps them in use, for a group waits for its own slowest trajectory."""
    train_share: float
    """Seconds of an optimiser step, over those that the engine alone needs for its batch."""

    @property
    def name(self) -> str:
        """Return it in words."""
        return f"{self.desktops} desktops, staleness {self.staleness}, trainer {self.train_share:g}"


SCALES = tuple(
    Scale(desktops=desktops, staleness=staleness, train_share=share)
    for desktops, staleness in ((64, 2), (192, 2), (192, 8))
    for share in (0.25, 0.5, 1.0)
)
GROUPS, GROUP = 8, 8
"""Of DART: up to eight tasks, eight trajectories each."""
TURN_TOKENS = 200
"""Of a thought and an action, on average; a reply may have 500 in DART."""
SCREEN_TOKENS = 1500
"""Of a screenshot."""
STEP_S = 0.025
"""Of decoding one token, with all slots taken."""


def episode_keys(folder: Path) -> dict[str, str]:
    """Return the keys that both modes and the warm start have in common."""
    return {
        "run.folder": str(folder),
        "env.kwargs.templates": json.dumps([*TEMPLATES]),
        "env.kwargs.max_turns": "16",
        "rollout.max_turns": "16",
        "rollout.concurrency": str(PLACES),
        "engine.context_tokens": "2048",
        "evaluate.tasks": "1",
    }


def first_policy(folder: Path, *, quick: bool) -> Path:
    """Return the folder of a policy that has seen some demonstrations: most episodes take long."""
    keys = {
        "run.name": "first",
        "warmstart.guess_fraction": "0",
        "warmstart.demonstrations": "24" if quick else "180",
        "warmstart.steps": "8" if quick else "150",
    }
    agentrl("warmstart", episode_keys(folder) | keys, CONFIG)
    return folder / "first" / "policy"


def train(mode: str, policy: Path, folder: Path, *, steps: int, round_: int) -> Path:
    """Train in one mode and return the run's folder."""
    name = f"{mode}-{round_}"
    meter = {
        "env.id": "benchmarks.metered:Metered",
        "env.kwargs.world": "gui/Form-v0",
        "env.kwargs.log": str(folder / f"{name}.meter"),
    }
    keys = {
        **episode_keys(folder),
        **MADE,
        **meter,
        "run.name": name,
        "run.steps": str(steps),
        "run.seed": str(round_),
        "policy.path": str(policy),
        "rollout.mode": mode,
        "rollout.tasks_per_step": str(STEP_TASKS),
        "rollout.group_size": str(STEP_GROUP),
    }
    agentrl("train", keys | MODES[mode], CONFIG)
    return folder / name


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What came of a real run."""

    held: float
    worked: float
    trajectories_per_s: float
    tokens_per_s: float
    """Trained ones."""


def measured(run: Path) -> Measured:
    """Read what a run left."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = lines[WINDOW_STEPS - 1 :]
    window = (lines[0]["time"], lines[-1]["time"])
    seconds = window[1] - window[0]
    held, worked = utilisation(read_episodes(run.with_name(f"{run.name}.meter")), window, PLACES)
    return Measured(
        held=held,
        worked=worked,
        trajectories_per_s=STEP_TASKS * STEP_GROUP * len(lines[1:]) / seconds,
        tokens_per_s=sum(line["tokens/trained"] for line in lines[1:]) / seconds,
    )


def for_real(bench: Benchmark, folder: Path, policy: Path, *, steps: int) -> LatencyTrace:
    """State the part that is real; return what the trajectories of `sync` cost."""
    found: dict[str, list[Measured]] = {mode: [] for mode in MODES}
    for number in range(bench.rounds):
        for mode in MODES:
            run = train(mode, policy, folder, steps=steps, round_=number)
            found[mode].append(measured(run))
            bench.console.print(f"trained {run.name}", highlight=False)
    for mode, ones in found.items():
        for what, figure, unit, scale in (
            ("desktops held", "held", "%", 100),
            ("desktops work", "worked", "%", 100),
            ("trajectories trained", "trajectories_per_s", "traj/s", 1),
            ("tokens trained", "tokens_per_s", "tokens/s", 1),
        ):
            values = [scale * getattr(one, figure) for one in ones]
            bench.middle(f"real, {mode}: {what}", values, unit=unit)
    for what, figure, goal in (
        ("desktops held", "held", ENV_GOAL),
        ("desktops work", "worked", None),
        ("training", "trajectories_per_s", TRAINING_GOAL),
    ):
        pairs = zip(found["async"], found["sync"], strict=True)
        ratios = [getattr(one, figure) / getattr(other, figure) for one, other in pairs]
        bench.middle(f"real: {what}", ratios, unit="x", peer="sync", goal=goal)
    return read_trace(folder / "sync-0" / "trace.jsonl", name="desktops")


def large(trace: LatencyTrace) -> LatencyTrace:
    """Return the trace with the tokens of a large policy, and the latencies that were recorded."""
    per_turn = fmean(turn.tokens for cost in trace.trajectories for turn in cost.turns)

    def one(cost: TrajectoryCost) -> TrajectoryCost:
        turns = (
            replace(
                turn,
                tokens=max(1, round(turn.tokens * TURN_TOKENS / per_turn)),
                reply_tokens=SCREEN_TOKENS,
            )
            for turn in cost.turns
        )
        return replace(cost, prompt_tokens=SCREEN_TOKENS, turns=tuple(turns))

    return replace(trace, trajectories=tuple(map(one, trace.trajectories)), failure_rate=0.0)


def setting(trace: LatencyTrace, scale: Scale, *, steps: int) -> StudySetting:
    """Return a run of a large policy on so many desktops, of which every one may be decoded for."""
    slots = scale.desktops
    engine = EngineSpeed(
        slots=slots, step_s=STEP_S / 2, slot_s=STEP_S / 2 / slots, prefill_tokens_per_step=2048
    )
    policy = SchedulerPolicy(
        groups_per_step=GROUPS,
        group_size=GROUP,
        concurrency=scale.desktops,
        max_staleness=scale.staleness,
    )
    decoding_s = GROUPS * GROUP * trace.tokens_mean / engine.tokens_per_s
    return StudySetting(
        trace=trace,
        policy=policy,
        speed=engine,
        train_s=scale.train_share * decoding_s,
        steps=steps,
        warm_steps=min(3, steps - 1),
    )


def virtual(bench: Benchmark, trace: LatencyTrace, *, steps: int) -> None:
    """State the part that is not real."""
    made = large(trace)
    turns = [len(cost.turns) for cost in made.trajectories]
    bench.notes.append(
        f"virtual time: {len(turns)} recorded trajectories of {min(turns)} to {max(turns)} turns, "
        f"{made.env_s_mean:.1f} s of desktop and {made.tokens_mean:.0f} tokens each"
    )
    for scale in SCALES:
        sync, decoupled = compare(setting(made, scale, steps=steps), ("sync", "async"))
        bench.row(f"virtual, {scale.name}: held in sync", 100 * sync.env_held, unit="%")
        bench.row(f"virtual, {scale.name}: held in async", 100 * decoupled.env_held, unit="%")
        _ratio(bench, scale, "held", sync.env_held, decoupled.env_held, ENV_GOAL)
        _ratio(bench, scale, "work", sync.env_busy, decoupled.env_busy, None)
        _ratio(bench, scale, "training", sync.per_s, decoupled.per_s, TRAINING_GOAL)
        oldest = float(decoupled.age_max)
        bench.row(f"virtual, {scale.name}: oldest token", oldest, unit="versions")


def _ratio(
    bench: Benchmark, scale: Scale, what: str, sync: float, decoupled: float, goal: float | None
) -> None:
    name = f"virtual, {scale.name}: {what}"
    bench.row(name, decoupled / sync, unit="x", peer="sync", goal=goal)


def main() -> None:
    """Measure, play, print and write."""
    arguments = parser(__doc__)
    arguments.add_argument("--steps", type=int, default=12, help="of each real run")
    arguments.add_argument("--trace", type=Path, help="play this trace; nothing is trained")
    arguments.add_argument("--keep", type=Path, help="where the runs stay")
    arguments.add_argument("--policy", type=Path, help="begin with this one; else one is made")
    chosen = arguments.parse_args()
    bench = Benchmark.from_arguments("gui_training", chosen)
    with tempfile.TemporaryDirectory() as name:
        if chosen.trace is not None:
            trace = read_trace(chosen.trace)
        else:
            folder = chosen.keep or Path(name)
            folder.mkdir(parents=True, exist_ok=True)
            policy = chosen.policy or first_policy(folder, quick=bench.quick)
            trace = for_real(bench, folder, policy, steps=4 if bench.quick else chosen.steps)
        virtual(bench, trace, steps=6 if bench.quick else 14)
    bench.finish()


if __name__ == "__main__":
    main()
