"""Signs in a run's metrics that it goes wrong, and what to do about each: pure rules over lines.

A line is what `metrics.jsonl` has of a step. A rule says nothing until it has seen enough of them,
and nothing about figures that are not there. How far the engine is from the trainer has an alarm of
its own, `learn.gap_alarm`, which sees single tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from agentrl.config.run import DiagnosticsSection
from agentrl.errors import LearnError

Line = Mapping[str, Any]


CHOOSE_TASKS = (
    "Choose easier or harder tasks (curation.sampler, curation.filter), or raise "
    "rollout.group_size; `agentrl methods --for sparse-reward` has more"
)
MEMORISED_LOSS = 0.01
"""Nats per token, below which a policy says its demonstrations word by word."""
MEMORISED_TIMES = 20
"""Times that each demonstration was shown by then; a policy that generalised needs fewer."""


def find_memorised(*, demonstrations: int, times: float, loss: float) -> str | None:
    """Say whether a warm start learnt by heart, shown `times` each down to `loss` per token."""
    if times < MEMORISED_TIMES or loss > MEMORISED_LOSS:
        return None
    return (
        f"{demonstrations} demonstrations, loss {loss:.2g}: memorised. Each was shown {times:.0f} "
        "times; give the warm start more of them (warmstart.demonstrations, and an environment "
        "with more train tasks, or more lines in warmstart.recordings), or fewer warmstart.steps"
    )


def zero_advantage(lines: Sequence[Line], limits: DiagnosticsSection) -> str | None:
    """Say whether next to no trajectory teaches anything: their groups have one reward each."""
    last = _mean(lines[-limits.window :], "advantage/zero_fraction", limits.window)
    if last is None or last <= limits.zero_advantage:
        return None
    return (
        f"{last:.0%} of the advantages of the last {limits.window} steps are zero: rewards within "
        f"groups are equal, so nothing is learnt. {CHOOSE_TASKS}"
    )


def entropy_collapse(lines: Sequence[Line], limits: DiagnosticsSection) -> str | None:
    """Say whether the policy has stopped trying anything else."""
    first, last = _ends(lines, "entropy", limits.window)
    if first is None or last is None or first <= 0 or last >= limits.entropy_left * first:
        return None
    return (
        f"the entropy fell from {first:.3g} to {last:.3g} nats: the policy has collapsed to one "
        "answer. Lower learn.optimizer.learning_rate, or add an entropy bonus or a KL penalty; "
        "`agentrl methods --for early-certainty` has more"
    )


def heldout_falls(lines: Sequence[Line], limits: DiagnosticsSection) -> str | None:
    """Say whether the training reward rises while the held-out one falls: the reward is gamed, or
    the train tasks are learned by heart."""
    judged = [at for at, line in enumerate(lines) if line.get("heldout/reward") is not None]
    if len(judged) < 2:
        return None
    best = max(judged, key=lambda at: lines[at]["heldout/reward"])
    drop = lines[best]["heldout/reward"] - lines[judged[-1]]["heldout/reward"]
    before = _mean(lines[max(0, best + 1 - limits.window) : best + 1], "reward/mean", 1)
    now = _mean(lines[-limits.window :], "reward/mean", 1)
    if before is None or now is None or drop <= limits.heldout_drop:
        return None
    if now - before < limits.reward_gain:
        return None
    return (
        f"the training reward rose from {before:.3g} to {now:.3g} while the held-out reward fell "
        f"by {drop:.3g}: check trajectories with a high reward for reward hacking, or train on "
        "more tasks; the checkpoint of the best evaluation is the better policy"
    )


def length_bias(lines: Sequence[Line], limits: DiagnosticsSection) -> str | None:
    """Say whether trajectories get longer and earn nothing by it."""
    first, last = _ends(lines, "lengths/sampled_mean", limits.window)
    poor, rich = _ends(lines, "reward/mean", limits.window)
    if first is None or last is None or poor is None or rich is None:
        return None
    if last <= limits.length_growth * first or rich - poor >= limits.reward_gain:
        return None
    return (
        f"trajectories grew from {first:.0f} to {last:.0f} sampled tokens without a gain in reward "
        f"({poor:.3g}, now {rich:.3g}): aggregate the loss over tokens instead of trajectories "
        "(learn.aggregation), or penalise length (learn.reward_shaping)"
    )


def template_collapse(lines: Sequence[Line], limits: DiagnosticsSection) -> str | None:
    """Say whether different tasks have come to get the same answer, which earns nothing."""
    first, last = _ends(lines, "likeness/other_task", limits.window)
    poor, rich = _ends(lines, "reward/mean", limits.window)
    if first is None or last is None or poor is None or rich is None:
        return None
    if not first <= limits.other_task_likeness < last or rich - poor >= limits.reward_gain:
        return None
    return (
        f"the similarity of answers to different tasks rose from {first:.0%} to {last:.0%} without "
        f"a gain in reward ({poor:.3g}, now {rich:.3g}): the policy recites a template regardless "
        "of the task. Entropy does not show this. Drop groups without a learning signal "
        "(curation.filter), add a KL penalty, or lower learn.optimizer.learning_rate"
    )


def component_falls(lines: Sequence[Line], limits: DiagnosticsSection) -> str | None:
    """Say whether the reward rises while one of its parts falls: it may be gamed by the others."""
    poor, rich = _ends(lines, "reward/mean", limits.window)
    if poor is None or rich is None or rich - poor < limits.reward_gain:
        return None
    names = {name for line in lines[-limits.window :] for name in line}
    for name in sorted(name for name in names if name.startswith("component/")):
        first, last = _ends(lines, name, limits.window)
        if first is None or last is None or first <= 0 or last >= limits.component_left * first:
            continue
        return (
            f"the reward rose from {poor:.3g} to {rich:.3g} while {name} fell from {first:.3g} to "
            f"{last:.3g}: check whether trajectories with a high reward still do what you intend; "
            "if so, give that component more weight. Ignore this for a component that should fall"
        )
    return None


RULES: Mapping[str, Callable[[Sequence[Line], DiagnosticsSection], str | None]] = {
    "zero_advantage": zero_advantage,
    "entropy_collapse": entropy_collapse,
    "heldout_falls": heldout_falls,
    "length_bias": length_bias,
    "template_collapse": template_collapse,
    "component_falls": component_falls,
}


def diagnose(lines: Sequence[Line], limits: DiagnosticsSection) -> dict[str, str]:
    """Return every sign there is now, after these steps: the observation and the remedy by name."""
    texts = {name: rule(lines, limits) for name, rule in RULES.items()}
    return {name: text for name, text in texts.items() if text is not None}


@dataclass(slots=True, eq=False)
class RunDiagnostics:
    """Looks after every step, and says each sign once."""

    limits: DiagnosticsSection
    say: Callable[[str], None]
    memorised: str | None = None
    """Message about a warm start that learnt by heart: the cause of groups that end alike."""
    lines: list[Line] = field(default_factory=list[Line])
    said: set[str] = field(default_factory=set[str])

    def look(self, line: Line) -> None:
        """Take a step's figures; raise `LearnError` for a new sign if that is to stop the run."""
        self.lines.append(line)
        for name, sign in diagnose(self.lines, self.limits).items():
            if name in self.said:
                continue
            self.said.add(name)
            text = f"{name}: {sign}"
            if self.memorised is not None:
                text = text.replace(CHOOSE_TASKS, self.memorised)
            if self.limits.action == "stop":
                raise LearnError(f"{text}. To continue anyway, set diagnostics.action: warn")
            self.say(text)


def _mean(lines: Sequence[Line], name: str, least: int) -> float | None:
    values = [line[name] for line in lines if line.get(name) is not None]
    return fmean(values) if len(values) >= least else None


def _ends(lines: Sequence[Line], name: str, window: int) -> tuple[float | None, float | None]:
    """Return the means of the first and the last window; None while they would overlap."""
    if len(lines) < 2 * window:
        return None, None
    return _mean(lines[:window], name, window), _mean(lines[-window:], name, window)
