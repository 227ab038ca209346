"""Methods of a slot: the way from a config section to the function it names.

A method is a section class in `agentrl/config/learning/` (its knobs and their defaults), a pure
function in the package of its slot (its formula), and a row in that package's `METHODS`, which
binds one to the other and records where it comes from and what it has to be given.

A user's own function is named by `name: custom` and `function: package.module:name`. It is called
with the slot's arguments and the section's `arguments` as keywords; `@needs(...)` says what it has
to be given.
"""

import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, Generic, Literal, TypeVar, get_args

from agentrl.config.section import ConfigSection, CustomMethod
from agentrl.errors import ConfigError

Need = Literal[
    "behaviour logprobs",
    "proximal logprobs",
    "averaged logprobs",
    "past logprobs",
    "reference logprobs",
    "entropies",
    "values",
    "idle rows",
]
"""Inputs of a method besides tokens, masks and rewards.

`proximal logprobs` are those of the weights at batch start, `entropies` of the same policy, over
the whole vocabulary; both cost a forward pass. `averaged logprobs` are of a moving average of the
weights, `past logprobs` of the weights that sampled; they stand for the proximal ones. `values`
take a critic, `reference logprobs` a reference policy. `idle rows` are those whose advantages are
all zero, which otherwise get no backward pass."""

F = TypeVar("F")
F_co = TypeVar("F_co", covariant=True)


def _need_nothing(section: Any) -> frozenset[Need]:
    return frozenset()


@dataclass(frozen=True, slots=True)
class LearnMethod(Generic[F_co]):
    """Binding of a section to a function, with its source and its needs."""

    section: type[ConfigSection]
    bind: Callable[[Any], F_co]
    source: str
    needs: Callable[[Any], frozenset[Need]] = _need_nothing


def always(*needs: Need) -> Callable[[Any], frozenset[Need]]:
    """Return a needs function for a method whose needs no knob changes."""
    need_set = frozenset(needs)
    return lambda section: need_set


def needs(*names: Need) -> Callable[[F], F]:
    """Decorate a function of your own with what it has to be given."""
    if unknown := set(names) - set(get_args(Need)):
        raise ValueError(
            f"{sorted(unknown)} are not known needs; choose from {sorted(get_args(Need))}"
        )

    def mark(function: F) -> F:
        function.__dict__["needs"] = frozenset(names)
        return function

    return mark


def knobs_of(section: ConfigSection) -> dict[str, Any]:
    """Return the values of a section's knobs, all but the `name` that chose it."""
    return {key: getattr(section, key) for key in type(section).model_fields if key != "name"}


def bind_knobs(function: Callable[..., Any]) -> Callable[[ConfigSection], Any]:
    """Return the binding of a slot's function whose keywords are the knobs of its section."""
    return lambda section: partial(function, **knobs_of(section))


def bind_method(methods: Sequence[LearnMethod[F]], section: ConfigSection) -> F:
    """Return the function `section` names, with its knobs."""
    if isinstance(section, CustomMethod):
        return partial(import_function(section), **section.arguments)  # pyright: ignore[reportReturnType]
    return find_method(methods, section).bind(section)


def find_needs(methods: Sequence[LearnMethod[Any]], section: ConfigSection) -> frozenset[Need]:
    """Return the needs of the method that `section` names."""
    if isinstance(section, CustomMethod):
        return frozenset(getattr(import_function(section), "needs", ()))
    return find_method(methods, section).needs(section)


def find_method(methods: Sequence[LearnMethod[F]], section: ConfigSection) -> LearnMethod[F]:
    """Return the row of a section."""
    for method in methods:
        if method.section is type(section):
            return method
    names = sorted(method.section.__name__ for method in methods)
    raise ValueError(
        f"{type(section).__name__} is not a method of this slot; the methods are {names}: add its "
        "LearnMethod to the METHODS of its slot"
    )


def import_function(section: CustomMethod) -> Callable[..., Any]:
    """Return the function a `custom` section names; raise `ConfigError` if there is none."""
    module, colon, name = section.function.partition(":")
    where = f"function {section.function!r}"
    if not (module and colon and name):
        raise ConfigError(f"{where} does not have the form package.module:name; correct it")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{where} cannot be imported: {error}; install its package, or run in the folder that "
            "holds it"
        ) from error
    if not callable(function):
        raise ConfigError(f"{where} is a {type(function).__name__}; name a function")
    return function


def check_arguments(section: CustomMethod) -> None:
    """Raise `ConfigError` for a `custom` section whose function is not there, or does not take its
    `arguments`."""
    function = import_function(section)
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return  # of a builtin, which does not say
    names = [
        name
        for name, parameter in parameters.items()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in section.arguments:
        if name not in names and not takes_all:
            near = "".join(f"; did you mean {n!r}?" for n in get_close_matches(name, names, n=1))
            raise ConfigError(
                f"function {section.function!r} takes no argument {name!r}{near or ';'} its "
                f"arguments are {', '.join(names)}"
            )
