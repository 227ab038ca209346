"""`check_sandbox`: a sandbox's promises, proven on yours; and one that needs no kernel."""

import contextlib
import shlex
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

from agentrl.errors import SandboxError
from agentrl.sandbox import ExecResult, ExecStatus, FileEntry, RunResult, Sandbox, SandboxPool
from agentrl.testing.leaks import ProcessHoldings, check_no_leak
from agentrl.testing.promises import PromiseCheck

_LOOP_S = 0.5
_FLOOD_BYTES = 2**20


async def check_sandbox(pool: SandboxPool) -> tuple[str, ...]:
    """Prove a pool's promises and return them. The pool is closed at the end.

    Args:
        pool: A pool that runs code and has opened nothing yet.

    Returns:
        The promises that were proven, in words, such as `output is bounded`.

    Raises:
        CheckError: A promise is broken; the text begins with it.
        SandboxError: The sandbox broke.
    """
    before = ProcessHoldings.take()
    check = _Check(pool=pool)
    try:
        await check.run()
    finally:
        await pool.close()
    await pool.close()
    await check_no_leak(before)
    return (*check.proven, "nothing is left after close")


@dataclass(slots=True, kw_only=True)
class _Check(PromiseCheck):
    pool: SandboxPool

    async def run(self) -> None:
        one, other = await self.pool.open(), await self.pool.open()
        whole = isinstance(one, Sandbox)  # pyright: ignore[reportUnnecessaryIsInstance]
        self.expect(whole, "a session is an agentrl.Sandbox", f"got {type(one).__name__}")
        await self.check_cells(one)
        await self.check_errors(one)
        await self.check_files(one)
        await self.check_commands(one)
        await self.check_apart(one, other)
        await self.check_fork(one)
        await self.check_stopped(other)
        await self.check_close(one, other)

    async def check_cells(self, session: Sandbox) -> None:
        await self.check_value(session, "x = 41", None, "an assignment echoes nothing")
        await self.check_value(
            session, "x + 1", "42", "names live on, the last expression is echoed"
        )
        code = "import sys\nprint('to out')\nprint('to err', file=sys.stderr)"
        result = await session.exec(code)
        got = (result.stdout, result.stderr, result.truncated)
        want = ("to out\n", "to err\n", False)
        self.expect(got == want, "stdout and stderr are kept apart", f"got {got}")
        result = await session.exec(f"print('a' * {_FLOOD_BYTES})")
        bounded = result.truncated and len(result.stdout) < _FLOOD_BYTES
        self.expect(bounded, "output is bounded", f"{len(result.stdout)} characters came back")

    async def check_errors(self, session: Sandbox) -> None:
        for code, word in (
            ("1 / 0", "ZeroDivisionError"),
            ("def", "SyntaxError"),
            ("import sys; sys.exit(0)", "SystemExit"),
        ):
            result = await session.exec(code)
            is_error = result.status == "error" and word in (result.error or "")
            self.expect(is_error, "an exception is a result", f"{code!r} gave {result}")
        await self.check_value(session, "x", "41", "an exception costs no names")

    async def check_files(self, session: Sandbox) -> None:
        data = bytes(range(256))
        await session.write("data/in.bin", data)
        back = await session.read("data/in.bin")
        self.expect(back == data, "a file comes back as written", f"{len(back)} bytes differ")
        code = "open('out.txt', 'w').write(str(len(open('data/in.bin', 'rb').read())))"
        await self.check_value(session, code, "3", "the code sees the session's files")
        text = await session.read("out.txt")
        self.expect(text == b"256", "files of the code can be read", f"got {text!r}")
        await session.exec("import os\nos.symlink('/etc/passwd', 'link')")
        refused = "a path does not leave the directory"
        for path in ("../x", "/etc/passwd", "data/../../x", "link"):
            await self.check_raise(session.read(path), PermissionError, refused)
            await self.check_raise(session.write(path, b""), PermissionError, refused)
        missing = "a missing file is FileNotFoundError"
        await self.check_raise(session.read("nothing"), FileNotFoundError, missing)

    async def check_commands(self, session: Sandbox) -> None:
        result = await session.run(
            ["sh", "-c", 'cat; echo "$NAME" >&2; exit 3'], stdin=b"in", env={"NAME": "value"}
        )
        got = (result.status, result.exit_code, result.stdout, result.stderr)
        want = ("ok", 3, "in", "value\n")
        self.expect(
            got == want, "a command has input, environment, output, exit code", f"got {got}"
        )
        result = await session.run(["cat", "in.bin"], cwd="data")
        self.expect(result.ok, "a command runs where it is told to", f"got {result}")
        result = await session.run(["sh", "-c", "sleep 60 & sleep 60"], timeout_s=_LOOP_S)
        self.expect(result.status == "timeout", "a command has a deadline", f"got {result}")
        await self.check_value(session, "x", "41", "a command's end costs the interpreter nothing")
        result = await session.run(["no-such-program"])
        is_error = result.status == "error" and "no-such-program" in (result.error or "")
        self.expect(is_error, "a program that is missing is a result", f"got {result}")
        names = {entry.name: entry.kind for entry in await session.entries()}
        kinds = (names.get("data"), names.get("out.txt"), names.get("link"))
        self.expect(
            kinds == ("directory", "file", "link"), "a directory can be listed", f"got {names}"
        )

    async def check_apart(self, one: Sandbox, other: Sandbox) -> None:
        result = await other.exec("x")
        unknown = "NameError" in (result.error or "")
        self.expect(unknown, "sessions share no names", f"got {result}")
        await self.check_raise(other.read("out.txt"), FileNotFoundError, "sessions share no files")
        await self.check_value(one, "x", "41", "sessions share no names")

    async def check_fork(self, session: Sandbox) -> None:
        copy = await session.fork()
        await self.check_value(copy, "x += 1; x", "42", "a fork has the names")
        await self.check_value(copy, "open('out.txt').read()", "'256'", "a fork has the files")
        await copy.exec("open('out.txt', 'w').write('changed')")
        await self.check_value(session, "x", "41", "forks do not interfere")
        text = await session.read("out.txt")
        self.expect(text == b"256", "forks do not interfere", f"the original's file is {text!r}")
        twin = await copy.fork()
        await copy.close()
        await self.check_value(twin, "x", "42", "a fork outlives what it was made from")
        await twin.close()

    async def check_stopped(self, session: Sandbox) -> None:
        """The interpreter is lost in every way there is, and the next cell does not notice."""
        ways: tuple[tuple[str, ExecStatus], ...] = (
            ("while True: pass", "timeout"),
            ("import time; time.sleep(60)", "timeout"),
            ("import os; os._exit(0)", "crash"),
            ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crash"),
            ("b = bytearray(2**50)", "oom"),
        )
        for number, (code, want) in enumerate(ways):
            limit_s = _LOOP_S if want == "timeout" else None
            result = await session.exec(code, timeout_s=limit_s)
            what = f"{code!r} gave {result}"
            self.expect(result.status == want, f"{want} is a result", what)
            self.expect(bool(result.error), f"{want} is explained", what)
            await self.check_value(
                session, f"{number} + 100", f"{number + 100}", f"usable after {want}"
            )

    async def check_close(self, one: Sandbox, other: Sandbox) -> None:
        await one.close()
        await one.close()
        await self.check_raise(one.exec("1"), SandboxError, "a closed session refuses")
        await self.check_value(other, "7", "7", "closing a session touches no other")

    async def check_value(
        self, session: Sandbox, code: str, want: str | None, promise: str
    ) -> None:
        result = await session.exec(code)
        good = result.ok and result.value == want
        self.expect(good, promise, f"{code!r} gave {result}, expected value {want!r}")

    async def check_raise(
        self, call: Awaitable[object], kind: type[Exception], promise: str
    ) -> None:
        raised = True
        with contextlib.suppress(kind):
            await call
            raised = False
        self.expect(raised, promise, f"no {kind.__name__} was raised")


class ScriptedSandbox:
    """A `Sandbox` that runs nothing: it looks each cell up, and keeps files in a dictionary.

    Args:
        answers: Results by the code of their cell.
        commands: Results by their command line, quoted as for a shell.
    """

    def __init__(
        self,
        answers: Mapping[str, ExecResult],
        commands: Mapping[str, RunResult] = MappingProxyType({}),
    ) -> None:
        self._answers = answers
        self._commands = commands
        self.cells: list[str] = []
        """Every cell so far, those before a fork included."""
        self.files: dict[str, bytes] = {}
        """Content of every file by its path."""
        self.closed = False
        """Whether it was closed."""

    async def exec(self, code: str, *, timeout_s: float | None = None) -> ExecResult:
        """Return the answer for `code`; a cell without one is a result of status `error`.

        Raises:
            SandboxError: The session is closed.
        """
        self._check_open()
        self.cells.append(code)
        unknown = ExecResult(status="error", error=f"LookupError: no answer for {code!r}")
        return self._answers.get(code, unknown)

    async def run(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = ".",
        timeout_s: float | None = None,
    ) -> RunResult:
        """Return the answer for `command`; one without is a result of status `error`.

        Raises:
            SandboxError: The session is closed.
        """
        self._check_open()
        line = shlex.join(command)
        return self._commands.get(line, RunResult(status="error", error=f"no answer for {line!r}"))

    async def entries(self, path: str = ".") -> tuple[FileEntry, ...]:
        """Return the entries of a directory, derived from the kept files.

        Raises:
            FileNotFoundError: No kept file lies below the directory.
            PermissionError: The path leaves the session's directory.
            SandboxError: The session is closed.
        """
        self._check_open()
        above = "" if path in ("", ".") else f"{_check_inside(path).rstrip('/')}/"
        found: dict[str, FileEntry] = {}
        for name, data in self.files.items():
            if name.startswith(above):
                first, _, below = name.removeprefix(above).partition("/")
                found[first] = (
                    FileEntry(name=first, kind="directory")
                    if below
                    else FileEntry(name=first, kind="file", size_bytes=len(data))
                )
        if above and not found:
            raise FileNotFoundError(f"no directory {path!r}")
        return tuple(found[name] for name in sorted(found))

    async def write(self, path: str, data: bytes) -> None:
        """Keep a file.

        Raises:
            PermissionError: The path leaves the session's directory.
            SandboxError: The session is closed.
        """
        self._check_open()
        self.files[_check_inside(path)] = data

    async def read(self, path: str) -> bytes:
        """Return the content of a kept file.

        Raises:
            FileNotFoundError: No such file was kept.
            PermissionError: The path leaves the session's directory.
            SandboxError: The session is closed.
        """
        self._check_open()
        if _check_inside(path) not in self.files:
            raise FileNotFoundError(f"no file {path!r}")
        return self.files[path]

    async def fork(self) -> Self:
        """Return a copy, with its own cells and files.

        Raises:
            SandboxError: The session is closed.
        """
        self._check_open()
        copy = type(self)(self._answers, self._commands)
        copy.cells, copy.files = [*self.cells], {**self.files}
        return copy

    async def close(self) -> None:
        """Refuse everything from here on."""
        self.closed = True

    def _check_open(self) -> None:
        if self.closed:
            raise SandboxError("this session is closed; open another one")


class InMemorySandboxPool:
    """A `SandboxPool` of scripted sessions, for tests of what uses sandboxes.

    Args:
        answers: Results by the code of their cell.
        commands: Results by their command line, quoted as for a shell.
    """

    def __init__(
        self,
        answers: Mapping[str, ExecResult],
        commands: Mapping[str, RunResult] = MappingProxyType({}),
    ) -> None:
        self._answers = answers
        self._commands = commands
        self.sessions: list[ScriptedSandbox] = []
        """Every session in the order in which they were opened, forks left out."""
        self.closed = False
        """Whether it was closed."""

    async def open(self) -> ScriptedSandbox:
        """Return a fresh session, without files.

        Raises:
            SandboxError: The pool is closed.
        """
        if self.closed:
            raise SandboxError("this sandbox pool is closed; open another one")
        self.sessions.append(ScriptedSandbox(self._answers, self._commands))
        return self.sessions[-1]

    async def close(self) -> None:
        """Close every session that it opened."""
        self.closed = True
        for session in self.sessions:
            await session.close()


def _check_inside(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/"):
        raise PermissionError(f"{path!r} leaves the session's directory; give a relative path")
    return path
