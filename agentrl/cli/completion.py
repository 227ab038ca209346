"""Words that a shell may put after what has been typed."""

import os
from collections.abc import Mapping, MutableMapping
from itertools import islice
from pathlib import Path
from typing import Any

from agentrl.cli.console import show_text

INSTRUCTION = "_AGENTRL_COMPLETE"
"""Variable by which a shell's script says that it asks for words."""
BASH = "complete_bash"
MOST_RUNS = 200
CONFIG_COMMANDS = ("eval", "plan", "simulate", "train", "warmstart")
"""Commands whose first argument is a config and whose others are overrides."""


def join_bash_words(environment: MutableMapping[str, str]) -> None:
    """Make `KEY`, `=` and a value, into which bash splits an override, `KEY=` and the value."""
    if environment.get(INSTRUCTION) != BASH:
        return
    words, number = environment["COMP_WORDS"].split(), int(environment["COMP_CWORD"])
    place = number if words[number : number + 1] == ["="] else number - 1
    if place < 1 or words[place : place + 1] != ["="]:
        return
    words[place - 1 : place + 1] = [f"{words[place - 1]}="]
    environment["COMP_WORDS"], environment["COMP_CWORD"] = " ".join(words), str(place)


def complete_command_line(environment: Mapping[str, str]) -> list[str] | None:
    """Return the words by which bash may complete an override; None for other command lines.

    To follow a command line with options, the application imports pydantic, which takes a third of
    the time; whoever types overrides completes one after the other.
    """
    line = environment.get("COMP_WORDS", "")
    if environment.get(INSTRUCTION) != BASH or any(mark in line for mark in "\"'\\"):
        return None
    number = int(environment["COMP_CWORD"])
    words = [*line.split()[:number], *(line.split()[number : number + 1] or [""])]
    if number < 3 or words[1] not in CONFIG_COMMANDS or any(w.startswith("-") for w in words[2:]):
        return None
    if words[-2].endswith("="):
        return [value for value in _list_values(words[-2][:-1]) if value.startswith(words[-1])]
    return list_overrides(words[-1])


def answer_shell(environment: MutableMapping[str, str]) -> bool:
    """Print the words that complete an override; return False for other command lines."""
    join_bash_words(environment)
    words = complete_command_line(environment)
    if words is not None:
        show_text("\n".join(words))
    return words is not None


def complete_config(incomplete: str) -> list[str]:
    """Return the names of packaged configs; without one, a shell goes on with files."""
    from agentrl.config.packaged import list_configs

    return [each.name for each in list_configs() if each.name.startswith(incomplete)]


def complete_run(incomplete: str) -> list[str]:
    """Return the run folders below `runs`; without one, a shell goes on with files."""
    files = islice(Path("runs").glob("*/config.yaml"), MOST_RUNS)
    return sorted(str(file.parent) for file in files if str(file.parent).startswith(incomplete))


def complete_config_or_run(incomplete: str) -> list[str]:
    """Return packaged configs and run folders."""
    return complete_config(incomplete) + complete_run(incomplete)


def complete_key(incomplete: str) -> list[str]:
    """Return the config keys and sections that begin with what was typed."""
    from agentrl.config.key_values import read_key_values

    paths: dict[str, None] = {}
    for key in read_key_values():
        parts = key.split(".")
        paths |= {".".join(parts[: depth + 1]): None for depth in range(len(parts))}
    return [path for path in paths if path.startswith(incomplete)]


def complete_override(ctx: Any, incomplete: str) -> list[str]:
    """Return the overrides that go on from what was typed: keys, or the values of the one key."""
    words = ctx.params.get("overrides") or [""]
    if os.environ.get(INSTRUCTION) == BASH and words[-1].endswith("="):
        return [value for value in _list_values(words[-1][:-1]) if value.startswith(incomplete)]
    return list_overrides(incomplete)


def list_overrides(incomplete: str) -> list[str]:
    """Return `KEY=` for each key that begins so, or `KEY=VALUE` for each value of the only one."""
    from agentrl.config.key_values import read_key_values

    key, equals, _ = incomplete.partition("=")
    keys = [path for path in read_key_values() if path == key or not equals]
    keys = [path for path in keys if path.startswith(key)]
    if not equals and (len(keys) > 1 or not any(map(_list_values, keys))):
        return [f"{path}=" for path in keys]
    overrides = [f"{path}={value}" for path in keys for value in _list_values(path)]
    return [override for override in overrides if override.startswith(incomplete)]


def complete_env_id(incomplete: str) -> list[str]:
    """Return the ids of environments that begin with what was typed."""
    from agentrl.registry import registry

    return [id for id in registry if id.startswith(incomplete)]


def _list_values(key: str) -> list[str]:
    from agentrl.config.key_values import read_key_values

    return complete_env_id("") if key == "env.id" else read_key_values().get(key, [])
