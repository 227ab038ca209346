"""The other ranks as processes of this machine that the run starts, and that end with it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import IO

import agentrl
from agentrl.errors import AgentrlError, ConfigError, LearnError
from agentrl.learn.sharded.packed_object import SharedObject, receive_object
from agentrl.learn.sharded.rank_link import RankCommand
from agentrl.learn.sharded.rank_spec import RankSpec, follower, leave
from agentrl.runtime.child_process import tail
from agentrl.runtime.gpu_placement import VARIABLE

READY = "ready"
END_S = 10.0
"""Seconds that a process has to end after its command socket is gone, before it is killed."""
BLAME_S = 5.0
"""Seconds to wait for a process to be seen as ended after something broke."""


class LocalRankLink:
    """Link to ranks that are processes of this machine, and end as soon as their socket is gone."""

    def __init__(
        self, setups: Sequence[RankSpec], *, start_s: float, devices: Sequence[str] = ()
    ) -> None:
        """Start the processes and wait until each has its model; raises what keeps one from it.

        `devices` are the GPUs they get, one for each, which then sees no other.
        """
        self._members: list[_Member] = []
        deadline = time.monotonic() + start_s
        try:
            for number, setup in enumerate(setups):
                self._members.append(_Member(setup, devices[number] if devices else None))
            for member in self._members:
                member.wait_ready(max(0.0, deadline - time.monotonic()))
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Return the ids of the processes by rank."""
        return [member.process.pid for member in self._members]

    def tell(self, command: RankCommand) -> None:
        shared = SharedObject(command)
        for member in self._members:
            shared.send(member.connection, member.process.pid)

    def blame(self) -> str | None:
        deadline = time.monotonic() + BLAME_S
        while True:
            for member in self._members:
                if (code := member.process.poll()) is not None:
                    return (
                        f"rank {member.rank} of the trainer, process {member.process.pid}, has "
                        f"ended ({_ending(code)}). Its output: {member.said}"
                    )
            if time.monotonic() > deadline:
                return None
            time.sleep(0.05)

    def close(self) -> None:
        for member in self._members:
            member.connection.close()
        deadline = time.monotonic() + END_S
        for member in self._members:
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.process.wait(max(0.0, deadline - time.monotonic()))
            member.end()
        self._members = []
        leave()


class _Member:
    def __init__(self, setup: RankSpec, device: str | None) -> None:
        ours, theirs = socket.socketpair()
        self.rank = setup.rank
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        with theirs:
            self.process = subprocess.Popen(
                (sys.executable, "-m", __name__, str(theirs.fileno())),
                env=_environment(device),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
            )
        self.connection = Connection(ours.detach())
        self.connection.send(setup)

    def wait_ready(self, within_s: float) -> None:
        try:
            reply = self.connection.recv() if self.connection.poll(within_s) else None
        except (EOFError, OSError):
            self.process.wait(END_S)
            raise LearnError(f"rank {self.rank} of the trainer ended: {self.said}") from None
        if isinstance(reply, AgentrlError):
            raise reply
        if reply != READY:
            raise LearnError(
                f"rank {self.rank} of the trainer was not ready in time; raise "
                f"learn.devices.start_s if loading takes longer. Its output: {self.said}"
            )

    @property
    def said(self) -> str:
        return tail(self._log)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._log.close()


def serve(descriptor: int) -> None:
    """Be a rank for whoever has the other end of the socket, until it is gone."""
    # Ctrl-C reaches all processes of a terminal, SIGTERM of a batch system or of `timeout` those of
    # a group; the run's own decides when a step is done.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    connection = Connection(descriptor)
    setup = connection.recv()
    try:
        trainer = follower(setup, lambda: connection.send(READY))
    except ConfigError as error:
        connection.send(error)
        return
    commands: SimpleQueue[RankCommand] = SimpleQueue()
    threading.Thread(target=_listen, args=(connection, commands), daemon=True).start()
    try:
        while True:
            commands.get().run(trainer)
    except BaseException:  # noqa: BLE001 - the others notice that this rank is gone
        traceback.print_exc()
        os._exit(1)  # without waiting for them


def _listen(connection: Connection, commands: "SimpleQueue[RankCommand]") -> None:
    """Hand commands on; end the process when there will be no more, whatever it is waiting for."""
    try:
        while True:
            commands.put(receive_object(connection))
    except (EOFError, OSError):
        os._exit(0)
    except BaseException:  # noqa: BLE001 - a command that cannot be read, nobody could obey
        traceback.print_exc()
        os._exit(1)


def _environment(device: str | None) -> dict[str, str]:
    """Return ours, in which the same modules are found, and one GPU if one is named."""
    roots = [str(Path(agentrl.__file__).parents[1]), *filter(None, sys.path)]
    devices = {} if device is None else {VARIABLE: device}
    return {**os.environ, **devices, "PYTHONPATH": os.pathsep.join(roots)}


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


if __name__ == "__main__":
    serve(int(sys.argv[1]))
