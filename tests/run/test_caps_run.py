"""A run whose limits of length are on a schedule, or grow."""

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


def test_limits_grow_while_turns_are_cut_and_a_run_that_goes_on_keeps_them(tmp_path: Path) -> None:
    keys = {
        "rollout.growth": {"turn_tokens": 2, "turns": 1, "factor": 2.0},
        "store": None,
        "warmstart.steps": 2,
        "evaluate.tasks": 2,
    }
    path = config_file(tmp_path)
    train(path, keys | {"run.name": "whole"})
    train(path, keys | {"run.steps": 2})
    train(path, keys, resume=True)
    found = [
        [
            (line["caps/turn_tokens"], line["caps/turns"], line["lengths/sampled_max"])
            for line in lines
        ]
        for lines in (read_metrics(tmp_path / "runs" / name) for name in ("whole", "tiny"))
    ]
    assert [caps[:2] for caps in found[0]] == [(2, 1), (4, 2), (8, 3), (16, 3)]
    assert found[1] == found[0]
