"""Shared parts of environments played by a host: its location, and an episode's life in it."""

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from agentrl.authoring.task_choice import choose_task, seed_tasks
from agentrl.authoring.tool_env import check_reward, read_number
from agentrl.env import Action, BaseEnv, Info, Observation, Step
from agentrl.errors import EnvError
from agentrl.message import Message
from agentrl.task import Split, Task
from agentrl_envs.adapters.host import Kind, LibraryHost, LibraryHostPool, LibraryLocation

NOT_RUNNING = "no episode is running; await env.reset() first"


class ForeignEpisode:
    """One episode of a host, or none."""

    def __init__(self, place: LibraryLocation, *, timeout_s: float) -> None:
        self._place = place
        self.timeout_s = timeout_s
        self._host: LibraryHost | None = None
        self._owned: LibraryHostPool | None = None
        self._session = 0

    async def open(self, settings: Mapping[str, Any]) -> Any:
        """Begin an episode's process, and return what its kind tells of it.

        A run's episodes share a host, and so do those between two calls of `close` outside of one.
        """
        await self.end()
        hosts = await LibraryHostPool.find_shared(self._place)
        if hosts is None:
            hosts = self._owned = self._owned or LibraryHostPool(self._place)
        host = await hosts.host()
        # Known before anything is awaited, so that a cancelled caller's episode is killed.
        self._host, self._session = host, host.new_session()
        return await self.ask("open", settings)

    async def ask(self, method: str, params: Mapping[str, Any]) -> Any:
        """Return the answer of the episode's process; `EnvError` for anything that goes wrong."""
        if self._host is None:
            raise RuntimeError(NOT_RUNNING)
        return await self._host.ask(method, params, timeout_s=self.timeout_s, session=self._session)

    async def ask_at_leisure(
        self, method: str, params: Mapping[str, Any], *, grace_s: float
    ) -> Any:
        """Return the answer of a process that waits for others, without a deadline of its own.

        Cancelled, its process is told to end, and killed after `grace_s`.
        """
        if self._host is None:
            raise RuntimeError(NOT_RUNNING)
        return await self._host.ask(
            method, params, timeout_s=None, session=self._session, grace_s=grace_s
        )

    async def fork(self) -> Self:
        """Return a copy of the episode: its process, forked."""
        if self._host is None:
            raise RuntimeError(NOT_RUNNING)
        other = copy.copy(self)
        other._session = self._host.new_session()
        other._owned = None if self._owned is None else self._owned.join()
        try:
            await other.ask("fork", {"of": self._session})
        except BaseException:
            await other.close()
            raise
        return other

    async def finish(self, method: str, *, timeout_s: float) -> None:
        """Let the library end the episode in its own way, where it still can.

        Where it misses the deadline, its process is ended, and the first such one is told.
        """
        if self._host is None:
            return
        try:
            await self._host.ask(method, {}, timeout_s=timeout_s, session=self._session)
        except EnvError as error:
            if isinstance(error.__cause__, TimeoutError):
                self._host.warn_once(
                    f"{error}, so its process was ended, as those of later episodes will be "
                    f"without a word; rewards are not changed, but each waits {timeout_s:g} s: "
                    f"find out where {method} hangs"
                )

    async def close(self) -> None:
        """End the episode, and a host that is nobody else's. Idempotent."""
        owned, self._owned = self._owned, None
        try:
            await self.end()
        finally:
            if owned is not None:
                await owned.close()

    async def end(self) -> None:
        """End the episode, and keep a host that is nobody else's. Idempotent."""
        host, self._host = self._host, None
        if host is not None:
            await host.kill(self._session)


class ForeignEnv(BaseEnv):
    """An environment whose episodes a host plays; a task is a seed of its world's reset."""

    def __init__(
        self,
        kind: Kind,
        name: str,
        settings: Mapping[str, Any],
        python: str,
        path: Sequence[str],
        pass_env: Sequence[str],
        timeout_s: float,
        start_timeout_s: float,
        *,
        prompt: str = "",
        imports: Sequence[str] = (),
    ) -> None:
        """`name` tells the kind's worlds apart; an episode is opened with `settings`."""
        self._name = name
        self._prompt = prompt
        self._settings = settings
        self._place = LibraryLocation(
            kind=kind,
            python=python,
            path=tuple(os.path.abspath(folder) for folder in path),
            imports=tuple(dict.fromkeys(imports)),
            pass_env=tuple(pass_env),
            start_timeout_s=start_timeout_s,
        )
        self._episode = ForeignEpisode(self._place, timeout_s=timeout_s)
        self._task: Task | None = None
        self._resets = 0

    def tasks(self, split: Split, *, seed: int = 0) -> Iterator[Task]:
        """Yield endless seeds as tasks; a seed's own number decides its split."""
        return seed_tasks(self._place.kind, self._name, split, seed=seed, prompt=self._prompt)

    async def close(self) -> None:
        try:
            await self._end_episode()
        finally:
            await self._episode.close()

    async def _end_episode(self) -> None:
        self._task = None
        await self._episode.end()

    async def _choose_task(self, seed: int | None, options: Mapping[str, Any] | None) -> Task:
        """End the episode before, and return the task of the next one."""
        await self._end_episode()
        self._resets += 1
        return choose_task(self, seed=self._resets if seed is None else seed, options=options or {})

    def _require_task(self) -> Task:
        if self._task is None:
            raise RuntimeError(NOT_RUNNING)
        return self._task

    def _parse_step(self, answer: dict[str, Any]) -> Step:
        """Return a host's answer as a step; `EnvError` for a reward or an end that is none."""
        task = self._require_task()
        reward = check_reward(task, read_number(task, answer["reward"]))
        info: Info = dict(answer.get("info", {}))
        observation = Observation((Message("user", answer["text"]),) if answer["text"] else ())
        terminated, truncated = (
            _read_flag(task, name, answer[name]) for name in ("terminated", "truncated")
        )
        if terminated or truncated:
            self._task = None
        return observation, reward, terminated, truncated, info


def _read_flag(task: Task, name: str, value: Any) -> bool:
    # 0 and 1 are as clear as false and true; a text is true, whatever it says.
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise EnvError(
        f"{name} of a step of task {task.id!r} is {value!r:.80}; return True or False from the "
        "environment's step"
    )


def refuse_calls(action: Action, why: str) -> Step:
    """Return the answer to calls of tools that are not there: no time passes."""
    messages = [Message("tool", why, tool_call_id=c.id, name=c.name) for c in action.tool_calls]
    replies = tuple(messages) or (Message("user", why),)
    return Observation(replies), 0.0, False, False, {}
