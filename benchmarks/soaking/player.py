"""Plays with one opened session and its forks, and holds what they do against the model."""

import ast
import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from agentrl.errors import ForkUnsupported, SandboxError
from agentrl.sandbox import AfterTimeout, ExecResult, RunResult
from agentrl_sandbox import SandboxSession
from benchmarks.soaking import programs, saboteur
from benchmarks.soaking.ground import Ground
from benchmarks.soaking.model import Cell, State, wrong_with, wrong_with_names
from benchmarks.soaking.programs import SLEEP_S

DEEDS_MAX = 16
STUCK_S = 90.0
"""No single thing takes as long, also on a machine that is busy."""
KEEPER_KILLS, SUPERVISOR_KILLS = 0.03, 0.004
"""In which part of the families."""
_END_S = 10.0
"""How soon what was cancelled or killed must be gone, also on a machine that is busy."""
_IDLE_S = 0.1

Done = TypeVar("Done")


class Wrong(Exception):
    """Something does not hold."""


class Killed(Exception):
    """The family is gone, because somebody here killed it."""


@dataclass(slots=True, eq=False)
class Seat:
    """A session and what is known of it."""

    session: SandboxSession
    state: State


@dataclass(slots=True)
class Player:
    """One family: a session that is opened, its forks, and what is done to them."""

    number: int
    ground: Ground
    rng: Random
    sabotage: bool = True
    seats: list[Seat] = field(default_factory=list[Seat])
    opened: int = 0
    deeds: list[str] = field(default_factory=list[str])
    """What was done so far, for whoever has to find out."""
    _tokens: int = 0
    _disasters: int = 0
    """How often the supervisor had been killed when the family was opened."""

    @property
    def mode(self) -> AfterTimeout:
        """Return what follows a lost interpreter."""
        return self.ground.mode

    async def play(self) -> None:
        """Open, do random things, close everything. Raises `Wrong`."""
        try:
            await self._open()
            await self._play()
        except Killed:
            pass
        except SandboxError as error:
            if self.ground.disasters == self._disasters:
                raise Wrong(f"{type(error).__name__}: {error}") from error
        except (AssertionError, LookupError, OSError, RuntimeError, TypeError) as error:
            raise Wrong(f"{type(error).__name__}: {error}") from error
        finally:
            # Whatever happened, closing works.
            for seat in list(self.seats):
                await self._close(seat)

    async def _play(self) -> None:
        for _ in range(self.rng.randint(2, DEEDS_MAX)):
            if not self.seats:
                return
            await self._something(self.rng.choice(self.seats))
        for seat in list(self.seats):
            await self._look(seat)
            await self._files(seat)
        if self.sabotage and self.seats:
            fate = self.rng.random()
            if fate < KEEPER_KILLS + SUPERVISOR_KILLS:
                await self._kill(supervisor=fate < SUPERVISOR_KILLS)

    async def _open(self) -> None:
        for _ in range(10):
            self._disasters = self.ground.disasters
            try:
                session = await self._timed("open", self.ground.pool.open())
            except SandboxError:
                if self.ground.disasters == self._disasters:
                    raise
                continue  # killed meanwhile: the next one opens
            self._sit(Seat(session, State()))
            return
        raise Wrong("nothing opens any more")

    def _sit(self, seat: Seat) -> None:
        self.seats.append(seat)
        self.opened += 1

    async def _timed(self, what: str, doing: Awaitable[Done]) -> Done:
        self.deeds.append(what)
        start_s = time.perf_counter()
        try:
            async with asyncio.timeout(STUCK_S):
                return await doing
        except TimeoutError:
            raise Wrong(f"{what} is stuck") from None
        finally:
            self.ground.book.took(what, time.perf_counter() - start_s)

    def _token(self) -> str:
        self._tokens += 1
        return f"token-{self.number}-{self._tokens}-{self.rng.getrandbits(32):08x}"

    async def _something(self, seat: Seat) -> None:
        deeds, weights = zip(*self._deeds(), strict=True)
        await self.rng.choices(deeds, weights)[0](seat)

    def _deeds(self) -> tuple[tuple[Callable[[Seat], Awaitable[None]], float], ...]:
        """Return what is done, and how often."""
        return (
            (self._cell, 12.0),
            (self._look, 1.5),
            (self._files, 1.5),
            (self._write, 1.5),
            (self._command, 1.5),
            (self._stuck_command, 0.3),
            (self._odd_command, 0.4),
            (self._cancelled_command, 0.4),
            (self._cancelled_cell, 0.5),
            (self._cells_at_once, 0.7),
            (self._dies_between, 0.3),
            (self._fork, 4.0),
            (self._cancelled_fork, 0.4),
            (self._close, 0.6),
            (self._closed_in_mid_cell, 0.5),
            (self._whole_family, 0.4),
        )

    # -- cells --------------------------------------------------------------------------------

    async def _cell(self, seat: Seat, cell: Cell | None = None) -> None:
        cell = cell or programs.random_cell(self.rng, seat.state, self._token())
        doing = seat.session.exec(cell.text, timeout_s=cell.timeout_s)
        result = await self._timed(cell.kind, doing)
        self.ground.book.statuses[result.status] += 1
        if seat.state.over:
            self._refused(cell.kind, result)
            return
        self._check(cell.kind, wrong_with(cell, result))
        seat.state.follow(cell, result.status, self.mode)

    async def _look(self, seat: Seat) -> None:
        """Compare the names."""
        cell = programs.look(self._token())
        result = await self._timed("look", seat.session.exec(cell.text))
        if seat.state.over:
            self._refused("look", result)
            return
        if result.value is None:
            raise Wrong(f"a look at the names: {result!r:.500}")
        self._check("look", wrong_with_names(seat.state, ast.literal_eval(result.value)))
        if result.stdout != f"{cell.token}\n":
            raise Wrong(f"look: stdout {result.stdout!r:.200} instead of {cell.token}")

    def _refused(self, what: str, result: ExecResult) -> None:
        if result.ok or result.stdout:
            raise Wrong(f"{what} after the end: {result!r:.300}")

    def _check(self, what: str, found: list[str]) -> None:
        if found:
            raise Wrong(f"{what}: {'; '.join(found)}")

    async def _cells_at_once(self, seat: Seat) -> None:
        """Have all sessions of the family run at once, and one of them asked twice."""
        await asyncio.gather(*(self._cell(each) for each in self.seats))
        if not seat.state.over and not seat.state.threads:
            cells = [programs.sets(self.rng, seat.state, self._token()) for _ in range(3)]
            await asyncio.gather(*(self._cell(seat, cell) for cell in cells))

    async def _cancelled_cell(self, seat: Seat) -> None:
        """Cancel a cell before, at, or after its beginning, which a file tells."""
        token = self._token()
        code = f"open({token!r}, 'w').close()\nv_lost = 1\nimport time\ntime.sleep({SLEEP_S})"
        task = asyncio.create_task(seat.session.exec(code))
        await asyncio.sleep(self.rng.choice((0.0, 0.0, 0.001, 0.003, 0.01, 0.05)))
        result = await self._cancelled("cancelled cell", task)
        if seat.state.over:
            return
        if result is not None:
            raise Wrong(f"a cell that was cancelled returned {result!r:.300}")
        try:
            seat.state.files[token] = await seat.session.read(token)
        except FileNotFoundError:
            seat.state.perhaps_lost(self.mode)
            look = await seat.session.exec("import threading; threading.active_count()")
            seat.state.over = self.mode == "end" and not look.ok
            seat.state.threads = look.ok and look.value != "1"
        else:
            seat.state.lose(self.mode)

    async def _cancelled(self, what: str, task: asyncio.Task[Done]) -> Done | None:
        task.cancel()
        try:
            return await self._timed(what, task)
        except asyncio.CancelledError:
            return None

    async def _dies_between(self, seat: Seat) -> None:
        """Have the interpreter die when nobody asks it anything; the next cell is told."""
        if seat.state.over or seat.state.threads:
            return
        token = self._token()
        code = "import os, threading\nthreading.Timer(0.1, os._exit, (7,)).start()"
        cell = Cell(kind="slow death", token=token, code=code)
        result = await self._timed(cell.kind, seat.session.exec(cell.text))
        if result.ok:
            await asyncio.sleep(0.3)
            result = await seat.session.exec("import time; time.sleep(60)")
        if result.status != "crash" or "exit status 7" not in (result.error or ""):
            raise Wrong(f"a death between cells: {result!r:.300}")
        before = list(seat.state.names)
        seat.state.lose(self.mode)
        if self.mode == "restore":  # had it not died yet, its thread was in the way of a spare
            seat.state.names = [*before, {}]

    # -- files and commands -------------------------------------------------------------------

    async def _files(self, seat: Seat) -> None:
        """Compare the directory, and one file."""
        listed = await self._timed("entries", seat.session.entries())
        top = {path.partition("/")[0] for path in seat.state.files}
        if (seen := {entry.name for entry in listed}) != top:
            raise Wrong(f"entries {sorted(seen)} instead of {sorted(top)}")
        if seat.state.files:
            path = self.rng.choice(sorted(seat.state.files))
            if await self._timed("read", seat.session.read(path)) != seat.state.files[path]:
                raise Wrong(f"{path} holds something else than what was written")

    async def _write(self, seat: Seat) -> None:
        path, data = programs.path(self.rng), programs.data(self.rng)
        await self._timed("write", seat.session.write(path, data))
        seat.state.files[path] = data

    async def _command(self, seat: Seat) -> None:
        """Run a program that echoes, counts its input, leaves a file and perhaps a daemon."""
        if seat.state.over:
            return
        token, data = self._token(), programs.data(self.rng)
        behind = f"setsid sleep {SLEEP_S} >/dev/null 2>&1 &" if self.rng.random() < 0.2 else ""
        script = f"echo {token}; wc -c; {behind} echo {token} >from-sh; exit 5"
        if behind and seat.state.helpers >= programs.DAEMONS_MAX:
            return
        doing = seat.session.run(["sh", "-c", script], stdin=data)
        result = await self._timed("command", doing)
        want = f"{token}\n{len(data)}\n"
        if (result.status, result.exit_code, result.stdout) != ("ok", 5, want):
            raise Wrong(f"a command: {result!r:.500} instead of {want!r}")
        seat.state.files["from-sh"] = f"{token}\n".encode()
        seat.state.helpers += bool(behind)

    async def _stuck_command(self, seat: Seat) -> None:
        if seat.state.over:
            return
        how = self.rng.choice((f"sleep {SLEEP_S}", f"setsid sleep {SLEEP_S} & sleep {SLEEP_S}"))
        script = f"echo said; {how}"
        result = await self._timed(
            "command, time-out", seat.session.run(["sh", "-c", script], timeout_s=0.2)
        )
        if result.status != "timeout" or not "said\n".startswith(result.stdout):
            raise Wrong(f"a command that does not end: {result!r:.300}")

    async def _odd_command(self, seat: Seat) -> None:
        """Run what cannot be started, what kills itself, what floods."""
        if seat.state.over:
            return
        argv, status, code = self.rng.choice(
            (
                (["no-such-program"], "error", None),
                (["sh", "-c", "kill -9 $$"], "ok", 137),
                (["sh", "-c", "head -c 100000 /dev/zero"], "ok", 0),
            )
        )
        result: RunResult = await self._timed("command, odd", seat.session.run(argv))
        if (result.status, result.exit_code) != (status, code):
            raise Wrong(f"{argv}: {result!r:.300}")

    async def _cancelled_command(self, seat: Seat) -> None:
        doing = seat.session.run(["sleep", str(SLEEP_S)])
        task = asyncio.create_task(doing)
        await asyncio.sleep(self.rng.choice((0.0, 0.002, 0.02)))
        result = await self._cancelled("cancelled command", task)
        if seat.state.over:
            if result is not None and (result.status == "ok" or result.stdout):
                raise Wrong(f"a command after the end: {result!r:.300}")
        elif result is not None:
            raise Wrong(f"a command that was cancelled returned {result!r:.300}")

    # -- forks, ends --------------------------------------------------------------------------

    async def _fork(self, seat: Seat) -> None:
        if len(self.seats) >= programs.FAMILY_MAX - 1:
            return
        if len(seat.state.names) > 1:
            await self._look(seat)
        try:
            copy = await self._timed("fork", seat.session.fork())
        except ForkUnsupported as error:
            if not (seat.state.over or seat.state.threads):
                raise Wrong(f"no fork: {error}") from error
            return
        state = seat.state.copied()
        self._sit(Seat(copy, state))
        if seat.state.over or seat.state.threads:
            raise Wrong("a fork of what cannot be forked")
        await self._look(self.seats[-1])

    async def _cancelled_fork(self, seat: Seat) -> None:
        task = asyncio.create_task(seat.session.fork())
        await asyncio.sleep(self.rng.choice((0.0, 0.001, 0.003)))
        try:
            copy = await self._cancelled("cancelled fork", task)
        except ForkUnsupported:
            return
        if copy is not None:
            self._sit(Seat(copy, seat.state.copied()))
            self.seats[-1].state.names = list(seat.state.names)

    async def _close(self, seat: Seat) -> None:
        self.seats.remove(seat)
        await self._timed("close", seat.session.close())

    async def _closed_in_mid_cell(self, seat: Seat) -> None:
        """Close under a cell, which is told so."""
        if len(self.seats) == 1 or seat.state.over:
            return
        task = asyncio.create_task(seat.session.exec(f"import time; time.sleep({SLEEP_S})"))
        await asyncio.sleep(self.rng.choice((0.0, 0.003, 0.03)))
        await self._close(seat)
        try:
            result = await self._timed("cell of a closed session", task)
        except SandboxError:
            return
        raise Wrong(f"the cell of a session that was closed returned {result!r:.300}")

    async def _whole_family(self, seat: Seat) -> None:
        """Count the processes of the family from outside, and see its keeper idle."""
        if seat.state.over or (keeper := await self._keeper(seat)) is None:
            return
        used_s, began_s = saboteur.cpu_s(keeper), time.monotonic()
        await asyncio.sleep(_IDLE_S)
        idle_s = time.monotonic() - began_s
        if (used_s := saboteur.cpu_s(keeper) - used_s) > 0.7 * idle_s:
            raise Wrong(f"an idle keeper uses {used_s:.2f} s of processor in {idle_s:.2f} s")
        most = len(self.seats) * (2 if self.mode == "restore" else 1)
        most += sum(each.state.daemons + each.state.helpers for each in self.seats)
        deadline_s = time.monotonic() + _END_S
        while self.ground.isolated and len(found := saboteur.children(keeper)) > most:
            if time.monotonic() > deadline_s:
                raise Wrong(f"{len(found)} processes below a keeper of {most} at most")
            await asyncio.sleep(0.05)

    async def _keeper(self, seat: Seat) -> int | None:
        isolated = self.ground.isolated
        return await self._timed("who", saboteur.keeper_of(seat.session, isolated=isolated))

    async def _kill(self, *, supervisor: bool) -> None:
        """Kill the keeper, or the supervisor, and find the family gone."""
        seat = self.rng.choice(self.seats)
        if seat.state.over or (keeper := await self._keeper(seat)) is None:
            return
        what = "kill -9 of a supervisor" if supervisor else "kill -9 of a keeper"
        if supervisor:
            self.ground.kill_supervisor_of(keeper)
        else:
            with suppress(ProcessLookupError):
                os.kill(keeper, signal.SIGKILL)
        for each in self.seats:
            try:
                result = await self._timed(what, each.session.exec("import time; time.sleep(9)"))
            except SandboxError:
                continue
            if not each.state.over and not (supervisor and not self.ground.isolated):
                raise Wrong(f"after {what}: {result!r:.300}")
        raise Killed
