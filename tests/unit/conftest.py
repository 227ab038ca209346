"""A unit test runs in its own process alone: an audit hook refuses it every other one.

Refused are starting a process and reaching one through a socket. What an event loop makes for
itself (a pair of sockets, threads) is not: it leaves the process by no door.
"""

import _posixsubprocess
import sys
from collections.abc import Callable, Generator
from typing import Any, cast

import pytest

STARTS_A_PROCESS = frozenset(
    {
        "fork_exec",
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.system",
        "pty.spawn",
        "subprocess.Popen",
    }
)
OPENS_A_CONNECTION = frozenset(
    {
        "socket.bind",
        "socket.connect",
        "socket.getaddrinfo",
        "socket.gethostbyaddr",
        "socket.gethostbyname",
        "socket.getnameinfo",
        "socket.sendto",
    }
)

REFUSED = STARTS_A_PROCESS | OPENS_A_CONNECTION


class UnitGuard:
    """Refuses what a unit test must not do, while one runs. An audit hook is never removed."""

    def __init__(self) -> None:
        self._test: str | None = None
        self._refused: list[str] = []

    def begin(self, test: str) -> None:
        self._test = test
        self._refused.clear()

    def end(self) -> None:
        """Fail a test that something was refused to, even if the code under test hid the error."""
        self._test = None
        if self._refused:
            pytest.fail(self._refused[0], pytrace=False)

    def audit(self, event: str, arguments: tuple[object, ...]) -> None:
        """Raise for an event that leaves the process; called for every event of the interpreter."""
        if self._test is None or event not in REFUSED:
            return
        does = "starts a process" if event in STARTS_A_PROCESS else "uses the network"
        error = (
            f"{self._test} is a unit test and {does} ({event}{arguments!r:.200}); a test that does "
            "belongs in tests/system, and in tests/run if it trains"
        )
        self._refused.append(error)
        raise AssertionError(error)


guard = UnitGuard()


def audited(fork_exec: Callable[..., int]) -> Callable[..., int]:
    """Report what multiprocessing starts, which Python does not audit."""

    def fork_exec_audited(*arguments: Any) -> int:
        sys.audit("fork_exec", *arguments[:1])
        return fork_exec(*arguments)

    return fork_exec_audited


def pytest_configure() -> None:
    sys.addaudithook(guard.audit)
    module = cast(Any, _posixsubprocess)
    module.fork_exec = audited(module.fork_exec)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    guard.begin(item.nodeid)
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None]:
    result = yield
    guard.end()
    return result
