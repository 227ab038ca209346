"""Rows of parquet, read where pyarrow is: five lines of a config.

Mutants seen caught: a picture that is kept among the values, which no JSON holds.
"""

from datetime import date
from pathlib import Path

import pytest
import yaml

from agentrl.authoring.gold import play_gold
from agentrl.registry import make
from agentrl_envs.dataset.rows import read_rows
from tests.support.foreign_packages import BENCH

pytestmark = pytest.mark.pyarrow


async def test_a_parquet_file_is_an_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCH / "pyarrow")
    monkeypatch.chdir(tmp_path)
    import pyarrow  # pyright: ignore[reportMissingImports]
    from pyarrow import parquet  # pyright: ignore[reportMissingImports]

    chats = [[{"role": "user", "content": f"{n} + {n}?"}] for n in range(40)]
    answers = [2 * n for n in range(40)]
    columns = {"chat": chats, "sum": answers, "day": [date(2026, 1, 2)] * 40, "png": [b"x"] * 40}
    parquet.write_table(pyarrow.table(columns), "tasks.parquet")
    assert read_rows("tasks.parquet")[1].values == {
        "chat": chats[1],
        "sum": 2,
        "day": "2026-01-02",
    }
    section = yaml.safe_load(
        """
        id: dataset
        kwargs: {path: tasks.parquet, prompt: chat, answer: sum, heldout_fraction: 0.3}
        """
    )
    env = make(section["id"], **section["kwargs"])
    task = next(iter(env.tasks("heldout")))
    assert (await play_gold(env, task)).reward == 1.0
    await env.close()
