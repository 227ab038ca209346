"""Answers of mathematics, judged by math-verify in processes that can be killed."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.env import say
from agentrl.errors import VerifierError
from agentrl.message import Message
from agentrl.task import Task
from agentrl_envs.dataset import DatasetEnv
from agentrl_envs.dataset.math_reward import MathReward, make_pool
from tests.support.foreign_packages import BENCH

pytestmark = pytest.mark.math_verify


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH / "math_verify")


@pytest.fixture
async def reward() -> AsyncIterator[MathReward]:
    reward = MathReward()
    yield reward
    await reward.close()


@pytest.mark.parametrize(
    ("reference", "answer", "pays"),
    [
        ("1/2", "\\boxed{0.5}", 1.0),
        ("\\frac{1}{2}", "It is $\\frac{2}{4}$.", 1.0),
        ("0.333", "\\boxed{\\frac13}", 0.0),
        ("x^2 + 2x + 1", "Answer: $(x+1)^2$", 1.0),
        ("\\{1, 2\\}", "\\boxed{\\{2, 1\\}}", 1.0),
        ("(1, 2)", "\\boxed{(2, 1)}", 0.0),
        ("so 4 are left\n#### 4", "#### 4.0", 1.0),
        ("4", "\\boxed{4} or \\boxed{5}", 0.0),
        ("4", "I do not know", 0.0),
        ("4", "", 0.0),
        ("4", "\\boxed{" + "1+" * 2_000 + "1}", 0.0),
        ("4", "\\boxed{\\frac{1}{0}}", 0.0),
    ],
)
async def test_equal_answers_are_paid(
    reward: MathReward, reference: str, answer: str, pays: float
) -> None:
    task = Task(prompt="Q", answer=reference)
    assert await reward(task, (Message("assistant", answer),)) == pays


async def test_what_gives_no_verdict_is_a_failure(reward: MathReward) -> None:
    task = Task(prompt="Q", answer="\\text{}")
    with pytest.raises(
        VerifierError, match=r"math-verify, on an answer .* is nothing that math-verify can read"
    ):
        await reward(task, (Message("assistant", "\\boxed{4}"),))
    assert await reward(Task(prompt="Q", answer="4"), (Message("assistant", "2+2"),)) == 1.0


async def test_a_late_verdict_is_killed() -> None:
    pool = make_pool(verdict_cpu_s=0.5)
    endless = {"references": ["x^{99999}+1"], "answer": "(x+1)^{99999}"}
    try:
        with pytest.raises(VerifierError, match="it: took more processor time"):
            await pool.ask(endless, "it")
        assert await pool.ask({"references": ["4"], "answer": "2+2"}, "it") == 1.0
    finally:
        await pool.close()


async def test_an_environment_pays_by_it(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"prompt": f"{n}/4?", "answer": f"{n}/4"} for n in range(30)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    env = DatasetEnv(path=str(tmp_path / "a.jsonl"), reward="math", heldout_fraction=0.5)
    task = next(task for task in env.tasks("train") if task.answer != "0/4")
    number = int(task.answer.partition("/")[0])
    await env.reset(options={"task": task})
    _, paid, _, _, info = await env.step(say(f"\\boxed{{{number * 0.25}}}"))
    assert (paid, info["reward_components"]) == (1.0, {"math": 1.0})
    await env.close()
