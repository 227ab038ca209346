"""An environment that breaks in the middle of whole commands: they stop there, with its line."""

from pathlib import Path

import pytest

from tests.support.commands import agentrl

BAD = """
from pathlib import Path
import agentrl
from agentrl.env import BaseEnv, Observation
from agentrl.message import Message


class Bad(BaseEnv):
    def tasks(self, split, *, seed=0):
        first = 1 if split == "train" else 100
        for i in range(first, first + 50):
            yield agentrl.Task(prompt=f"Say {i}.", answer=str(i), id=str(i), split=split)

    async def reset(self, *, seed=None, options=None):
        self.task = options["task"]
        return Observation(self.task.messages, tools=()), {}

    async def step(self, action):
        right = float(action.text == self.task.answer)
        if not right and Path("returns").exists():
            return "no"
        if not right and Path("raises").exists():
            raise KeyError("db")
        return Observation(()), right, True, False, {}

    def gold(self, task, seen):
        return agentrl.say(task.answer)
"""
RUN = """
run: {name: small, steps: 1, threads: 1}
env: {id: "bad_env:Bad"}
policy: {make: {hidden_size: 32, layers: 1, heads: 2, kv_heads: 2, head_dim: 16, vocab_size: 320}}
warmstart: {steps: 1, batch_size: 2, demonstrations: 6, guess_fraction: 0.0}
evaluate: {tasks: 2}
"""


def test_an_environment_that_changes_the_working_directory_moves_no_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    task = 'self.task = options["task"]'
    source = BAD.replace(task, f'{task}\n        os.chdir("{elsewhere}")')
    Path("moving_env.py").write_text(f"import os\n{source}")
    Path("a.yaml").write_text(RUN.replace("bad_env", "moving_env"))
    for command in (("train", "a.yaml"), ("eval", "runs/small", "--out", "kept")):
        code, _, err = agentrl(capsys, *command)
        assert code == 0, err
        monkeypatch.chdir(tmp_path)
    assert not [*elsewhere.iterdir()]
    assert Path("runs/small/checkpoints/step-000001").is_dir()
    assert Path("kept/report.json").is_file()


def test_a_run_whose_evaluation_fails_stops_there_with_the_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad_env.py").write_text(BAD)
    Path("a.yaml").write_text(RUN)
    assert agentrl(capsys, "train", "a.yaml")[0] == 0
    cut = ("engine.context_tokens=40", "sampling.max_turn_tokens=32")
    _, _, err = agentrl(capsys, "eval", "runs/small", *cut)
    said = "2 trajectories were truncated by the context limit; raise engine.context_tokens (40)"
    assert said in " ".join(err.split())
    train, evaluate = ("train", "a.yaml", "run.name=other"), ("eval", "runs/small")
    returned = (
        "step returns (Observation, float, bool, bool, dict): "
        "it returned a str: 'no'; at bad_env.py:18, in step"
    )
    for flag, words, commands in (
        ("raises", "KeyError: 'db'; at bad_env.py:23, in step", (train, evaluate)),
        ("returns", returned, (evaluate,)),
    ):
        Path(flag).touch()
        for command in commands:
            code, _, err = agentrl(capsys, *command)
            assert code == 2
            assert "all 2 trajectories of the evaluation failed (2 x env, mostly: " in err
            assert words in err
            assert "Traceback" not in err
    code, _, err = agentrl(capsys, "check-env", "bad_env:Bad")
    assert code == 2
    assert returned in err
