"""`examples/tour.ipynb`: its cells run from top to bottom, and it is stored without outputs."""

import ast
import asyncio
import contextlib
import io
import json
import re
from inspect import CO_COROUTINE
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples/tour.ipynb"
CELLS: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def run_cells(names: dict[str, Any]) -> list[str]:
    """Run the code in one namespace, as a notebook does; return what each cell prints."""
    printed: list[str] = []
    for number, cell in enumerate(CELLS):
        if cell["cell_type"] != "code":
            continue
        code = compile(
            "".join(cell["source"]), f"cell {number}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        )
        with contextlib.redirect_stdout(io.StringIO()) as output:
            if code.co_flags & CO_COROUTINE:
                asyncio.run(eval(code, names))
            else:
                exec(code, names)
        printed.append(output.getvalue())
    return printed


def test_it_is_stored_without_outputs() -> None:
    for cell in CELLS:
        if cell["cell_type"] == "code":
            assert not cell["outputs"]
            assert cell["execution_count"] is None


def test_links_lead_somewhere() -> None:
    text = "".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 3
    for link in links:
        assert (NOTEBOOK.parent / link).is_file(), link


@pytest.mark.slow
def test_its_cells_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, episode, promises, run, rewards, tree, scores = run_cells({"__name__": "tour"})
    assert "reward: 1.0" in episode
    assert "ok gold scores" in promises
    assert run == "runs/till 5 steps\n"
    assert len(re.findall(r"^reward \d\.\d\d", rewards, re.MULTILINE)) == 5
    assert re.search(r"rollout 0, reward [01]\.0\n   prompt +\d+ tokens\n   sampled +\d+", tree)
    assert "in 8 rollouts" in tree
    assert re.search(r"95 % interval 0\.\d\d to [01]\.\d\d, 50 tasks", scores)
