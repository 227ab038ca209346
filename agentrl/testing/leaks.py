"""Resources that a process holds, before and after."""

import asyncio
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from agentrl.errors import CheckError
from agentrl.runtime.threads import list_idle_threads


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessHoldings:
    """Resources that could leak: tasks of the loop, threads, child processes, open files."""

    tasks: frozenset["asyncio.Task[object]"]
    threads: frozenset[threading.Thread]
    children: dict[int, str]
    """Process id to the name of its command."""
    files: dict[int, str]
    """File descriptor to what it is open on."""

    @classmethod
    def take(cls) -> "ProcessHoldings":
        """Return the resources held now. Children and files are known on Linux only."""
        return cls(
            tasks=frozenset(asyncio.all_tasks()),
            threads=frozenset(t for t in threading.enumerate() if t.is_alive())
            - {*list_idle_threads()},
            children=_list_children(),
            files=_list_files(),
        )

    def find_leaks(self, later: "ProcessHoldings") -> list[str]:
        """Return in words what `later` holds more."""
        leaks = [f"task {task.get_name()}" for task in later.tasks - self.tasks]
        leaks += [f"thread {thread.name}" for thread in later.threads - self.threads]
        leaks += [
            f"process {pid} {name}"
            for pid, name in later.children.items()
            if pid not in self.children
        ]
        if len(later.files) > len(self.files):
            new = sorted(later.files.keys() - self.files.keys())
            leaks += [f"open file {later.files[fd]}" for fd in new]
        return leaks


async def check_no_leak(before: ProcessHoldings, *, grace_s: float = 5.0) -> None:
    """Raise `CheckError` if more is held than before, after a grace for what is just ending."""
    deadline_s = time.monotonic() + grace_s
    while gained := before.find_leaks(ProcessHoldings.take()):
        if time.monotonic() > deadline_s:
            raise CheckError(
                f"no leak: {', '.join(gained)} is left after close(); close() must end and close "
                "what reset(), step() and fork() started, also after a failure or a cancellation"
            )
        await asyncio.sleep(0.02)


def _list_children() -> dict[int, str]:
    children: dict[int, str] = {}
    for pid in filter(str.isdecimal, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        try:
            stat = Path("/proc", pid, "stat").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended while we looked
        before, _, after = stat.rpartition(") ")
        if int(after.split()[1]) == os.getpid():
            children[int(pid)] = before.partition("(")[2]
    return children


def _list_files() -> dict[int, str]:
    files: dict[int, str] = {}
    for entry in Path("/proc/self/fd").glob("*"):
        try:
            files[int(entry.name)] = os.readlink(entry)
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    return files
