"""Costs of trajectories, turn by turn: the lengths and latencies a simulation plays."""

import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from agentrl.errors import ConfigError
from agentrl.runtime.atomic_files import write_text
from agentrl.trajectory import Failed, Leaf, Tree

FORMAT = 1
FILE = "trace.jsonl"
"""File of a run with the costs of its trajectories."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCost:
    """One policy message and the environment's answer."""

    tokens: int
    step_s: float
    reply_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryCost:
    """One trajectory, from reset to end."""

    prompt_tokens: int
    turns: tuple[TurnCost, ...]
    reset_s: float = 0.0
    failed: bool = False
    """True when it broke; then its turns are those before that."""

    @property
    def tokens(self) -> int:
        """Number of sampled tokens."""
        return sum(turn.tokens for turn in self.turns)

    @property
    def env_s(self) -> float:
        """Return the seconds its environment worked."""
        return self.reset_s + sum(turn.step_s for turn in self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyTrace:
    """Many trajectories; a simulation draws from those that did not fail."""

    name: str
    trajectories: tuple[TrajectoryCost, ...]
    failure_rate: float = 0.0

    def __post_init__(self) -> None:
        if not any(t.turns and not t.failed for t in self.trajectories):
            raise ConfigError(
                f"trace {self.name} has no trajectory that ended successfully with at least one "
                "turn; record a run that has completed a step"
            )

    @property
    def tokens_mean(self) -> float:
        """Return the mean of sampled tokens per trajectory."""
        return fmean(t.tokens for t in self.trajectories)

    @property
    def env_s_mean(self) -> float:
        """Return the mean of environment-seconds per trajectory."""
        return fmean(t.env_s for t in self.trajectories)


def cost_of(tree: Tree, leaf: Leaf) -> TrajectoryCost:
    """Return the cost of a trajectory; reset is the time that the nodes do not account for."""
    turns: list[TurnCost] = []
    prompt, tokens, reply, step_s, known_s = 0, 0, 0, 0.0, 0.0
    for node in () if leaf.node is None else tree.path(leaf.node):
        known_s += node.seconds if node.source == "sampled" else 0.0
        if node.source == "sampled":
            if reply:
                turns.append(TurnCost(tokens=tokens, step_s=step_s, reply_tokens=reply))
                tokens, reply, step_s = 0, 0, 0.0
            tokens += len(node.token_ids)
        elif not tokens:
            prompt += len(node.token_ids)
        else:
            reply += len(node.token_ids)
            step_s = max(step_s, node.seconds)
    if tokens:
        turns.append(TurnCost(tokens=tokens, step_s=step_s, reply_tokens=reply))
    known_s += sum(turn.step_s for turn in turns)
    return TrajectoryCost(
        prompt_tokens=prompt,
        turns=tuple(turns),
        reset_s=max(0.0, leaf.seconds - known_s),
        failed=isinstance(leaf.outcome, Failed),
    )


def append_costs(path: Path, trees: Iterable[Tree]) -> None:
    """Append what the trajectories of a step cost to a run's trace."""
    costs = [cost_of(tree, leaf) for tree in trees for leaf in tree.leaves]
    with path.open("a", encoding="utf-8") as file:
        file.writelines(_line(cost) + "\n" for cost in costs)


def trace_bytes(path: Path) -> int:
    """Return the size of a run's trace; 0 for one that has not begun."""
    return path.stat().st_size if path.exists() else 0


def cut_trace(path: Path, size_bytes: int) -> None:
    """Forget what was appended to a run's trace after it had this size: it is done again."""
    if trace_bytes(path) > size_bytes:
        os.truncate(path, size_bytes)


def write_trace(path: Path, trace: LatencyTrace) -> None:
    """Write a trace file: a line that says so, then one line per trajectory."""
    head = json.dumps(
        {"agentrl_trace": FORMAT, "name": trace.name, "failure_rate": trace.failure_rate}
    )
    write_text(path, "\n".join([head, *map(_line, trace.trajectories)]) + "\n")


def read_trace(path: Path, *, name: str = "") -> LatencyTrace:
    """Read a trace file without a torn last line; `ConfigError` for anything else."""
    if not path.exists():
        raise ConfigError(
            f"{path}: no such file; a run writes its trace as it proceeds, and `agentrl trace "
            "record RUN` creates a trace file from it"
        )
    name, costs = name or path.stem, list[TrajectoryCost]()
    rate: float | None = None
    try:
        whole = path.read_text(encoding="utf-8").split("\n")[:-1]
    except (IsADirectoryError, UnicodeDecodeError) as error:
        kind = "a folder" if path.is_dir() else "not UTF-8 text"
        raise ConfigError(
            f"{path} is {kind}, not a trace; name a file that `agentrl trace record RUN` wrote"
        ) from error
    for number, text in enumerate(whole, start=1):
        try:
            row = json.loads(text)
            if "agentrl_trace" in row:
                _check_format(path, row["agentrl_trace"])
                name, rate = str(row["name"]), float(row["failure_rate"])
                continue
            costs.append(_cost(row))
        except ConfigError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{path}:{number} is not a line of a trace ({error}); a line is "
                '{"prompt": tokens, "reset_s": seconds, "turns": [[tokens, step_s, reply]]}'
            ) from error
    return trace_of(name, costs, failure_rate=rate)


def trace_of(
    name: str, costs: Sequence[TrajectoryCost], *, failure_rate: float | None = None
) -> LatencyTrace:
    """Return the trace of recorded trajectories; `failure_rate` is theirs by default."""
    if failure_rate is None:
        failure_rate = sum(cost.failed for cost in costs) / max(1, len(costs))
    return LatencyTrace(
        name=name,
        trajectories=tuple(cost for cost in costs if not cost.failed and cost.turns),
        failure_rate=failure_rate,
    )


def quantile(values: Sequence[float], q: float) -> float:
    """Return a quantile, interpolated between the two nearest values."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _line(cost: TrajectoryCost) -> str:
    row: dict[str, Any] = {
        "prompt": cost.prompt_tokens,
        "reset_s": round(cost.reset_s, 6),
        "turns": [[t.tokens, round(t.step_s, 6), t.reply_tokens] for t in cost.turns],
    }
    if cost.failed:
        row["failed"] = True
    return json.dumps(row)


def _cost(row: dict[str, Any]) -> TrajectoryCost:
    cost = TrajectoryCost(
        prompt_tokens=int(row["prompt"]),
        reset_s=float(row["reset_s"]),
        turns=tuple(
            TurnCost(tokens=int(tokens), step_s=float(step_s), reply_tokens=int(reply))
            for tokens, step_s, reply in row["turns"]
        ),
        failed=bool(row.get("failed", False)),
    )
    numbers = [cost.prompt_tokens, cost.reset_s]
    numbers += [x for turn in cost.turns for x in (turn.tokens, turn.step_s, turn.reply_tokens)]
    if any(not math.isfinite(x) or x < 0 for x in numbers):
        raise ValueError("tokens and seconds must be finite and not negative")
    return cost


def _check_format(path: Path, version: object) -> None:
    if version != FORMAT:
        raise ConfigError(
            f"{path} is a trace of format {version}, but this agentrl reads {FORMAT}; record it "
            "again"
        )
