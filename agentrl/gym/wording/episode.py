"""One Gymnasium environment, told and played in words."""

import contextlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np

from agentrl.gym.wording import browser_gym, toy_text
from agentrl.gym.wording.env_wording import EnvWording
from agentrl.gym.wording.parts import (
    Part,
    WordingFault,
    count_parameters,
    describe_observation,
    name_function,
)
from agentrl.gym.wording.space_words import (
    ACTION_WAY_OUT,
    OBSERVATION_WAY_OUT,
    action_words,
    find_name_fault,
    find_names_fault,
    find_word_fault,
    fit_action,
    is_text_space,
    read_action,
    state_words,
)

GymEnv = gymnasium.Env[Any, Any]

_WORDINGS: Mapping[str, Mapping[str, EnvWording]] = MappingProxyType(
    {"gymnasium": toy_text.WORDINGS, "browsergym": browser_gym.WORDINGS}
)
"""Known environments by the package and the name of their class."""
_EXCERPT = 80


@dataclass(frozen=True)
class GivenWords:
    """Settings of a user for one environment, in place of what is known of it."""

    instructions: str = ""
    """Rules, which begin every prompt."""
    actions: Sequence[str] = ()
    """Names of the actions 0, 1, 2, ..."""
    describe: "Callable[..., Any] | None" = None
    """From an observation, its info and the unwrapped environment to a text or several parts."""
    act: "Callable[..., Any] | None" = None
    """From a text and the unwrapped environment to an action."""

    def check(self) -> None:
        """Raise `ValueError` for what is no text, no list of names, or no function of so many
        values."""
        instructions: Any = self.instructions
        if not isinstance(instructions, str):
            raise ValueError(f"instructions is {instructions!r:.80}; give a text")
        if fault := find_names_fault(self.actions):
            raise ValueError(fault)
        if self.actions and self.act is not None:
            raise ValueError("actions and act are two ways to read an action; remove one of them")
        for name, function, most in (("describe", self.describe, 3), ("act", self.act, 2)):
            if function is None:
                continue
            if not callable(function):
                raise ValueError(f"{name} is {function!r:.80}; give module:function")
            count_parameters(function, most)


@dataclass(frozen=True)
class WordedStep:
    """Step of an environment, told."""

    parts: Sequence[Part]
    reward: float
    terminated: bool
    truncated: bool
    info: "dict[str, Any]"


class WordedEnv:
    """One Gymnasium environment and its words. Lives on the thread that made it."""

    def __init__(self, env: GymEnv, words: GivenWords) -> None:
        self.env = _check_wrapped(env)
        self._given = words
        kind = type(env.unwrapped)
        package = kind.__module__.partition(".")[0]
        self._known = _WORDINGS.get(package, {}).get(kind.__name__)

    def build_prompt(self) -> str:
        """Return the rules and the instruction for acting.

        Raises `ValueError` for spaces that no words and no function express.
        """
        self._given.check()
        env = self.env
        for name in ("action_space", "observation_space"):
            if not isinstance(getattr(env, name, None), gymnasium.Space):
                raise ValueError(
                    f"{type(env.unwrapped).__name__} has no {name}; set it in __init__ to one of "
                    "gymnasium.spaces"
                )
        if self._given.act is None:
            fault = find_word_fault(env.action_space, what="actions", way_out=ACTION_WAY_OUT)
            if self._given.actions and not fault:
                fault = find_name_fault(env.action_space, self._given.actions)
            if fault:
                raise ValueError(fault)
        if self._given.describe is None and self._known is None:
            fault = find_word_fault(
                env.observation_space, what="observations", way_out=OBSERVATION_WAY_OUT
            )
            if fault:
                raise ValueError(fault)
        rules = self._given.instructions or self._known_rules()
        return "\n".join(filter(None, (rules, self._describe_actions()))) or "Answer."

    def reset(self, seed: int) -> "tuple[Sequence[Part], dict[str, Any]]":
        """Begin an episode and return what it shows."""
        state, info = _call_reset(self.env, seed=seed)
        return self._describe(state, info), dict(info)

    def step(self, text: str, candidates: Sequence[str]) -> "WordedStep | str":
        """Do what a text says; return a refusal where it is no action, and no time passes.

        `candidates` are the texts that may be the action, the likeliest first; where any text is
        an action, the last one, which is the whole text, goes before what it marks.
        """
        action = self._read(text, candidates)
        if isinstance(action, _Refusal):
            return action.text
        state, reward, terminated, truncated, info = _call_step(self.env, action)
        paid = read_reward(reward)
        ends = read_flag("terminated", terminated), read_flag("truncated", truncated)
        parts = self._describe(state, info)
        return WordedStep(parts, paid, *ends, dict(info))

    def refuse(self, why: str) -> str:
        """Return the answer to what is no action: the reason, and how one is said."""
        return " ".join(filter(None, (why, self._describe_actions())))

    def close(self) -> None:
        self.env.close()

    def _describe_actions(self) -> str:
        """Return the instruction for acting; empty where the rules say it."""
        if self._given.act is not None:
            return ""
        return action_words(self.env.action_space, self._names)

    @property
    def _names(self) -> Sequence[str]:
        return self._given.actions or (self._known.actions if self._known else ())

    def _known_rules(self) -> str:
        rules = self._known.rules if self._known else ""
        return rules if isinstance(rules, str) else rules(self.env.unwrapped)

    def _describe(self, state: Any, info: Mapping[str, Any]) -> Sequence[Part]:
        env = self.env
        if self._given.describe is not None:
            return describe_observation(self._given.describe, state, info, env.unwrapped)
        if self._known is not None:
            return [self._known.describe(env.unwrapped, state)]
        drawn = [_strip_colours(str(env.render()))] if env.render_mode == "ansi" else []
        return ["\n".join((*drawn, state_words(env.observation_space, state)))]

    def _read(self, text: str, candidates: Sequence[str]) -> Any:
        """Return the action, or a `_Refusal`."""
        space = self.env.action_space
        refusal = f"{text[:_EXCERPT]!r} is not a valid action."
        if (act := self._given.act) is not None:
            try:
                action = act(*(text, self.env.unwrapped)[: count_parameters(act, 2)])
            except ValueError as error:
                return _Refusal(f"{refusal} {error}")
            except (Exception, SystemExit) as error:
                where = f"act={name_function(act)}"
                raise WordingFault(f"{where}: {type(error).__name__}: {error}") from error
            if action is None:
                return _Refusal(refusal)
            fitting = fit_action(space, action)
            if fitting is None:
                return _Refusal(f"{refusal} {action!r:.200} is not in {space}.")
            return fitting
        for candidate in candidates[::-1] if is_text_space(space) else candidates:
            action = read_action(space, self._names, candidate)
            if action is None:
                continue
            find_fault = self._known and self._known.find_action_fault
            if find_fault and (fault := find_fault(self.env.unwrapped, action)):
                return _Refusal(f"{refusal} {fault}")
            return action
        return _Refusal(self.refuse(refusal))


@dataclass(frozen=True)
class _Refusal:
    text: str


class _ReturnCheck(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Checks what an environment returns before Gymnasium's own wrappers unpack it."""

    def reset(
        self, *, seed: "int | None" = None, options: "dict[str, Any] | None" = None
    ) -> "tuple[Any, dict[str, Any]]":
        extra = {} if options is None else {"options": options}
        state, info = _call_reset(self.env, seed=seed, **extra)
        return state, info

    def step(self, action: Any) -> "tuple[Any, Any, bool, bool, dict[str, Any]]":
        state, reward, terminated, truncated, info = _call_step(self.env, action)
        return state, reward, terminated, truncated, info


def _check_wrapped(env: GymEnv) -> GymEnv:
    """Have what is within the wrappers of `gymnasium.make` checked; return the environment.

    They fail at what Gym's environments return without a word about it.
    """
    outer, inner = None, env
    while isinstance(inner, gymnasium.Wrapper) and _is_gymnasiums_own(inner):
        outer, inner = inner, inner.env
    if outer is not None:
        outer.env = _ReturnCheck(inner)
    return env


def _is_gymnasiums_own(wrapper: Any) -> bool:
    return type(wrapper).__module__.startswith("gymnasium.wrappers.")


def _call_reset(env: GymEnv, **arguments: Any) -> Sequence[Any]:
    try:
        with contextlib.suppress(ValueError):  # of a method that is not Python's
            inspect.signature(env.reset).bind(**arguments)
    except TypeError as error:
        raise ValueError(
            f"reset() of {type(env).__name__} cannot be called: {error}; give it the parameters "
            "(self, *, seed=None, options=None): Gymnasium asks for them since Gym's 0.26"
        ) from error
    return _read_parts(env.reset(**arguments), "reset", "observation, info")


def _call_step(env: GymEnv, action: Any) -> Sequence[Any]:
    parts = "observation, reward, terminated, truncated, info"
    return _read_parts(env.step(action), "step", parts)


def _read_parts(returned: Any, method: str, parts: str) -> Sequence[Any]:
    """Return the parts of a method's answer; raise `ValueError` for other ones, as of Gym."""
    values: list[Any] = [*returned] if isinstance(returned, tuple | list) else []
    if len(values) == parts.count(",") + 1 and isinstance(values[-1], Mapping):
        return values
    raise ValueError(
        f"{method}() returned {returned!r:.80}; return ({parts}), the info a dict: Gymnasium asks "
        "for it since Gym's 0.26"
    )


def read_reward(reward: Any) -> float:
    """Return a reward as a number; a scalar of NumPy is one, and so is an array of no dimensions.

    Raises `ValueError` for anything else.
    """
    number: Any = reward
    is_array = isinstance(reward, np.ndarray | np.generic)
    if isinstance(reward, int | float) or (is_array and number.ndim == 0 and _is_real(number)):
        with contextlib.suppress(OverflowError):
            return float(number)
    raise ValueError(f"the reward of step() is {reward!r:.80}; return a float")


def read_flag(name: str, value: Any) -> bool:
    """Return whether an episode ended; 0 and 1 are as clear as False and True.

    Raises `ValueError` for anything else: a text is true, whatever it says.
    """
    is_scalar = isinstance(value, np.ndarray | np.generic) and value.ndim == 0
    flag: Any = value.item() if is_scalar else value
    if isinstance(flag, int) and flag in (0, 1):
        return bool(flag)
    raise ValueError(f"{name} of step() is {value!r:.80}; return True or False")


def _is_real(number: Any) -> bool:
    return number.dtype.kind in "biuf"


def _strip_colours(drawing: str) -> str:
    bracketed = re.sub(r"\x1b\[[0-9;]+m(.*?)\x1b\[0m", r"[\1]", drawing)
    return re.sub(r"\x1b\[[0-9;]*m", "", bracketed).strip("\n")
