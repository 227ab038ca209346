"""The id of the run that is going on: every process, container and directory it makes carries it.

A training run's id is its name and a random part, so that two starts of one config, or a run and
its continuation, are told apart. Outside a run there is one id per process.
"""

import os
import re
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

_RULE = re.compile(r"[\w.-]{1,128}")

_run_id: ContextVar[str] = ContextVar("run_id")


def new_run_id(name: str) -> str:
    """Return an id for a run of some name; never the same twice."""
    return f"{name[:100]}-{secrets.token_hex(4)}"


@contextmanager
def using_run_id(value: str) -> Generator[None]:
    """Let everything made inside the block carry `value`; `ValueError` for one that is no id."""
    if not _RULE.fullmatch(value):
        raise ValueError(
            f"{value!r} is not a run id, which has 1 to 128 letters, digits, '.', '-' and '_'; "
            "create one with new_run_id(name)"
        )
    token = _run_id.set(value)
    try:
        yield
    finally:
        _run_id.reset(token)


def run_id() -> str:
    """Return the id in force, or this process's own."""
    return _run_id.get(None) or _make_process_id(os.getpid())


@cache
def _make_process_id(pid: int) -> str:
    """Return the id of a process; a forked one asks for its own."""
    return new_run_id(f"process-{pid}")
