"""docs/security.md says what the table of attacks says; the host reads JSON and nothing else."""

import ast
from pathlib import Path

import pytest

from tests.system.security.attack import BACKENDS, ISOLATING
from tests.system.security.table import ATTACKS, BEGIN, DOCUMENT, END, markdown

UNSAFE = {"pickle", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"}
"""Modules that run code when they read data."""


def test_the_document_has_the_table() -> None:
    _, _, rest = DOCUMENT.read_text().partition(BEGIN)
    table, end, _ = rest.partition(END)
    assert end, f"no {END!r} in {DOCUMENT.name}"
    assert table.strip() == markdown().strip(), "run: python -m tests.system.security.table"


def test_the_table_is_whole() -> None:
    names = [attack.name for attack in ATTACKS]
    assert len(names) == len(set(names)) > 75
    for attack in ATTACKS:
        assert set(attack.gaps) <= set(BACKENDS)
        assert attack.code, f"{attack.name} has no program"
        assert attack.title
        assert attack.held_by


def test_what_isolates_contains_nearly_everything() -> None:
    """A gap of a back-end that isolates is a decision, and is listed here."""
    gaps = {(b, a.name) for a in ATTACKS for b in a.gaps if b != "process"}
    names = (
        "memory-of-a-tree",
        "memory-in-sockets",
        "kill-the-original-in-a-crowd",
        "kill-the-last-in-a-crowd",
        "kill-a-twin-in-a-crowd",
        "kill-by-disarmed-copies",
    )
    assert gaps == {(backend, name) for backend in ISOLATING for name in names}


def test_keepers_wait_without_epoll(root: Path) -> None:
    """Its watches count per user: one session could use up those of all keepers."""
    for file in (root / "sandbox/agentrl_sandbox/inside").glob("*.py"):
        names = {
            node.attr
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Attribute)
        }
        assert not names & {"DefaultSelector", "EpollSelector", "epoll"}, file


@pytest.mark.parametrize("package", ["sandbox/agentrl_sandbox", "tools/agentrl_tools"])
def test_nothing_that_reads_from_a_session_unpickles(root: Path, package: str) -> None:
    files = list((root / package).rglob("*.py"))
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            unsafe = UNSAFE & {name.partition(".")[0] for name in names}
            assert not unsafe, f"{file} imports {sorted(unsafe)}"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                name = f"{node.value.id}.{node.attr}"
                assert name not in ("marshal.load", "marshal.loads"), f"{file} calls {name}"
            called = node.func if isinstance(node, ast.Call) else None
            computed = isinstance(called, ast.Name) and called.id in ("eval", "exec")
            assert not computed or "inside" in file.parts, f"{file} evaluates text"


def test_the_contracts_read_no_pickle_either(root: Path) -> None:
    for name in ("sandbox.py", "tool.py", "env.py"):
        source = (root / "agentrl" / name).read_text()
        assert not any(f"import {module}" in source for module in UNSAFE)
