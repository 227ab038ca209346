"""Step 2 of the flow: the world of one episode. Message level, asynchronous, Gymnasium-shaped."""

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self, runtime_checkable

from agentrl.errors import ForkUnsupported
from agentrl.message import Message, ToolCall
from agentrl.task import Split, Task

Info = dict[str, Any]
"""Facts beside an observation, by name; see `Env` for the well-known keys."""
ToolSchema = Mapping[str, Any]
"""A JSON schema of a function, as `transformers.utils.get_json_schema` makes it."""

CallRule = Literal["auto", "none", "required"]
"""Whether a turn calls tools: as the policy likes, not at all, or at least one."""
ForkStrategy = Literal["native", "copy", "replay", "none"]
"""Strategy for copying an environment's state; see `Env.fork`."""


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """Settings of an agent program for one turn: limits below the run's, a rule on calls."""

    max_tokens: int | None = None
    """Largest number of tokens of the turn; None leaves the run's limit."""
    stop: tuple[str, ...] = ()
    """Texts that end the turn; the tokens of the one that did stay in the context."""
    calls: CallRule = "auto"
    """Rule on tool calls."""
    tool: str = ""
    """The only tool that may be called where a call is required; empty allows any."""


@dataclass(frozen=True, slots=True)
class TurnUsage:
    """Token counts of one turn, and why it ended."""

    prompt_tokens: int
    """Number of tokens of the context the turn was sampled in."""
    completion_tokens: int
    """Number of sampled tokens."""
    cached_tokens: int = 0
    """Number of the prompt's tokens that the engine did not have to compute again."""
    finish: Literal["stop", "length"] = "stop"
    """Reason for the end: the policy's own end of turn, or a limit on tokens."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Messages that the agent has not seen yet: those since its last action."""

    messages: tuple[Message, ...]
    """The new messages, in order; never the agent's own."""
    tools: tuple[ToolSchema, ...] | None = None
    """The tools callable from here on; None leaves them as they were. `reset` and a
    conversation begun `anew` always set it."""
    anew: bool = False
    """Whether the messages are a conversation of their own: what was said before is in no context
    from here on. It stays on the trajectory, and trains in the context it was said in."""
    after: int | None = None
    """The turn, counted from 0, in whose context the messages go on: that context with what was
    said in the turn, token by token. None is the last turn."""
    request: TurnRequest | None = None
    """Set by an environment whose messages are an agent program's: limits on the next turn, of
    which the action then tells its usage."""
    unhinted: tuple[Message, ...] | None = None
    """Of `reset`, by an environment that put a hint into `messages`: the same messages without it,
    which `learn.hint` can train after (see `gives_hints`). The policy is not shown them."""


@dataclass(frozen=True, slots=True)
class Action:
    """Action of the agent: one assistant message, parsed."""

    text: str
    """Text outside tool calls."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls, in the order in which they were said."""
    malformed: tuple[str, ...] = ()
    """One error text per tool call that could not be parsed; the agent is answered with it."""
    malformed_text: str = field(default="", compare=False)
    """The whole turn as it was said, where a call in it is malformed."""
    usage: TurnUsage | None = field(default=None, compare=False)
    """Usage of the turn, where the observation had a request."""

    @property
    def message(self) -> Message:
        """Return the action as the assistant message of a conversation."""
        return Message("assistant", self.text, tool_calls=self.tool_calls)


ConversationCheck = Callable[[Observation], Awaitable[str | None]]
"""Reason why the policy cannot be shown an observation; None when it can."""
_check: ContextVar[ConversationCheck | None] = ContextVar("agentrl_conversation", default=None)


@contextmanager
def checking_conversations(check: ConversationCheck) -> Generator[None]:
    """Let the environment ask `conversation_fault` within the block.

    Args:
        check: Asynchronous function that answers for the policy.
    """
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


async def conversation_fault(observation: Observation) -> str | None:
    """Return why the policy cannot be shown an observation; None when it can, or nobody knows.

    For an environment that shows the words of a program, which it can tell so: an observation that
    is returned all the same fails its trajectory. `ContextOverflow` says that one is too long.

    Args:
        observation: The one that is about to be returned.
    """
    check = _check.get()
    return None if check is None else await check(observation)


@dataclass(frozen=True, slots=True)
class Patch:
    """Replacement, in later contexts, for what the policy said in this step.

    The policy's own words keep their credit and train in the context they were said in.
    `info["patch"]` of a step that goes on; the answer of that step is the answer to the patch.
    """

    action: Action
    """Action that takes the place of the policy's."""
    hint: str = ""
    """Shown to the policy, and to it alone, so that it thinks in words of its own before the
    action: what it then says outside tool calls is put before the action's text. Empty asks for
    no thought. Neither the hint nor the asking is in any context."""


Step = tuple[Observation, float, bool, bool, Info]
"""Gymnasium's five: observation, reward, terminated, truncated, info."""


@runtime_checkable
class Env(Protocol):
    """The world of one episode at a time.

    Constructing an environment is cheap and acquires nothing; `reset` acquires, `close` releases.
    One instance serves one trajectory at a time and may be reset again. Errors are plain Python
    exceptions: whatever `reset`, `step` or `fork` raises fails the trajectory, and is never a
    reward. Every well-known key of `Info` is optional:

    - `reward_components`: `dict[str, float]`, the parts of the reward for reports;
    - `answer`: `str`, the final answer, in the step that ends the episode; equal answers are equal
      texts (see `reports_answer`);
    - `tool_results`: `tuple[ToolResult, ...]`, what the tools of this step did;
    - `patch`: `Patch`, what the policy is taken to have said instead.
    """

    fork_strategy: ForkStrategy
    """Strategy of `fork`; `none` for a world that cannot be copied."""

    def tasks(self, split: Split, *, seed: int = 0) -> Iterable[Task]:
        """Yield the tasks of a split, finitely or not; the same ones for the same seed.

        Args:
            split: Split to yield; every task's own `split` says the same.
            seed: Seed of the order, and of the tasks where they are drawn.
        """
        ...

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begin an episode on `options["task"]`, or on a train task chosen by `seed`.

        Args:
            seed: Seed of the world: equal seeds and tasks open and go on equally.
            options: `task` is the `Task` to play, `sample` the index of the trajectory within its
                group, `next` the tasks that come next (see `LooksAhead`). All are optional.

        Returns:
            The opening observation, which has messages and tools, and an info.
        """
        ...

    async def step(self, action: Action) -> Step:
        """Answer one assistant message.

        Args:
            action: Action of the agent.

        Returns:
            Observation, reward, terminated, truncated and info. The reward is a finite number of
            at most 1e100 either way, paid for this step alone. `terminated` says that the task
            came to its end, `truncated` that the environment stopped it.

        Raises:
            RuntimeError: No episode is running: `reset` was not called, or the last one ended.
        """
        ...

    async def fork(self) -> Self:
        """Return an independent copy of the world as it is now.

        Made as `fork_strategy` says: `native` (the world copies itself, such as a forked
        interpreter), `copy` (plain Python state), `replay` (reset with the same seed and re-run
        the actions, every observation compared).

        Raises:
            ForkUnsupported: The strategy is `none`, or the world cannot be copied as it is now.
        """
        ...

    async def close(self) -> None:
        """Release everything. Idempotent; safe after a failed reset and under cancellation."""
        ...


class BaseEnv:
    """Defaults for environments that need no fork and hold nothing."""

    fork_strategy: ForkStrategy = "none"
    """No fork, unless a subclass has one."""

    async def fork(self) -> Self:
        """Refuse to be copied.

        Raises:
            ForkUnsupported: Always.
        """
        raise ForkUnsupported(
            f"{type(self).__name__} has no fork(), and its fork_strategy is "
            f"{self.fork_strategy!r}; implement both, or train without branching"
        )

    async def close(self) -> None:
        """Release nothing."""


@runtime_checkable
class LooksAhead(Protocol):
    """An environment that makes ready what is dear to start for the episodes that come next.

    In a run its resets have `options["next"]`: the tasks of the trajectories that begin next, eight
    at most, the first one first. What an episode shows must not depend on them.
    """

    looks_ahead: bool
    """Whether this instance wants to know them."""


def looks_ahead(env: object) -> bool:
    """Return whether an environment wants to know what comes next.

    Args:
        env: Any object; one without the attribute does not.
    """
    return isinstance(env, LooksAhead) and env.looks_ahead


def reports_answer(env: object) -> bool:
    """Return whether an environment reports final answers, which trajectories can vote with.

    Args:
        env: Any object; one without the attribute `reports_answer` does not.
    """
    return getattr(env, "reports_answer", False) is True


def count_milestones(env: object) -> int:
    """Return the number of milestones that an environment reports on the way through its tasks.

    Of milestone j, counted from 1, `reward_components` have `milestone/j`, 1.0 if it was reached,
    and `milestone_turn/j`, the turn that settled it, counted from 0.

    Args:
        env: Any object; one without the attribute `milestones` reports none.
    """
    return int(getattr(env, "milestones", 0))


def suggests_strategies(env: object) -> bool:
    """Return whether an environment puts different strategies into the prompts of one task.

    Then every step's `reward_components` have `strategy`, its number from 1, or 0 for none.

    Args:
        env: Any object; one without the attribute `suggests_strategies` does not.
    """
    return getattr(env, "suggests_strategies", False) is True


def gives_hints(env: object) -> bool:
    """Return whether an environment opens with hints, and gives each prompt without its hint, too.

    Args:
        env: Any object; one without the attribute `gives_hints` does not.
    """
    return getattr(env, "gives_hints", False) is True


@runtime_checkable
class GoldPlayer(Protocol):
    """An environment that can solve its own tasks: demonstrations, and proof that gold scores."""

    def gold(self, task: Task, seen: Sequence[Message]) -> Action:
        """Return the next action of a player that solves `task`, having seen these messages.

        A pure function of both.

        Args:
            task: Task that is played.
            seen: The conversation so far, the task's own messages first.
        """
        ...


Box = tuple[float, float, float, float]
"""Left, top, width and height, in the units in which an agent names points."""


@runtime_checkable
class Placing(Protocol):
    """An environment that shows elements by numbers and knows where they are."""

    async def places(self) -> Mapping[int, Box]:
        """Return the boxes of the elements that were shown last, by their numbers."""
        ...


RescoreBy = Literal["record", "replay", "never"]
"""Method for scoring a recorded trajectory again; see `rescored_by`."""


@runtime_checkable
class RecordScorer(Protocol):
    """An environment whose reward is a function of what was said, and of nothing else."""

    async def rescore(self, task: Task, messages: Sequence[Message]) -> tuple[float, Info]:
        """Return the reward of the last step of an episode that said these messages.

        Nothing was reset, and nothing else runs.

        Args:
            task: Task that was played.
            messages: The whole conversation, the opening first.

        Returns:
            The reward, and the info of that step, such as `reward_components`.
        """
        ...


def rescored_by(env: Env) -> RescoreBy:
    """Return the method for scoring an environment's trajectories again: its `rescore_by`.

    `record`: its `rescore` judges the recorded conversation. `replay`, which is what an environment
    without the attribute gets: its recorded actions are done again in a new world. `never`: neither
    would be right, since an action reaches what is outside of the world, or cannot be repeated.

    Args:
        env: Environment that the trajectories were played in.
    """
    return getattr(env, "rescore_by", "replay")


def say(text: str) -> Action:
    """Return the action of answering in plain text.

    Args:
        text: The whole message.

    Raises:
        TypeError: The text is no `str`.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"agentrl.say expects text, got a {type(text).__name__}: {text!r:.80}")
    return Action(text)


def call(tool: str, /, **arguments: Any) -> Action:
    """Return the action of calling one tool.

    Args:
        tool: Name of the tool.
        arguments: Values by parameter, JSON-serialisable.
    """
    return Action("", (ToolCall("call_0", tool, arguments),))
