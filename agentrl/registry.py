"""Environments by name, in Gymnasium's manner: `register`, `make`, `spec`, `registry`.

What comes from elsewhere has an id of the form `KIND:WHAT`, such as `gymnasium:FrozenLake-v1` or
`dataset:tasks.jsonl`; `kinds` has every kind.

Distributions list a function that registers their environments and kinds under the entry-point
group `agentrl.envs`. They are asked once, when an id is not known yet or the registry is listed.
"""

import functools
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, cast

from agentrl.authoring.env_id import EnvId
from agentrl.authoring.setting_kinds import check_setting_kinds
from agentrl.env import Action, Env
from agentrl.errors import ConfigError
from agentrl.message import Message
from agentrl.runtime.extras import is_installed
from agentrl.runtime.imports import import_callable, import_named
from agentrl.task import Task
from agentrl.tool import LateTools, ToolSource

if TYPE_CHECKING:
    from agentrl.authoring.tool_env import Reward, Tasks

Maker = Callable[..., Env]
_KIND_NAME = re.compile(r"[A-Za-z][\w-]*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """Registry entry of an environment. JSON-able."""

    id: str
    """Name of the form `namespace/Name-v0`."""
    entry_point: str
    """`module:Class`, or what a registered function is called."""
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Default settings."""
    description: str = ""
    """One line for lists of environments."""
    needs: tuple[str, ...] = ()
    """Functions that report, before it is made, parts that a machine lacks; see `register`."""

    def to_json(self) -> str:
        """Return the spec as a JSON object."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvKind:
    """Kind of things from elsewhere that are played as environments: ids `NAME:WHAT`."""

    name: str
    """Text before the colon of an id."""
    entry_point: str
    """`module:Class` that makes the environment."""
    keyword: str
    """Keyword argument of the class that is handed what stands behind the colon."""
    description: str
    """One line for lists of kinds."""
    needs: tuple[str, ...] = ()
    """As in `EnvSpec`."""
    recogniser: str = ""
    """Function as `module:name` that is given a path, URL or name and returns whether it is of this
    kind, for `agentrl import`; empty for a kind that has to be named."""


def register(
    id: str,
    entry_point: str | Maker,
    *,
    kwargs: Mapping[str, Any] | None = None,
    description: str = "",
    needs: Sequence[str] = (),
) -> None:
    """Give an environment a name of the form `namespace/Name-v0`.

    Where Gymnasium is installed, the environment is then in its registry too. Registering the same
    again changes nothing, so a cell of a notebook can be run twice.

    Args:
        id: The name, with its version.
        entry_point: `module:Class`, imported when it is made, or a callable that returns an
            environment.
        kwargs: Default settings, JSON-able.
        description: One line for lists of environments.
        needs: Functions as `module:name`, each of which is given the config of a run and yields a
            sentence for every part that this machine lacks. A run asks them before anything heavy
            is imported. An attribute `needs` of the environment says the same once it is made.

    Raises:
        ConfigError: The id has no version or not that form, another entry point has it already,
            or `kwargs` are not JSON-able.
    """
    if EnvId.parse(id).version is None:
        raise ConfigError(f"environment id {id!r} has no version; register {id + '-v0'!r}")
    label = entry_point if isinstance(entry_point, str) else _label(entry_point)
    env_spec = EnvSpec(
        id=id,
        entry_point=label,
        kwargs=dict(kwargs or {}),
        description=description,
        needs=tuple(needs),
    )
    try:
        env_spec.to_json()
    except TypeError as error:
        raise ConfigError(
            f"{id}: kwargs must be JSON-serialisable, but {error}; bind other values with "
            "functools.partial and register that"
        ) from error
    _registry.add(env_spec, entry_point)


def register_kind(
    name: str,
    entry_point: str,
    *,
    keyword: str,
    description: str,
    needs: Sequence[str] = (),
    recogniser: str = "",
) -> None:
    """Give ids of the form `NAME:WHAT` a meaning. Registering the same again changes nothing.

    A kind wins over a module of its name.

    Args:
        name: Letters, digits, `_` and `-`.
        entry_point: `module:Class`, imported when an environment is made.
        keyword: Keyword argument of the class that is handed WHAT.
        description: One line for lists of kinds.
        needs: As for `register`.
        recogniser: `module:name` of a function that is given a path, URL or name and returns
            whether it is of this kind.

    Raises:
        ConfigError: The name has other characters, or stands for something else already.
    """
    if not _KIND_NAME.fullmatch(name):
        raise ConfigError(
            f"kind {name!r} must be letters, digits, '_' and '-', so that ids can begin with it; "
            "choose a name such as dataset"
        )
    _registry.add_kind(
        EnvKind(
            name=name,
            entry_point=entry_point,
            keyword=keyword,
            description=description,
            needs=tuple(needs),
            recogniser=recogniser,
        )
    )


def register_tool_env(
    id: str,
    *,
    tasks: "Tasks",
    reward: "Reward",
    tools: Sequence[ToolSource | LateTools] = (),
    system: str = "",
    answer: Callable[[Task, Sequence[Message]], str | None] | None = None,
    gold: Callable[[Task, Sequence[Message]], Action] | None = None,
    tool_timeout_s: float = 30.0,
    description: str = "",
) -> None:
    """Register a `ToolEnv` made of these parts; `make(id, system=...)` can replace any of them.

    Args:
        id: Name of the form `namespace/Name-v0`, with its version.
        tasks: Function of a split and a seed that yields tasks, finitely or not.
        reward: Function of a task and the whole conversation that scores an episode at its end.
            It returns a number, a mapping of names to numbers whose sum is the reward, or a
            `ScoredAnswer`, and may be asynchronous. One that declares a third parameter is handed
            the `ToolSet` as the episode left it.
        tools: Functions marked with `@tool`, classes with such methods, or `LateTools`.
        system: System message; empty for none.
        answer: Function of a task and the whole conversation that returns the final answer as a
            text, equal for equal answers, or None; `learn.group_reward` lets trajectories vote.
        gold: Function of a task and the messages so far that returns the next action of a player
            that solves the task. Demonstrations need it.
        tool_timeout_s: Deadline of every call, open, fork and close of a tool.
        description: One line for lists of environments.

    Raises:
        ConfigError: The id has no version or not that form, or other parts have it already. What
            is wrong with the parts themselves is raised where they are used.
    """
    from agentrl.authoring.tool_env import ToolEnv

    maker = functools.partial(
        ToolEnv,
        tasks=tasks,
        reward=reward,
        tools=tuple(tools),
        system=system,
        answer=answer,
        gold=gold,
        tool_timeout_s=tool_timeout_s,
    )
    register(id, maker, description=description)


def make(id: str, /, **kwargs: Any) -> Env:
    """Return a new environment.

    `id` is one of

    - `namespace/Name-v0`, a registered one; without the version, the newest;
    - `module:Class`, with no registration;
    - `module:namespace/Name-v0`, registered by importing `module`;
    - `KIND:WHAT`, one from elsewhere, such as `gymnasium:FrozenLake-v1` or `dataset:tasks.jsonl`,
      or `KIND` alone with WHAT among the settings; see `kinds`. A kind's name wins over a module
      of that name.

    Args:
        id: Name of the environment, in one of these forms.
        kwargs: Settings, over the registered ones.

    Raises:
        ConfigError: The id is unknown (the text has the nearest known ones), the environment does
            not have such a setting, one is of another kind than its annotation, or what was made is
            no environment.
    """
    env_spec, entry_point = _resolve(id)
    name, _, what = id.partition(":")
    kind = _registry.find_kind(name) if what else None
    if kind is not None and (other := kwargs.get(kind.keyword, what)) != what:
        raise ConfigError(
            f"{id} says that {kind.keyword} is {what!r}, and the setting {kind.keyword} is "
            f"{other!r:.80}; leave out the setting, or name the environment {name}"
        )
    maker = import_callable(entry_point) if isinstance(entry_point, str) else entry_point
    settings = {**env_spec.kwargs, **kwargs}
    try:
        inspect.signature(maker).bind(**settings)
    except TypeError as error:
        parameters = inspect.signature(maker).parameters
        names = list(parameters)
        unknown = [key for key in settings if key not in names]
        near = [close for key in unknown for close in get_close_matches(key, names, n=1)]
        hint = f"did you mean {near[0]!r}? " if near else ""
        if not unknown and (name := _find_missing(parameters, settings)) is not None:
            hint = f"set it in env.kwargs, or with --kwargs '{{\"{name}\": ...}}'; "
        raise ConfigError(
            f"{id}: {error}; {hint}the keyword arguments of this environment are: "
            f"{', '.join(names) or 'none'}"
        ) from None
    check_setting_kinds(maker, settings, of=id)
    try:
        env = maker(**settings)
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:  # a `sys.exit` would end the run, and well
        raise ConfigError(
            f"{id} raised {type(error).__name__}: {error} when it was created; raise an "
            "`Exception` instead"
        ) from error
    if not isinstance(env, Env):  # pyright: ignore[reportUnnecessaryIsInstance]
        members = ("fork_strategy", "tasks", "reset", "step", "fork", "close")
        missing = ", ".join(name for name in members if not hasattr(env, name))
        gymnasium = sys.modules.get("gymnasium")
        if gymnasium is not None and isinstance(env, gymnasium.Env):
            raise ConfigError(f"{id} created a gymnasium.Env; name it gymnasium:{id}")
        raise ConfigError(
            f"{id} created a {type(env).__name__}, which lacks {missing}; implement agentrl.Env "
            "(agentrl.env.BaseEnv has defaults for fork and close)"
        )
    return env


def spec(id: str) -> EnvSpec:
    """Return the spec of an environment without making it.

    Args:
        id: Name of the environment, in any of the forms that `make` takes.

    Raises:
        ConfigError: The id is unknown.
    """
    return _resolve(id)[0]


class _Registry(Mapping[str, EnvSpec]):
    """Every registered environment by id, those of installed distributions too."""

    def __init__(self) -> None:
        self._specs: dict[str, EnvSpec] = {}
        self._entry_points: dict[str, str | Maker] = {}
        self._kinds: dict[str, EnvKind] = {}
        self._asked = self._asking = False

    def add_kind(self, kind: EnvKind) -> None:
        entry = self._kinds.setdefault(kind.name, kind)
        if replace(entry, description="") != replace(kind, description=""):
            raise ConfigError(
                f"the kind {kind.name!r} is registered twice: as {entry.entry_point} with "
                f"{entry.keyword}=WHAT and as {kind.entry_point} with {kind.keyword}=WHAT; give "
                "one of them another name"
            )

    def find_kind(self, name: str) -> EnvKind | None:
        """Return the kind of a name; None for what is none."""
        if name not in self._kinds and _KIND_NAME.fullmatch(name):
            self.ask_distributions()
        return self._kinds.get(name)

    @property
    def kinds(self) -> Mapping[str, EnvKind]:
        """Every registered kind by name, those of installed distributions too."""
        self.ask_distributions()
        return dict(sorted(self._kinds.items()))

    def add(self, env_spec: EnvSpec, entry_point: str | Maker) -> None:
        entry = self._specs.get(env_spec.id)
        if entry and replace(entry, description="") != replace(env_spec, description=""):
            raise ConfigError(
                f"{env_spec.id} is registered twice: as {entry.entry_point} {dict(entry.kwargs)} "
                f"and as {env_spec.entry_point} {dict(env_spec.kwargs)}; give one of them another "
                f"name or a new version, such as {EnvId.parse(env_spec.id).name}-v9"
            )
        self._specs[env_spec.id] = env_spec
        self._entry_points[env_spec.id] = entry_point
        # Importing Gymnasium takes longer than registering all of a distribution's: what those have
        # is shown to it by `agentrl.gymnasium_envs`, unless it is there already.
        is_wanted = not self._asking or "gymnasium" in sys.modules
        if entry is None and is_wanted and is_installed("gymnasium"):
            import_callable("agentrl.gym.synchronous:show_to_gymnasium")(env_spec.id)

    def find(self, text: str) -> tuple[EnvSpec, str | Maker]:
        """Return the spec and entry point of an id, with or without its version."""
        env_id = EnvId.parse(text)
        key = self._newest(env_id.name) if env_id.version is None else str(env_id)
        if key not in self._specs:
            self.ask_distributions()
            key = self._newest(env_id.name) if env_id.version is None else str(env_id)
        if key is None or key not in self._specs:
            raise ConfigError(f"unknown environment {text!r}; {self._hint(env_id)}")
        return self._specs[key], self._entry_points[key]

    def ask_distributions(self) -> None:
        """Let every installed distribution register its environments, once."""
        if self._asked:
            return
        # Imported here: it is half the time that `import agentrl` would take.
        from importlib.metadata import entry_points

        self._asked = True
        for point in entry_points(group="agentrl.envs"):
            try:
                register_envs = point.load()
            except ImportError as error:
                self._asked = False
                raise ConfigError(
                    f"the environments of {point.dist.name if point.dist else point.value!r} "
                    f"({point.value}) cannot be imported: {error}; fix or uninstall that "
                    "distribution"
                ) from error
            self._asking = True
            try:
                register_envs()
            finally:
                self._asking = False

    def _newest(self, name: str) -> str | None:
        versions = [i.version for i in map(EnvId.parse, self._specs) if i.name == name]
        newest = max((v for v in versions if v is not None), default=None)
        return None if newest is None else f"{name}-v{newest}"

    def _hint(self, wanted: EnvId) -> str:
        if (newest := self._newest(wanted.name)) is not None:
            return f"the newest version is {newest!r}"
        by_lower = {id.lower(): id for id in self._specs}
        near = get_close_matches(str(wanted).lower(), by_lower, n=3, cutoff=0.5)
        if near:
            ids = [by_lower[key] for key in near]
            return (
                f"the most similar ids are {ids}; name your own environment as module:Class, or as "
                f"module:{wanted} where the module registers it"
            )
        return (
            f"{len(self._specs)} environments are registered (agentrl envs lists them); register "
            f"yours with agentrl.register and name it as module:{wanted}, or as module:Class"
        )

    def __getitem__(self, id: str) -> EnvSpec:
        if id not in self._specs:
            self.ask_distributions()
        return self._specs[id]

    def __iter__(self) -> Iterator[str]:
        self.ask_distributions()
        return iter(sorted(self._specs))

    def __len__(self) -> int:
        self.ask_distributions()
        return len(self._specs)


_registry = _Registry()
registry: Mapping[str, EnvSpec] = _registry
"""Every registered environment by id, those of installed distributions too."""


def kinds() -> Mapping[str, EnvKind]:
    """Return every kind of `KIND:WHAT` by name, those of installed distributions too."""
    return _registry.kinds


def _resolve(id: str) -> tuple[EnvSpec, str | Maker]:
    module, colon, rest = id.partition(":")
    if (kind := _registry.find_kind(module)) is not None:
        kwargs = {kind.keyword: rest} if colon else {}
        point = kind.entry_point
        env_spec = EnvSpec(
            id=id,
            entry_point=point,
            kwargs=kwargs,
            description=kind.description,
            needs=kind.needs,
        )
        return env_spec, point
    if not colon:
        return _registry.find(id)
    if EnvId.is_id(rest):
        import_named(module, id)
        return _registry.find(rest)
    return EnvSpec(id=id, entry_point=id), id


def _label(function: Any) -> str:
    """Return a name that stays the same when the defining module or cell is run again."""
    if isinstance(function, functools.partial):
        partial = cast("functools.partial[Any]", function)
        parts = [_label(arg) for arg in partial.args]
        parts += [f"{name}={_label(value)}" for name, value in partial.keywords.items()]
        return f"{_label(partial.func)}({', '.join(parts)})"
    if isinstance(function, tuple):
        return f"({', '.join(_label(part) for part in cast('tuple[Any, ...]', function))})"
    name = getattr(function, "__qualname__", None)
    return repr(function) if name is None else f"{function.__module__}:{name}"


def _find_missing(
    parameters: Mapping[str, inspect.Parameter], settings: Mapping[str, Any]
) -> str | None:
    """Return the first parameter without a default that no setting fills."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for name, parameter in parameters.items():
        is_required = parameter.default is inspect.Parameter.empty and parameter.kind in kinds
        if is_required and name not in settings:
            return name
    return None
