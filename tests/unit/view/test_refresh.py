"""A run that begins, is replaced, is removed, or is not whole while it is viewed.

Mutants seen caught: the store opened once and for all; rows of the run before kept; a folder that
is gone shown as it was; the vocabulary sought once; NaN left to the encoder.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ConfigError
from agentrl.view.document import dump
from agentrl.view.group_choice import StepRange
from agentrl.view.run_reader import RunReader
from agentrl.view.run_status import RunMonitor
from agentrl.view.serve import LiveRun
from benchmarks.made_run import MadeRun


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MadeRun(folder=tmp_path_factory.mktemp("runs") / "made", groups=4, size=2).make()


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


@pytest.fixture
def live(run: Path) -> Iterator[LiveRun]:
    with RunReader(run, environ={}) as source:
        yield LiveRun(source, steps=StepRange())


def index_of(live: LiveRun) -> dict[str, Any]:
    return json.loads(live.index())


def test_a_run_is_followed_from_before_its_first_record(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(made / "config.yaml", folder)
    with RunReader(folder, environ={}) as source:
        live, monitor = LiveRun(source, steps=StepRange()), RunMonitor(source)
        assert (index_of(live)["groups"]["id"], monitor.look(now_s=0).groups) == ([], {})
        shutil.copytree(made / "store", folder / "store")
        assert monitor.look(now_s=1).groups == {"trained": 4}
        assert index_of(live)["groups"]["id"] == [0, 1, 2, 3]
        assert not index_of(live)["run"]["hasTokenizer"]
        shutil.copytree(made / "policy", folder / "policy")
        assert index_of(live)["run"]["hasTokenizer"]
        assert source.openings == 2


def test_a_run_in_the_place_of_another_is_shown_alone(run: Path, live: LiveRun) -> None:
    old = index_of(live)["trajectories"]["tokens"][0]
    shutil.rmtree(run)
    with pytest.raises(ConfigError, match="is not a run folder"):
        live.index()
    with pytest.raises(ConfigError, match="is not a run folder"):
        live.story(0)
    MadeRun(folder=run, groups=6, size=2, said="Anew. ").make()
    index = index_of(live)
    assert (len(index["groups"]["id"]), index["run"]["openings"]) == (6, 2)
    assert index["trajectories"]["tokens"][0] < old
    assert "Anew" in (live.story(0) or "")


def test_a_run_that_goes_on_is_not_opened_again(run: Path, live: LiveRun) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "time": 3.0}\n')
    assert index_of(live)["metrics"]["step"] == [1, 2]
    assert index_of(live)["run"]["openings"] == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"run: {name: ma", "not valid YAML"),
        (b"run: {name: \xff}", "UTF-8"),
        (b"run: 3", "run is 3, expected its settings"),
        (b"- run", "expected a mapping of keys"),
    ],
)
def test_a_config_that_is_none_is_named(run: Path, text: bytes, words: str) -> None:
    (run / "config.yaml").write_bytes(text)
    with pytest.raises(ConfigError, match=words):
        RunReader(run, environ={})


@pytest.mark.parametrize(
    ("file", "text", "has_tokenizer", "advantage"),
    [
        ("policy/tokenizer.json", b'{"model": {', False, True),
        ("policy/tokenizer.json", b"[]", False, True),
        ("credit/00000001.credit", b"\0" * 40, True, False),
    ],
)
def test_a_file_that_is_not_whole_costs_what_is_in_it_alone(
    run: Path, file: str, text: bytes, has_tokenizer: bool, advantage: bool
) -> None:
    (run / file).write_bytes(text)
    with RunReader(run, environ={}) as source:
        index = index_of(LiveRun(source, steps=StepRange()))
    assert index["run"]["hasTokenizer"] is has_tokenizer
    assert (index["trajectories"]["advantage"][0] is not None) is advantage
    assert index["trajectories"]["reward"][:2] == [0, 1]


def test_a_number_that_is_not_finite_is_null() -> None:
    value = {"a": [1.5, float("nan"), (float("inf"),)], "b": {"c": -float("inf"), "d": "NaN"}}
    assert json.loads(dump(value)) == {"a": [1.5, None, [None]], "b": {"c": None, "d": "NaN"}}
