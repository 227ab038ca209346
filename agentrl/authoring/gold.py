"""One episode of a player: a demonstration for warm start, and proof that gold scores."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from agentrl.authoring.env_contract import reset_env, step_env
from agentrl.env import Action, Box, Env, GoldPlayer, Observation, Placing
from agentrl.errors import ConfigError, ContractError, EnvError, blame
from agentrl.message import Message
from agentrl.runtime.user_code import function_place
from agentrl.task import Task

Act = Callable[[Observation, tuple[Message, ...]], Awaitable[Action]]
"""A player: what it does, having been shown something new, of all that there was so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldEpisode:
    """Episode of the gold player or of a person. `replies[i]` is the answer to `actions[i]`."""

    task: Task
    opening: Observation
    actions: tuple[Action, ...]
    replies: tuple[Observation, ...]
    reward: float
    """The sum over the turns."""
    is_over: bool = True
    """Whether the environment ended it, and not the number of turns."""
    is_truncated: bool = False
    """Whether it ended it by a limit of its own."""
    places: tuple[Mapping[int, Box], ...] = ()
    """Boxes of the elements that each action could point at, where the environment knows them."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """Return the whole conversation."""
        turns = zip(self.actions, self.replies, strict=True)
        answered = (m for action, reply in turns for m in (action.message, *reply.messages))
        return (*self.opening.messages, *answered)


async def play_gold(
    env: Env, task: Task, *, max_turns: int | None = 16, wants_places: bool = False
) -> GoldEpisode:
    """Let the environment's gold player solve `task`; the caller closes the environment.

    An episode that is not over after `max_turns` is returned as it is.
    Raises `ConfigError` if the environment has no gold player.
    """
    if not isinstance(env, GoldPlayer):
        raise ConfigError(
            f"{type(env).__name__} has no gold player; add a method gold(task, seen) -> Action, "
            "pass gold=... to register_tool_env, or in env.kwargs to blackbox/Program-v0, or start "
            "from a model that needs no demonstrations: policy.path, without policy.make and "
            "warmstart"
        )

    async def gold(new: Observation, seen: tuple[Message, ...]) -> Action:
        return gold_action(env, task, seen)

    return await play(env, task, gold, max_turns=max_turns, wants_places=wants_places)


def gold_action(env: GoldPlayer, task: Task, seen: Sequence[Message]) -> Action:
    """Return the next action of the gold player.

    Raises `EnvError` where it raises, and `ContractError` for what is no action.
    """
    with blame(EnvError, f"gold of task {task.id!r}"):
        action = env.gold(task, seen)
    if isinstance(action, Action):  # pyright: ignore[reportUnnecessaryIsInstance]
        return action
    place = function_place(env.gold)
    raise ContractError(
        f"gold must return an Action, but for task {task.id!r} it returned {action!r:.80}; return "
        "agentrl.say(text) or agentrl.call(tool, argument=...)" + (f"; at {place}" if place else "")
    )


async def play(
    env: Env,
    task: Task,
    act: Act,
    *,
    max_turns: int | None = None,
    wants_places: bool = False,
    reset_s: float | None = None,
    step_s: float | None = None,
) -> GoldEpisode:
    """Let a player do `task`, and return what came of it; the caller closes the environment.

    An episode that is not over after `max_turns` is returned as it is. `reset_s` and `step_s` are
    deadlines of the environment; a player may take its time.
    """
    opening = await reset_env(env, task, seed=task.seed, options={}, reset_s=reset_s)
    messages, new = list(opening.messages), opening
    actions: list[Action] = []
    replies: list[Observation] = []
    places: list[Mapping[int, Box]] = []
    total, is_over, truncated = 0.0, False, False
    while max_turns is None or len(actions) < max_turns:
        places.append(await env.places() if wants_places and isinstance(env, Placing) else {})
        action = await act(new, tuple(messages))
        if not isinstance(action, Action):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise EnvError(
                f"the player of task {task.id!r} returned {action!r:.80}; return agentrl.say(text) "
                "or agentrl.call(tool, argument=...)"
            )
        new, reward, terminated, truncated, _ = await step_env(env, task, action, step_s=step_s)
        actions.append(action)
        replies.append(new)
        messages += (action.message, *new.messages)
        total += reward
        if is_over := terminated or truncated:
            break
    return GoldEpisode(
        task=task,
        opening=opening,
        actions=tuple(actions),
        replies=tuple(replies),
        reward=total,
        is_over=is_over,
        is_truncated=truncated,
        places=tuple(places),
    )
