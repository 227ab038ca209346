"""Our side of a host: a process of another interpreter that plays episodes for us."""

import asyncio
import contextlib
import json
import logging
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO, Any, Literal, Self, cast

from agentrl.errors import ConfigError, EnvError
from agentrl.runtime.json_limits import JsonLimitError, JsonLimits, read_json
from agentrl.runtime.scope import shared
from agentrl_sandbox.host_process import HostProcess, LineTooLong
from agentrl_sandbox.lease import ResourceLease, new_mark

_log = logging.getLogger(__name__)
HOSTED = Path(__file__).parent / "hosted"
ANSWER_LIMITS = JsonLimits(text_bytes=2**26, values=300_000)
"""Of what an environment answers: an image in base64, or as many numbers as a small one has."""
_NUMBERED = re.compile(rb'\{"id": (\d{1,15}),')
Kind = Literal["gem", "gymnasium", "inspect", "math", "openenv", "reasoning", "verifiers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryLocation:
    """Location of a library, and the part of this machine that it sees."""

    kind: Kind
    python: str
    """The interpreter that has the library."""
    path: tuple[str, ...] = ()
    """Folders with modules of the user's own."""
    imports: tuple[str, ...] = ()
    """Modules that it imports once, before any episode."""
    pass_env: tuple[str, ...] = ()
    """Names of our variables that it gets; it sees no others."""
    start_timeout_s: float = field(default=120.0, compare=False)

    @property
    def command(self) -> tuple[str, ...]:
        """Command that starts a host there."""
        kind = HOSTED / f"{self.kind}_kind.py"
        return (self.python, "-u", str(HOSTED / "host.py"), str(kind), self.setup)

    @property
    def setup(self) -> str:
        """Setup of a host, as JSON."""
        return json.dumps({"path": self.path, "imports": self.imports})

    @property
    def env(self) -> dict[str, str]:
        """Return the variables of the host; `ConfigError` for one that is not set."""
        if missing := [name for name in self.pass_env if name not in os.environ]:
            raise ConfigError(
                f"the variable {missing[0]} is to be passed to a host of {self.kind} but is not "
                "set; set it, or remove it from pass_env"
            )
        # Libraries take it for granted that there is one.
        return {"PATH": os.defpath} | {name: os.environ[name] for name in self.pass_env}


class LibraryHost:
    """One process with many episodes, each a process forked from it. Made by `start`.

    Every request has a number, and an answer that nobody waits for any more is dropped: an episode
    that missed a deadline is killed and never asked again.
    """

    def __init__(self, place: LibraryLocation, process: HostProcess) -> None:
        self._place = place
        self._process = process
        self._numbers = count(1)
        self._sessions = count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._broken = ""
        self._warnings: set[str] = set()
        self._ready: asyncio.Future[Any] = self._expect(0)
        self._listening = asyncio.create_task(self._listen(), name="agentrl-host")

    @classmethod
    async def start(cls, place: LibraryLocation) -> Self:
        """Start a host and wait until it has imported its library.

        Raises `ConfigError` where that cannot be imported, `EnvError` for a missed deadline and for
        a host that a signal has ended.
        """
        host = cls(place, await HostProcess.start(place.command, env=place.env))
        try:
            async with asyncio.timeout(place.start_timeout_s):
                await host._ready
        except TimeoutError as error:
            await host.close()
            late = f"{place.python} did not import {place.kind} in {place.start_timeout_s:g} s"
            raise EnvError(late) from error
        except HostError as error:
            await host.close()
            if (host._process.returncode or 0) < 0:
                raise EnvError(f"{place.kind}: {error}") from error
            raise ConfigError(
                f"{place.python} cannot host {place.kind}: {error}; install it there, or set "
                "`python` to another interpreter"
            ) from error
        except BaseException:
            await host.close()
            raise
        return host

    @property
    def is_open(self) -> bool:
        """Return whether it can be asked."""
        return not (self._broken or self._listening.done())

    def new_session(self) -> int:
        """Return a number no episode has had."""
        return next(self._sessions)

    async def ask(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        timeout_s: float | None,
        session: int,
        grace_s: float = 0.0,
    ) -> Any:
        """Return the library's answer.

        Raises `EnvError` for what it raised, for a missed deadline and for a host that is gone. A
        session that misses a deadline, or whose caller is cancelled, is killed, `grace_s` after it
        was told to end.
        """
        number = next(self._numbers)
        answer = self._expect(number)
        request = {"id": number, "session": session, "method": method, "params": dict(params)}
        try:
            async with asyncio.timeout(timeout_s):
                await self._tell(request)
                return await answer
        except TimeoutError as error:
            await self.kill(session)
            raise EnvError(
                f"{self._place.kind}: {method} took more than {timeout_s:g} s"
            ) from error
        except asyncio.CancelledError:
            await self._end(session, grace_s)
            raise
        except HostError as error:
            raise EnvError(f"{self._place.kind}: {method}: {error}") from error
        finally:
            self._waiting.pop(number, None)

    def warn_once(self, text: str) -> None:
        """Log a warning that the episodes of this host have in common."""
        if text not in self._warnings:
            self._warnings.add(text)
            _log.warning("%s", text)

    async def kill(self, session: int) -> None:
        """End an episode's process at once, whatever it does."""
        with contextlib.suppress(HostError):
            await self._tell({"session": session, "method": "kill"})

    async def _end(self, session: int, grace_s: float) -> None:
        """Tell an episode's process to end, and kill it if it does not end in time."""
        if grace_s > 0:
            # Its answer is gone with the request that was cancelled; this one says that it ended.
            number = next(self._numbers)
            ending = self._expect(number)
            with contextlib.suppress(HostError, TimeoutError):
                await self._tell({"session": session, "method": "end"})
                await self._tell({"id": number, "session": session, "method": "alive"})
                async with asyncio.timeout(grace_s):
                    await ending
            self._waiting.pop(number, None)
        await self.kill(session)

    async def close(self) -> None:
        """End the host and every episode. Idempotent."""
        self._broken = self._broken or "it was closed"
        await self._process.close()
        self._listening.cancel()
        await asyncio.wait([self._listening])
        self._fail(self._broken)

    def _expect(self, number: int) -> "asyncio.Future[Any]":
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        return answer

    async def _tell(self, message: Mapping[str, Any]) -> None:
        if not self.is_open:
            raise HostError(f"its host is gone: {self._broken}")
        try:
            await self._process.write(json.dumps(message).encode())
        except OSError as error:
            raise HostError(f"its host is gone: {error}") from error

    async def _listen(self) -> None:
        try:
            while (line := await self._process.read()) is not None:
                self._hear(_parse_answer(line))
            await self._process.wait_end(1.0)
            code, words = self._process.returncode, self._process.last_words[-400:]
            self._fail(f"the host ended with code {code}; on stderr: {words}")
        except (ValueError, KeyError, LineTooLong) as error:
            self._fail(f"the host broke the protocol: {error}")

    def _hear(self, message: Mapping[str, Any]) -> None:
        answer = None if "gone" in message else self._waiting.get(message["id"])
        if answer is None or answer.done():
            return
        if (error := message.get("error")) is not None:
            answer.set_exception(HostError(error))
        else:
            answer.set_result(message["result"])

    def _fail(self, why: str) -> None:
        self._broken = self._broken or why
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(HostError(why))


def _parse_answer(line: bytes) -> Mapping[str, Any]:
    """Read a host's answer; one beyond the limits is an error of that episode alone."""
    try:
        return read_json(line, ANSWER_LIMITS)
    except JsonLimitError as error:
        if (numbered := _NUMBERED.match(line)) is None:
            raise
        return {"id": int(numbered[1]), "error": f"its answer cannot be read: {error}"}


def ask_library(
    place: LibraryLocation, params: Mapping[str, Any], limits: JsonLimits, *, what: str
) -> Any:
    """Return the answer of a host that ends with it, outside of any episode, with all it started.

    Raises `ConfigError` for `what` cannot be read.
    """
    line = json.dumps({"id": 1, "method": "ask", "params": dict(params)})
    lease = ResourceLease.take("process", new_mark())
    # Files, since a process that the library leaves behind would hold pipes open.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            subprocess.run(
                place.command,
                input=f"{line}\n".encode(),
                env={**place.env, **lease.environ},
                stdout=out,
                stderr=err,
                timeout=place.start_timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            out.seek(0)
            # The first line says that the library is imported.
            stage = "had not answered, having imported" if out.read(1) else "was still importing"
            raise ConfigError(
                f"{what} cannot be read: after {place.start_timeout_s:g} s {place.python} {stage} "
                f"{place.kind}; find out where it hangs, or raise start_timeout_s"
            ) from error
        except OSError as error:
            raise ConfigError(f"{what} cannot be read: {error}") from error
        finally:
            lease.clear()
        out.seek(0)
        lines = out.read().splitlines()
        tail = _read_end(err, 400)
    where = f"{what} cannot be read with {place.python}"
    if not lines:
        raise ConfigError(f"{where}: {tail}")
    try:
        answer = read_json(lines[-1], limits)
    except JsonLimitError as error:
        raise ConfigError(f"{where}: {error}") from error
    response = cast("dict[str, Any]", answer if isinstance(answer, dict) else {"error": answer})
    # The last line of a host that died is that it was ready, without a result.
    if (result := response.get("result")) is None:
        reason = str(response.get("error") or f"its host ended: {tail}")
        raise ConfigError(f"{where}: {reason}{_advise(reason)}")
    return result


def _advise(reason: str) -> str:
    """Return the way out of an error of a library's own, where its cause is a setting."""
    if reason.startswith("ModuleNotFoundError"):
        return "; set python in env.kwargs to the interpreter of a venv that has the package"
    if reason.startswith("NamespaceNotFound"):
        return " Set imports in env.kwargs to the modules that register it."
    return ""


def _read_end(file: IO[bytes], most_bytes: int) -> str:
    """Return the text at the end of a file."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - most_bytes))
    return file.read().decode(errors="replace")


class HostError(Exception):
    """Error that a host answered instead of a result."""


class LibraryHostPool:
    """The host of a place, started when it is first needed, and again when it is gone."""

    def __init__(self, place: LibraryLocation) -> None:
        self._place = place
        self._host: LibraryHost | None = None
        self._lock = asyncio.Lock()
        self._users = 1

    @classmethod
    async def find_shared(cls, place: LibraryLocation) -> "LibraryHostPool | None":
        """Return the hosts that the run shares; None outside of a run."""

        async def make() -> LibraryHostPool:
            return cls(place)

        return await shared(("host", place), make)

    async def host(self) -> LibraryHost:
        """Return a host that can be asked."""
        async with self._lock:
            if self._host is not None and not self._host.is_open:
                await self._host.close()
                self._host = None
            if self._host is None:
                self._host = await LibraryHost.start(self._place)
            return self._host

    def join(self) -> "LibraryHostPool":
        """Return itself, to be closed once more."""
        self._users += 1
        return self

    async def close(self) -> None:
        """End the host when everybody who uses it has closed it."""
        self._users -= 1
        if self._users <= 0 and self._host is not None:
            await self._host.close()
