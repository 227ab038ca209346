"""Kinds of things from elsewhere, each played by one class: a line of this table is a kind."""

from dataclasses import asdict
from pathlib import Path, PurePath

from agentrl.registry import EnvKind, register_kind
from agentrl.runtime.extras import is_installed
from agentrl.runtime.imports import import_object

DATA_SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".json", ".csv")
"""Endings of the files that a data set may be."""

KINDS = (
    EnvKind(
        name="dataset",
        entry_point="agentrl_envs.dataset:DatasetEnv",
        keyword="path",
        description="rows of a file (parquet, JSON lines, JSON, CSV) or of the hub",
        needs=("agentrl_envs.dataset.env:find_missing_parts",),
        recogniser="agentrl_envs.kinds:is_data_set",
    ),
    EnvKind(
        name="gem",
        entry_point="agentrl_envs.adapters.gem:GemEnv",
        keyword="env_id",
        description="an environment of GEM, by its id; needs python=...",
        needs=("agentrl_envs.needs:missing_interpreter",),
    ),
    EnvKind(
        name="gymnasium",
        entry_point="agentrl_envs.adapters.gymnasium:open_gymnasium",
        keyword="id",
        description="an environment of Gymnasium's, told in words: Name-v0, module:Name-v0 or "
        "module:Class; python=... for one of another venv",
        needs=("agentrl_envs.needs:missing_interpreter",),
        recogniser="agentrl_envs.kinds:is_gymnasium",
    ),
    EnvKind(
        name="harbor",
        entry_point="agentrl_envs.harbor:HarborEnv",
        keyword="path",
        description="task folders in Harbor's format, in containers of their own image",
        needs=("agentrl_envs.needs:missing_harbor",),
        recogniser="agentrl_envs.kinds:is_task_folder",
    ),
    EnvKind(
        name="inspect",
        entry_point="agentrl_envs.adapters.inspect_tasks:InspectEnv",
        keyword="task",
        description="a task of Inspect: path/to/tasks.py@task or package/task",
        needs=("agentrl_envs.needs:missing_interpreter", "agentrl_envs.needs:missing_gateway"),
        recogniser="agentrl_envs.kinds:is_inspect_task",
    ),
    EnvKind(
        name="openenv",
        entry_point="agentrl_envs.adapters.openenv:OpenEnvEnv",
        keyword="url",
        description="a running server of OpenEnv, by its URL; needs python=...",
        needs=("agentrl_envs.needs:missing_interpreter",),
        recogniser="agentrl_envs.kinds:is_url",
    ),
    EnvKind(
        name="trl",
        entry_point="agentrl_envs.dataset.trl_env:TrlEnv",
        keyword="factory",
        description="module:Class made for TRL's environment_factory; needs path=... for its rows",
        needs=("agentrl_envs.dataset.env:find_missing_parts",),
        recogniser="agentrl_envs.kinds:is_trl_class",
    ),
    EnvKind(
        name="verifiers",
        entry_point="agentrl_envs.adapters.verifiers:VerifiersEnv",
        keyword="taskset",
        description="an environment of verifiers, by its id",
        needs=("agentrl_envs.needs:missing_interpreter", "agentrl_envs.needs:missing_gateway"),
    ),
)


def register_kinds() -> None:
    """Register every kind of the table."""
    for kind in KINDS:
        register_kind(**asdict(kind))


def is_gymnasium(what: str) -> bool:
    """Return whether this is an id of Gymnasium's, or `module:Class` of an environment of its."""
    if not is_installed("gymnasium"):
        return False
    import gymnasium

    if ":" not in what:
        return what in gymnasium.registry and "/" not in what
    target = import_object(what) if what.count(":") == 1 and "/" not in what else None
    return isinstance(target, type) and issubclass(target, gymnasium.Env)


def is_url(what: str) -> bool:
    """Return whether this is the address of a server."""
    return what.startswith(("http://", "https://", "ws://", "wss://"))


def is_data_file(what: str) -> bool:
    """Return whether this is named like a file of rows."""
    return PurePath(what).suffix.lower() in DATA_SUFFIXES


def is_data_set(what: str) -> bool:
    """Return whether this is named like a file of rows, or is a file that may be meant as one."""
    return is_data_file(what) or (not what.endswith((".py", ".toml")) and Path(what).is_file())


def is_task_folder(what: str) -> bool:
    """Return whether this is a folder of a task in Harbor's format, or of several."""
    folder = Path(what)
    return (folder / "task.toml").is_file() or any(folder.glob("*/task.toml"))


def is_inspect_task(what: str) -> bool:
    """Return whether this names a task in a file of Inspect's."""
    file, at, _ = what.partition("@")
    return bool(at) and file.endswith(".py")


def is_trl_class(what: str) -> bool:
    """Return whether this is `module:Class` with a `reset`, and no environment of another form."""
    if what.count(":") != 1 or "/" in what:
        return False
    target = import_object(what)
    is_other = any(hasattr(target, name) for name in ("step", "tasks", "fork"))
    return isinstance(target, type) and hasattr(target, "reset") and not is_other
