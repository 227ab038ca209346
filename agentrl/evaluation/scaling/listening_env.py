"""An environment that is listened to, and may be told something more at its beginning."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentrl.env import Action, Env, Info, Observation, Step
from agentrl.message import Message
from agentrl.rollout.env_wrapper import EnvWrapper

Heard = dict[int, list[Message]]
"""Conversations by sample; one that is begun again replaces what was heard."""


class ListeningEnv(EnvWrapper):
    """Keeps what is said in `heard`, and shows `hint` behind the task's own words."""

    def __init__(self, inner: Env, heard: Heard, hint: str = "") -> None:
        super().__init__(inner)
        self.heard, self.hint = heard, hint
        self._said: list[Message] = []

    def around(self, inner: Env) -> "ListeningEnv":
        return ListeningEnv(inner, self.heard, self.hint)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begin an episode; the hint is no part of what is heard."""
        observation, info = await super().reset(seed=seed, options=options)
        self._said = self.heard[(options or {}).get("sample", 0)] = [*observation.messages]
        if self.hint:
            observation = replace(observation, messages=add_hint(observation.messages, self.hint))
        return observation, info

    async def step(self, action: Action) -> Step:
        answer = await super().step(action)
        self._said += (action.message, *answer[0].messages)
        return answer


def add_hint(messages: tuple[Message, ...], hint: str) -> tuple[Message, ...]:
    """Return messages with `hint` at the end of the user's last one; in one of its own without."""
    users = [at for at, message in enumerate(messages) if message.role == "user"]
    if not users:
        return (*messages, Message("user", hint))
    last = messages[users[-1]]
    content = last.content
    more = f"{content}\n\n{hint}" if isinstance(content, str) else (*content, f"\n\n{hint}")
    return (*messages[: users[-1]], replace(last, content=more), *messages[users[-1] + 1 :])
