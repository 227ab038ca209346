"""A run whose limits of length are on a schedule."""

from pathlib import Path

from agentrl.metrics.writer import read_metrics
from agentrl.run.train import train
from tests.support.tiny_run import config_file


def test_a_run_has_the_caps_of_its_steps(tmp_path: Path) -> None:
    keys = {
        "rollout.schedule.wave": "stair",
        "rollout.schedule.period_steps": 2,
        "rollout.schedule.min_turn_tokens": 2,
        "rollout.schedule.min_turns": 1,
    }
    train(config_file(tmp_path), keys)
    lines = read_metrics(tmp_path / "runs" / "tiny")
    assert [(line["caps/turn_tokens"], line["caps/turns"]) for line in lines] == [
        (2, 1),
        (24, 3),
        (2, 1),
        (24, 3),
    ]
    for line in lines[::2]:
        assert line["lengths/turns_mean"] == 1
        assert line["lengths/sampled_max"] <= 2
    assert max(line["lengths/sampled_max"] for line in lines[1::2]) > 2
