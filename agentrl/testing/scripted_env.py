"""An environment that says what it was told to say."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from agentrl.authoring.task_choice import choose_task
from agentrl.env import Action, ForkStrategy, Info, Observation, Step, ToolSchema
from agentrl.message import Message
from agentrl.runtime.seeds import derive
from agentrl.task import Split, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedTurn:
    """Reaction of the environment to one action."""

    reply: str = "Go on."
    """Text of the answer: one message for each call of the action, or one of the user."""
    reward: float = 0.0
    """Reward of the turn."""
    wants: str | None = None
    """The text that earns the reward; None pays for anything."""
    truncates: bool = False
    """Whether the episode is stopped here."""
    raises: Exception | None = None
    """Exception to raise instead of an answer."""
    seconds: float = 0.0
    """Wall time that the answer takes."""


class ScriptedEnv:
    """Plays its turns in order, whatever the agent does, and ends with the last one.

    Its gold player says what each turn wants.

    Args:
        turns: Turns of an episode, at least one.
        tools: Schemas to open with; a call of any tool is answered with the turn's reply.
        prompt: Beginning of every task's text.

    Raises:
        ValueError: There are no turns.
    """

    fork_strategy: ForkStrategy = "copy"
    """Forks are at the same turn."""

    def __init__(
        self,
        turns: Sequence[ScriptedTurn] = (ScriptedTurn(reward=1.0, wants="done"),),
        *,
        tools: Sequence[ToolSchema] = (),
        prompt: str = "Say what is wanted.",
    ) -> None:
        if not turns:
            raise ValueError("a scripted environment needs at least one turn, got none")
        self.actions: tuple[Action, ...] = ()
        """Actions of the agent since `reset`."""
        self.opened = 0
        """Number of times that `reset` was called without a `close` after it."""
        self._turns = tuple(turns)
        self._tools = tuple(tools)
        self._prompt = prompt
        self._running = False

    def tasks(self, split: Split, *, seed: int = 0) -> Iterator[Task]:
        """Yield endless tasks that differ in a number."""
        for index in range(2**31):
            number = derive("scripted", split, seed, index) % 10**9
            text = f"{self._prompt} ({split} {number})"
            yield Task(prompt=text, answer=self._turns[-1].wants, split=split, seed=number)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begin the script anew.

        Raises:
            ConfigError: `options["task"]` is no `Task`.
        """
        task = choose_task(self, seed=seed or 0, options=options or {})
        self.actions, self._running, self.opened = (), True, self.opened + 1
        return Observation(task.messages, tools=self._tools), {}

    async def step(self, action: Action) -> Step:
        """Play the next turn.

        Raises:
            RuntimeError: No episode is running.
            Exception: The turn's own, where it has one in `raises`.
        """
        if not self._running:
            raise RuntimeError("no episode is running; await env.reset() first")
        turn = self._turns[len(self.actions)]
        self.actions = (*self.actions, action)
        await asyncio.sleep(turn.seconds)
        if turn.raises is not None:
            raise turn.raises
        ended = len(self.actions) == len(self._turns)
        self._running = not (ended or turn.truncates)
        paid = turn.reward if turn.wants in (None, action.text) else 0.0
        return _reply(turn.reply, action), paid, ended, turn.truncates and not ended, {}

    async def fork(self) -> Self:
        """Return a copy that is at the same turn."""
        other = type(self)(self._turns, tools=self._tools, prompt=self._prompt)
        other.actions, other._running, other.opened = self.actions, self._running, 1
        return other

    async def close(self) -> None:
        """End the episode."""
        self._running, self.opened = False, 0

    def gold(self, task: Task, seen: Sequence[Message]) -> Action:
        """Say what the next turn wants."""
        turn = self._turns[sum(message.role == "assistant" for message in seen)]
        return Action(turn.wants or "ok")


def _reply(text: str, action: Action) -> Observation:
    calls = tuple(
        Message("tool", text, tool_call_id=call.id, name=call.name) for call in action.tool_calls
    )
    refused = tuple(Message("tool", error) for error in action.malformed)
    return Observation((*refused, *calls) or (Message("user", text),))
