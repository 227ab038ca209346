"""Tasks of a library that asks a model by itself, as an environment: its requests are the turns."""

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from agentrl.authoring.tool_env import ScoredAnswer
from agentrl.message import Message
from agentrl.runtime.json_limits import JsonLimits
from agentrl.runtime.threads import run_in_thread
from agentrl.task import Split, Task, split_of
from agentrl_envs.adapters.foreign_env import ForeignEpisode
from agentrl_envs.adapters.host import Kind, LibraryLocation, ask_library
from agentrl_envs.blackbox.env import ProgramEnv
from agentrl_envs.blackbox.policy_errors import PolicyErrors, ProgramEnded
from agentrl_envs.blackbox.program import ProgramEndpoint
from agentrl_sandbox.lease import ResourceLease, new_mark
from agentrl_sandbox.reaping.engine import default_engine

TASKS_LIMITS = JsonLimits(text_bytes=2**28, values=5_000_000)
"""Of all tasks that are read of a library."""
GRACE_S = 3.0
"""Seconds in which a program that is ended may remove what it has made elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedProgram:
    """A library that plays one task by itself, in a process forked from its host."""

    location: LibraryLocation
    settings: Mapping[str, Any]
    open_timeout_s: float

    async def run(self, task: Task, endpoint: ProgramEndpoint) -> Mapping[str, Any]:
        """Return the library's answer on the task; `ProgramEnded` where it failed at it."""
        # What it starts carries the mark, so that it ends with it under whatever process group.
        leases = [ResourceLease.take("process", new_mark())]
        # What it leaves when it is killed ends with it, too.
        folder = os.path.join(tempfile.gettempdir(), f"agentrl-hosted-{new_mark()}")
        leases.append(ResourceLease.take("directory", folder))
        mark, environ = leases[0].name, {**leases[0].environ, "TMPDIR": folder}
        episode = ForeignEpisode(self.location, timeout_s=self.open_timeout_s)
        address = {
            "url": endpoint.openai_url,
            "key": endpoint.key,
            "model": endpoint.model,
            "environ": environ,
        }
        try:
            os.mkdir(folder, 0o700)
            facts = await episode.open({**self.settings, **task.data}) or {}
            if (variable := facts.get("label_variable")) is not None:
                engine = default_engine(self.location.env)
                label = f"{facts['container_label']}={mark}"
                leases.append(ResourceLease.take("container", label, engine=engine))
                environ[variable] = mark
            result = await episode.ask_at_leisure("play", {"endpoint": address}, grace_s=GRACE_S)
        finally:
            await episode.close()
            for lease in leases:
                await run_in_thread(lease.clear)
        if (failure := result.get("failure")) is not None:
            raise ProgramEnded(f"{self.location.kind}: {failure}", lines=(str(failure),))
        return result


class HostedProgramEnv(ProgramEnv):
    """Tasks of a library that is given the gateway in the place of a model; it pays what it paid.

    A program that fails for a reason of its own is a failure of its trajectory, never a reward.
    """

    def __init__(
        self,
        kind: Kind,
        settings: Mapping[str, Any],
        *,
        python: str,
        path: Sequence[str],
        pass_env: Sequence[str],
        size: int,
        start_timeout_s: float,
        policy_errors: PolicyErrors | None,
        ignore_fields: Sequence[str],
    ) -> None:
        """`settings` are those of the kind; the first `size` tasks are read."""
        self._location = LibraryLocation(
            kind=kind,
            python=python or sys.executable,
            path=tuple(os.path.abspath(folder) for folder in path),
            pass_env=tuple(pass_env),
            start_timeout_s=start_timeout_s,
        )
        self._listing = json.dumps({**settings, "size": size}, sort_keys=True)
        program = HostedProgram(
            location=self._location, settings=settings, open_timeout_s=start_timeout_s
        )
        super().__init__(program, policy_errors=policy_errors, ignore_fields=ignore_fields)

    def tasks(self, split: Split, *, seed: int = 0) -> Iterator[Task]:
        """Yield the tasks of a split in the library's order, whatever the seed."""
        tasks = [_build_task(row, split) for row in read_rows(self._location, self._listing)]
        splits = divide_tasks([task.fingerprint for task in tasks])
        yield from (task for task in tasks if splits[task.fingerprint] == split)

    def score_result(self, task: Task, result: Any) -> ScoredAnswer:
        """Return the rewards of the library, by name."""
        info = {"metrics": result["metrics"], "stop_condition": result["stop"]}
        return ScoredAnswer(reward=result["rewards"], info=info)


def _build_task(row: Mapping[str, Any], split: Split) -> Task:
    prompt = tuple(Message(one["role"], one["content"]) for one in row["messages"])
    return Task(prompt=prompt, id=row["id"], data=row["data"], split=split)


def divide_tasks(fingerprints: Sequence[str]) -> Mapping[str, Split]:
    """Return the split of each task, as `split_of`, but with none empty where two tasks differ.

    Of a few tasks the hash may give all to one split. Then the task that is nearest to the other
    split goes there.
    """
    splits: dict[str, Split] = {name: split_of(name) for name in fingerprints}
    if len(splits) > 1 and len({*splits.values()}) == 1:
        by_hash = sorted(splits, key=lambda name: hashlib.sha256(name.encode()).digest())
        splits[by_hash[0]], splits[by_hash[-1]] = "heldout", "train"
    return splits


@cache
def read_rows(location: LibraryLocation, listing: str) -> tuple[Mapping[str, Any], ...]:
    """Return a library's tasks, asked of a host that ends with its answer.

    Raises `ConfigError` with what it says of a task that cannot be played.
    """
    what = f"the tasks of {listing}"
    return tuple(ask_library(location, json.loads(listing), TASKS_LIMITS, what=what))
