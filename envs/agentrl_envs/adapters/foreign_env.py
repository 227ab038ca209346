"""Shared parts of environments played by a host: its location, and an episode's life in it."""

import copy
from collections.abc import Mapping
from typing import Any, Self

from agentrl.authoring.tool_env import check_reward
from agentrl.env import Action, Info, Observation, Step
from agentrl.message import Message
from agentrl.task import Task
from agentrl_envs.adapters.host import LibraryHost, LibraryHostPool, LibraryLocation


class ForeignEpisode:
    """One episode of a host, or none."""

    def __init__(self, place: LibraryLocation, *, timeout_s: float) -> None:
        self._place = place
        self.timeout_s = timeout_s
        self._host: LibraryHost | None = None
        self._owned: LibraryHostPool | None = None
        self._session = 0

    async def open(self, settings: dict[str, Any]) -> None:
        """Begin an episode's process; a run's episodes share a host, another has its own."""
        await self._end()
        hosts = await LibraryHostPool.find_shared(self._place)
        if hosts is None:
            hosts = self._owned = self._owned or LibraryHostPool(self._place)
        host = await hosts.host()
        # Known before anything is awaited, so that a cancelled caller's episode is killed.
        self._host, self._session = host, host.new_session()
        await self.ask("open", settings)

    async def ask(self, method: str, params: Mapping[str, Any]) -> Any:
        """Return the answer of the episode's process; `EnvError` for anything that goes wrong."""
        if self._host is None:
            raise RuntimeError("no episode is running; await env.reset() first")
        return await self._host.ask(method, params, timeout_s=self.timeout_s, session=self._session)

    async def fork(self) -> Self:
        """Return a copy of the episode: its process, forked."""
        if self._host is None:
            raise RuntimeError("no episode is running; await env.reset() first")
        other = copy.copy(self)
        other._session = self._host.new_session()
        other._owned = None if self._owned is None else self._owned.join()
        try:
            await other.ask("fork", {"of": self._session})
        except BaseException:
            await other.close()
            raise
        return other

    async def close(self) -> None:
        """End the episode, and a host that is nobody else's. Idempotent."""
        owned, self._owned = self._owned, None
        try:
            await self._end()
        finally:
            if owned is not None:
                await owned.close()

    async def _end(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            await host.kill(self._session)


def parse_step(task: Task, answer: dict[str, Any]) -> Step:
    """Return a host's answer as a step; `EnvError` for a reward that is no number."""
    reward = check_reward(task, float(answer["reward"]))
    info: Info = dict(answer.get("info", {}))
    observation = Observation((Message("user", answer["text"]),) if answer["text"] else ())
    return observation, reward, bool(answer["terminated"]), bool(answer["truncated"]), info


def refuse_calls(action: Action, why: str) -> Step:
    """Return the answer to calls of tools that are not there: no time passes."""
    messages = [Message("tool", why, tool_call_id=c.id, name=c.name) for c in action.tool_calls]
    replies = tuple(messages) or (Message("user", why),)
    return Observation(replies), 0.0, False, False, {}
