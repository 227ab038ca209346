"""Promises about what an environment returns, and the one sentence for each that is broken.

`check-env`, training and evaluation ask here, so all three say the same. Episodes of a policy and
of a player call environments here: within a deadline, with errors attributed and returns checked.
"""

import asyncio
import json
import logging
import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, cast, get_args

from agentrl.authoring.json_schema import find_tool_fault
from agentrl.env import Action, Env, Info, Observation, Step
from agentrl.errors import ContractError, EnvError, blame
from agentrl.message import Image, Message, Role
from agentrl.runtime.image_decoding import read_size
from agentrl.runtime.user_code import method_place
from agentrl.task import Split, Task

TASKS_ARE_TASKS = "tasks yields agentrl.Task"
TASKS_KNOW_THEIR_SPLIT = "tasks know their split"
TASKS_ARE_JSON = "tasks are JSON-serialisable"
RESET_RETURNS = "reset returns (Observation, dict)"
RESET_OPENS = "reset opens with messages and tools"
STEP_RETURNS = "step returns (Observation, float, bool, bool, dict)"
TASKS_HAVE_TEXTS = "ids and tags of tasks are text"
IDS_ARE_UNIQUE = "ids are unique"
REWARDS_ARE_FINITE = "rewards are finite"
SPLITS_HAVE_TASKS = "both splits have tasks"

CLOSE_S = 10.0
"""Deadline of an environment's close."""
STUBBORN_S = 5.0
"""Time that a cancelled method has to end before it is named."""
ROLES: tuple[str, ...] = get_args(Role)
REWARD_MAX = 1e100
"""Largest size of a reward: the sum of squares of any number of them is a number still."""

_log = logging.getLogger(__name__)
_STEP = {
    "observation": Observation,
    "reward": float,
    "terminated": bool,
    "truncated": bool,
    "info": dict,
}


def read_tasks(env: Env, split: Split, *, seed: int) -> Iterator[Task]:
    """Yield the tasks of a split; `ContractError` for what is none, `EnvError` for what raises."""
    contents: dict[str, int] = {}
    with blame(EnvError, f"tasks({split!r}, seed={seed})"):
        tasks: Any = env.tasks(split, seed=seed)
        if not isinstance(tasks, Iterable):
            raise _build_error(env, "tasks", TASKS_ARE_TASKS, f"it returned {_describe(tasks)}")
        for task in cast("Iterable[Any]", tasks):
            if not isinstance(task, Task):
                what = f"it yielded {_describe(task)}; yield agentrl.Task(prompt=..., answer=...)"
                raise _build_error(env, "tasks", TASKS_ARE_TASKS, what)
            if task.split != split:
                what = f"task {task.id!r} of split {split!r} has split {task.split!r}"
                raise _build_error(env, "tasks", TASKS_KNOW_THEIR_SPLIT, what)
            if (fault := _find_text_fault(task)) is not None:
                raise _build_error(env, "tasks", TASKS_HAVE_TEXTS, fault)
            try:
                answer = json.dumps(task.answer, allow_nan=False)
                json.dumps(task.data, allow_nan=False)
            except (TypeError, ValueError) as error:
                what = f"the answer or data of task {task.id!r} is not: {error}"
                raise _build_error(env, "tasks", TASKS_ARE_JSON, what) from error
            prompt = task.prompt if isinstance(task.prompt, str) else task.fingerprint
            if contents.setdefault(task.id, content := hash((prompt, answer))) != content:
                what = f"two different problems are called {task.id!r}; give each an id of its own"
                raise _build_error(env, "tasks", IDS_ARE_UNIQUE, what)
            yield task


def check_opening(env: Env, returned: object) -> tuple[Observation, Info]:
    """Check the return of `reset`; `ContractError` for anything but an opening."""
    parts = cast("tuple[Any, ...]", returned)
    if not isinstance(returned, tuple) or len(parts) != 2:
        raise _build_error(env, "reset", RESET_RETURNS, f"it returned {_describe(returned)}")
    opening, info = parts
    for name, part, kind in (("observation", opening, Observation), ("info", info, dict)):
        if not isinstance(part, kind):
            raise _build_error(env, "reset", RESET_RETURNS, f"the {name} is {_describe(part)}")
    _check_messages(env, "reset", RESET_RETURNS, opening)
    if not opening.messages or opening.tools is None:
        raise _build_error(
            env,
            "reset",
            RESET_OPENS,
            f"there are {len(opening.messages)} messages and tools={opening.tools}; use tools=() "
            "if there are no tools",
        )
    unhinted: Any = opening.unhinted
    if unhinted is not None and not (unhinted and _is_sequence_of(Message, unhinted)):
        what = f"unhinted is {_describe(unhinted)}; give the messages without the hint, or None"
        raise _build_error(env, "reset", RESET_RETURNS, what)
    for at, message in enumerate(cast("Sequence[Message]", unhinted or ())):
        if (fault := _find_message_fault(message)) is not None:
            raise _build_error(env, "reset", RESET_RETURNS, f"message {at} of unhinted {fault}")
    return opening, info


def check_step(env: Env, returned: object) -> Step:
    """Check the return of `step`; `ContractError` for anything but Gymnasium's five."""
    parts = cast("tuple[Any, ...]", returned)
    if not isinstance(returned, tuple) or len(parts) != 5:
        raise _build_error(env, "step", STEP_RETURNS, f"it returned {_describe(returned)}")
    for (name, kind), part in zip(_STEP.items(), parts, strict=True):
        # An int is a fine reward, and a bool is none.
        fits = isinstance(part, int | float) if kind is float else isinstance(part, kind)
        if not fits or (kind is float and isinstance(part, bool)):
            raise _build_error(env, "step", STEP_RETURNS, f"{name} is {_describe(part)}")
    observation, reward = parts[:2]
    if (fault := find_reward_fault(reward)) is not None:
        raise _build_error(env, "step", REWARDS_ARE_FINITE, f"the reward of a step is {fault}")
    components = parts[4].get("reward_components", {})
    if (fault := find_component_type_fault(components)) is not None:
        raise _build_error(env, "step", STEP_RETURNS, fault)
    if (fault := find_component_fault(components)) is not None:
        raise _build_error(env, "step", REWARDS_ARE_FINITE, fault)
    _check_messages(env, "step", STEP_RETURNS, observation)
    if observation.unhinted is not None:
        what = "the observation has unhinted messages, which only an opening can have"
        raise _build_error(env, "step", STEP_RETURNS, what)
    return cast("Step", returned)


def find_reward_fault(reward: float) -> str | None:
    """Return the value and the rule it breaks; None for a reward that can be summed."""
    if abs(reward) <= REWARD_MAX:
        return None
    if isinstance(reward, int):
        text = f"an integer of {reward.bit_length()} bits"
    elif math.isfinite(reward):
        text = f"{reward:g}"
    else:
        return f"{reward}, but a reward must be a finite number"
    return f"{text}, but a reward may be at most {REWARD_MAX:g} in absolute value"


def find_component_type_fault(components: object) -> str | None:
    """Return why parts of a reward are no numbers by name; None where they are."""
    if not isinstance(components, Mapping):
        return f"reward_components is {_describe(components)}; give a mapping of names to numbers"
    for name, value in cast("Mapping[object, object]", components).items():
        if not isinstance(name, str):
            return f"component {name!r:.80} of the reward has a name that is no text"
        if not isinstance(value, int | float):
            return f"component {name!r} of the reward is {_describe(value)}; give a number"
    return None


def find_component_fault(components: Mapping[str, float]) -> str | None:
    """Return the part of a reward that cannot be summed, and the rule it breaks, or None."""
    for name, value in components.items():
        if (fault := find_reward_fault(value)) is not None:
            return f"component {name!r} of the reward is {fault}"
    return None


def describe_missing_tasks(env: Env, split: Split) -> str:
    """Return the sentence about a split without tasks."""
    name = "held-out" if split == "heldout" else split
    what = (
        f"the environment yields no {name} task; check env.kwargs, and that its tasks() yields "
        f"some for the split {split!r}"
    )
    return str(_build_error(env, "tasks", SPLITS_HAVE_TASKS, what))


def _check_messages(env: Env, method: str, promise: str, observation: Observation) -> None:
    messages: Any = observation.messages
    if not _is_sequence_of(Message, messages):
        what = f"the observation's messages are {_describe(messages)}; give a tuple of Message"
        raise _build_error(env, method, promise, what)
    for at, message in enumerate(observation.messages):
        if (fault := _find_message_fault(message)) is not None:
            raise _build_error(env, method, promise, f"message {at} of the observation {fault}")
    tools: Any = observation.tools
    if tools is not None and not _is_sequence_of(Mapping, tools):
        what = f"the observation's tools are {_describe(tools)}; give a tuple of schemas, or None"
        raise _build_error(env, method, promise, what)
    if observation.request is None:  # else the schemas are a program's, which it wrote for models
        for tool in cast("Sequence[Mapping[str, Any]]", tools or ()):
            if (fault := find_tool_fault(tool)) is not None:
                raise _build_error(env, method, promise, fault)


def _build_error(env: object, method: str, promise: str, what: str) -> ContractError:
    # What stands around an environment passes its returns on.
    place = method_place(unwrap_env(env), method)
    return ContractError(f"{promise}: {what}" + (f"; at {place}" if place else ""))


def unwrap_env(env: object) -> object:
    """Return the environment inside of all that stands around it."""
    while (inner := getattr(env, "inner", None) or getattr(env, "_local", None)) is not None:
        env = inner
    return env


def _describe(value: object) -> str:
    if isinstance(value, tuple):
        parts = cast("tuple[object, ...]", value)
        kinds = ", ".join(type(part).__name__ for part in parts)
        return f"a tuple of {len(parts)}, ({kinds}): {value!r:.200}"
    return f"a {type(value).__name__}: {value!r:.200}"


def _is_sequence_of(kind: type | tuple[type, ...], values: object) -> bool:
    if not isinstance(values, tuple | list):
        return False
    return all(isinstance(value, kind) for value in cast("Sequence[object]", values))


def _find_message_fault(message: Message) -> str | None:
    content: Any = message.content
    if message.role not in ROLES:
        return f"has the role {message.role!r:.80}; give one of {', '.join(ROLES)}"
    if isinstance(content, str):
        return None
    if not _is_sequence_of((str, Image), content):
        return f"has as content {_describe(content)}; give text, or a tuple of texts and images"
    for image in message.images:
        try:
            read_size(image)
        except EnvError as error:
            return f"has a picture that no policy may see: {error}"
    return None


def _find_text_fault(task: Task) -> str | None:
    """Return the fault of a task's name that is no valid Unicode text; None where all are."""
    tags: Any = task.tags
    if not isinstance(tags, tuple | list):
        return f"tags of task {task.id!r} is {_describe(tags)}; give a tuple of texts"
    names = {"id": task.id}
    names |= {f"tags[{at}]": tag for at, tag in enumerate(cast("Sequence[Any]", tags))}
    for field, name in names.items():
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            return f"{field} of task {task.id!r} is {_describe(name)}; give text"
        if not name.isascii() and any("\ud800" <= letter <= "\udfff" for letter in name):
            return f"{field} of task {task.id!r} contains a lone surrogate"
    return None


async def reset_env(
    env: Env, task: Task, *, seed: int, options: Mapping[str, Any], reset_s: float | None
) -> Observation:
    """Reset the environment for `task` and return the first observation. Raises `EnvError`."""
    limit = asyncio.timeout(reset_s)
    deadline = _name_deadline("rollout.reset_s", reset_s)
    with blame(EnvError, f"reset of task {task.id}", deadline=deadline, limit=limit):
        async with limit:
            with _tell_stubborn(env, "reset", reset_s):
                returned = await env.reset(seed=seed, options={"task": task.copy(), **options})
        return check_opening(env, returned)[0]


async def step_env(env: Env, task: Task, action: Action, *, step_s: float | None) -> Step:
    """Return the environment's step for an action. Raises `EnvError`."""
    limit = asyncio.timeout(step_s)
    deadline = _name_deadline("rollout.step_s", step_s)
    with blame(EnvError, f"step of task {task.id}", deadline=deadline, limit=limit):
        async with limit:
            with _tell_stubborn(env, "step", step_s):
                returned = await env.step(action)
        return check_step(env, returned)


async def close_env(env: Env, what: str) -> None:
    """Close an environment whose episode is over; one that misses the deadline is left, with a
    warning, and what it paid counts. Raises `EnvError`, which names `what`."""
    limit = asyncio.timeout(CLOSE_S)
    with blame(EnvError, what):
        try:
            async with limit:
                with _tell_stubborn(env, "close", CLOSE_S):
                    await env.close()
        except TimeoutError:
            if not limit.expired():
                raise
            _warn_of_late_close(method_place(unwrap_env(env), "close"))


@contextmanager
def _tell_stubborn(env: Env, method: str, deadline_s: float | None) -> Generator[None]:
    """Warn of a method that goes on after its deadline has cancelled it: nothing can end it."""
    if deadline_s is None:
        yield
        return
    tell = partial(_warn_of_stubborn, env, method)
    timer = asyncio.get_running_loop().call_later(deadline_s + STUBBORN_S, tell)
    try:
        yield
    finally:
        timer.cancel()


def _warn_of_stubborn(env: Env, method: str) -> None:
    _warn_once_of_stubborn(method, method_place(unwrap_env(env), method))


@cache
def _warn_once_of_stubborn(method: str, place: str) -> None:
    _log.warning(
        "the environment's %s%s goes on, %g s after its deadline has cancelled it, and everything "
        "waits for it: code that catches CancelledError must raise it again",
        method,
        f" (at {place})" if place else "",
        STUBBORN_S,
    )


@cache
def _warn_of_late_close(place: str) -> None:
    """Warn of an environment whose close hangs, once for each place of its code."""
    _log.warning(
        "the environment's close%s took more than %g s and was cancelled, as those of later "
        "episodes will be without a word; rewards are not changed, but each waits so long: find "
        "out where it hangs",
        f" (at {place})" if place else "",
        CLOSE_S,
    )


def _name_deadline(key: str, seconds: float | None) -> str:
    return "" if seconds is None else f"{key}, {seconds:g} s"
