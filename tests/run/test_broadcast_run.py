"""Whole runs whose weights go to two engine processes by broadcast, from one device and two."""

from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.engine.remote.shared_weights import SharedWeights
from agentrl.engine.remote.weight_broadcast import WeightBroadcaster
from agentrl.metrics.writer import read_metrics
from agentrl.weight_sync.shared_memory import SharedMemoryWeights
from tests.support.examples import spread_cases

STEPS = 3
SHORT: dict[str, Any] = {
    "run.steps": STEPS,
    "policy.make": {"hidden_size": 32, "layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 16},
    "warmstart.steps": 8,
    "warmstart.batch_size": 8,
    "warmstart.demonstrations": 40,
    "engine.slots": 8,
    "sampling.max_turn_tokens": 8,
    "rollout.tasks_per_step": 2,
    "rollout.group_size": 2,
    "rollout.concurrency": 8,
    "rollout.max_turns": 2,
    # One step moves log-probs so far that an engine which has not taken it is seen.
    "learn.optimizer": {"learning_rate": 0.03, "warmup_steps": 0},
    "learn.epochs": 1,
    "evaluate.tasks": 2,
    "metrics.tensorboard": False,
}
BROADCAST: dict[str, Any] = {
    "engine.processes": 2,
    "engine.broadcast": {"bucket_bytes": 10_000, "deadline_s": 200.0},
    "rollout.mode": "async",
}


class Told:
    """What a run has sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spreaders: set[WeightBroadcaster] = set()
        self.sent: list[tuple[bool, int]] = []
        spread = WeightBroadcaster.spread

        async def noted(spreader: WeightBroadcaster, weights: Any, engines: Any) -> SharedWeights:
            copy = await spread(spreader, weights, engines)
            own = isinstance(weights, SharedMemoryWeights) and weights.file.path == copy.path
            self.spreaders.add(spreader)
            self.sent.append((own, len(engines)))
            return copy

        monkeypatch.setattr(WeightBroadcaster, "spread", noted)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("devices", "rolling", "staleness"),
    spread_cases([(1, True, 1), (2, False, 0)], 1),
    ids=["one device, rolling", "two devices"],
)
@pytest.mark.nightly
def test_the_quickstart_trains_over_broadcasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: int, rolling: bool, staleness: int
) -> None:
    told = Told(monkeypatch)
    result = agentrl.train(
        "configs/quickstart.yaml",
        {
            **SHORT,
            **BROADCAST,
            "run.folder": str(tmp_path),
            "learn.devices.count": devices,
            "engine.rolling": rolling,
            "rollout.max_staleness": staleness,
        },
    )
    lines = read_metrics(result.folder)
    assert len(lines) == STEPS
    # The first weights, those of every step; of several devices they are in memory already.
    assert told.sent == [(devices > 1, 2)] * (1 + STEPS)
    (spreader,) = told.spreaders
    assert spreader.groups == 1, "kept from version to version"
    # What the newest weights sampled is what they say: they have arrived.
    fresh = [line["engine_gap/age0_max"] for line in lines if line["engine_gap/age0_fraction"] > 0]
    assert len(fresh) == STEPS if staleness == 0 else fresh
    assert all(0 < gap < 1e-3 for gap in fresh)
    assert not any(line.get("failure_rate/engine", 0) for line in lines)
