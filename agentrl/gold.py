"""One episode of a gold player: a demonstration for warm start, and proof that gold scores."""

from dataclasses import dataclass

from agentrl.env import Action, Env, GoldPlayer, Observation
from agentrl.errors import ConfigError
from agentrl.message import Message
from agentrl.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldEpisode:
    """What a gold player did. `replies[i]` is the answer to `actions[i]`."""

    task: Task
    opening: Observation
    actions: tuple[Action, ...]
    replies: tuple[Observation, ...]
    reward: float
    """The sum over the turns."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """Return the whole conversation."""
        turns = zip(self.actions, self.replies, strict=True)
        answered = (m for action, reply in turns for m in (action.message, *reply.messages))
        return (*self.opening.messages, *answered)


async def play_gold(env: Env, task: Task, *, max_turns: int = 16) -> GoldEpisode:
    """Let the environment's gold player solve `task`; the caller closes the environment.

    An episode that is not over after `max_turns` is returned as it is.
    Raises `ConfigError` if the environment has no gold player.
    """
    if not isinstance(env, GoldPlayer):
        raise ConfigError(
            f"{type(env).__name__} has no gold player; give it a method "
            "gold(task, seen) -> Action, or pass gold=... to register_tool_env"
        )
    opening, _ = await env.reset(seed=task.seed, options={"task": task})
    seen = list(opening.messages)
    actions: list[Action] = []
    replies: list[Observation] = []
    total = 0.0
    while len(actions) < max_turns:
        action = env.gold(task, tuple(seen))
        reply, reward, terminated, truncated, _ = await env.step(action)
        actions.append(action)
        replies.append(reply)
        seen += (action.message, *reply.messages)
        total += reward
        if terminated or truncated:
            break
    return GoldEpisode(
        task=task, opening=opening, actions=tuple(actions), replies=tuple(replies), reward=total
    )
