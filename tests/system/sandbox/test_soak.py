"""A small soak of sandboxes in every run of the tests, and what the soak itself would miss.

Mutants of the model, the census and the book that were run and are caught here: token, output,
value, status, truncation or names that are not compared, names that are not settled, `restore`
taken for `fresh`, threads forgotten, an `end` that is none, a copy that shares files or names,
processes or descriptors that are not counted, directories of others that are, wrong quantiles.
"""

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from agentrl.sandbox import ExecResult, SandboxSettings
from agentrl_sandbox import ForkServerPool
from benchmarks.soak import Soak
from benchmarks.soaking import programs
from benchmarks.soaking.census import Census, open_files
from benchmarks.soaking.ground import Book
from benchmarks.soaking.model import Cell, State, wrong_with, wrong_with_names

SESSIONS = 150


@pytest.mark.slow
@pytest.mark.namespaces
async def test_sessions_that_are_treated_badly_do_as_they_should_and_leave_nothing() -> None:
    soak = Soak(sessions=SESSIONS, seed=1, at_once=6)
    await soak.run()
    assert soak.wrongs == []
    assert {kind: found for kind, found in soak.left.items() if found} == {}
    assert soak.opened >= SESSIONS
    assert {"ok", "error", "crash", "timeout", "oom"} <= soak.book.statuses.keys()


@pytest.mark.slow
@pytest.mark.docker
async def test_sessions_in_containers_too() -> None:
    soak = Soak(sessions=20, seed=2, backend="docker", at_once=4)
    await soak.run()
    assert soak.wrongs == []
    assert {kind: found for kind, found in soak.left.items() if found} == {}


@pytest.mark.namespaces
async def test_a_fork_of_a_session_without_interpreter_has_a_place_of_its_own() -> None:
    pool = ForkServerPool(SandboxSettings(), warm=0)
    try:
        original = await pool.open()
        await original.write("mine", b"1")
        assert (await original.exec("import os; os._exit(3)")).status == "crash"
        copy = await original.fork()
        assert (await copy.run(["touch", "command"])).ok
        assert (await copy.exec("open('cell', 'w').close()")).ok
        assert (await original.run(["touch", "original"])).ok
        ours, theirs = await original.entries(), await copy.entries()
        assert {entry.name for entry in ours} == {"mine", "original"}
        assert {entry.name for entry in theirs} == {"mine", "command", "cell"}
    finally:
        await pool.close()


CELL = Cell(kind="x", token="token-1", code="", value="5", stdout="said\n")


@pytest.mark.parametrize(
    ("result", "word"),
    [
        (ExecResult(status="ok", stdout="token-1\nsaid\n", value="5"), ""),
        (ExecResult(status="ok", stdout="token-2\nsaid\n", value="5"), "stdout"),
        (ExecResult(status="ok", stdout="token-1\n", value="5"), "stdout"),
        (ExecResult(status="ok", stdout="token-1\nsaid\n", value="6"), "value"),
        (ExecResult(status="ok", stdout="token-1\nsaid\n", value="5", truncated=True), "truncated"),
        (ExecResult(status="crash", stdout="token-1\nsaid\n", value="5"), "status"),
    ],
)
def test_a_reply_that_is_not_the_one_asked_for_is_noticed(result: ExecResult, word: str) -> None:
    found = " ".join(wrong_with(CELL, result))
    assert word in found
    assert bool(found) is bool(word)


def test_names_are_those_the_model_says() -> None:
    state = State(names=[{"v_a": 1}, {}])
    assert wrong_with_names(state, {"v_a": 2})
    assert not wrong_with_names(state, {})
    assert wrong_with_names(state, {"v_a": 1}), "which of them it is has been settled"


CRASH = Cell(kind="x", token="t", code="", lost=True, statuses=("crash",), sets={"v_lost": 1})


def test_what_follows_a_lost_interpreter() -> None:
    fresh, restored, threaded, ended = (State(names=[{"v_a": 1}]) for _ in range(4))
    threaded.threads = True
    fresh.follow(CRASH, "crash", "fresh")
    restored.follow(CRASH, "crash", "restore")
    threaded.follow(CRASH, "crash", "restore")
    ended.follow(CRASH, "crash", "end")
    assert (fresh.names, restored.names, threaded.names) == ([{}], [{"v_a": 1}], [{}])
    assert [state.over for state in (fresh, restored, threaded, ended)] == [False] * 3 + [True]


def test_a_copy_goes_its_own_way() -> None:
    state = State(names=[{"v_a": 1}], files={"a": b"1"})
    copy = state.copied()
    copy.files["b"] = b"2"
    copy.names.append({})
    assert (state.files, state.names) == ({"a": b"1"}, [{"v_a": 1}])


def test_the_same_seed_makes_the_same_programs() -> None:
    def made(seed: str) -> list[Cell]:
        rng, state = Random(seed), State(files={"a": b"1"})
        return [programs.random_cell(rng, state, "t") for _ in range(50)]

    assert made("a") == made("a")
    assert made("a") != made("b")


def test_the_census_sees_processes_and_descriptors() -> None:
    earlier = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    census = Census(files_before=open_files())
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert child.stdin is not None
    try:
        left = census.left()
        assert [text.split()[0] for text in left["processes"]] == [str(child.pid)]
        assert left["descriptors"]
    finally:
        child.stdin.close()
        child.wait(timeout=10)
    try:
        assert not any(census.left().values()), "who was there before is not ours"
    finally:
        earlier.communicate()


def test_the_census_sees_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from agentrl_sandbox.lease import new_mark

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    census = Census(files_before=open_files())
    (tmp_path / f"agentrl-sandbox-{new_mark()}").mkdir()
    (tmp_path / "agentrl-of-somebody-else").mkdir()
    assert len(census.left()["directories"]) == 1


def test_the_book_knows_quantiles() -> None:
    book = Book()
    for milliseconds in range(1, 101):
        book.took("a", milliseconds / 1e3)
    assert book.count("a") == 100
    assert book.quantile_s("a", 0.5) == pytest.approx(0.05, rel=0.2)
    assert book.quantile_s("a", 1.0) == pytest.approx(0.1, rel=0.2)
    assert book.kinds() == ["a"]
