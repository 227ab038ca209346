"""`agentrl import`: what something from elsewhere is, and the config that trains on it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentrl.cli.arguments import EnvKwargs, JsonFlag, check_writable, parse_env_kwargs
from agentrl.cli.console import err, show_json, show_text
from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from agentrl.registry import EnvKind
    from agentrl.testing.env_preview import EnvPreview

SHOWN_CHARACTERS = 400
"""Characters of an example's prompt that are shown."""


def import_env(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT", help="File, folder, URL, module:Class or name; or KIND:WHAT."
        ),
    ],
    *,
    kind: Annotated[
        str | None, typer.Option(help="Kind of WHAT, where it cannot be recognised.")
    ] = None,
    kwargs: EnvKwargs = "{}",
    episodes: Annotated[int, typer.Option(min=1, help="Number of tasks per split to play.")] = 3,
    max_turns: Annotated[
        int, typer.Option(min=1, help="Maximum number of turns per episode.")
    ] = 16,
    write: Annotated[
        Path | None, typer.Option(help="Write a config that trains on it to this file.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the tasks, tools and rewards of something from elsewhere, by playing it."""
    import asyncio

    from agentrl.registry import kinds, make
    from agentrl.run.preflight import check_env, check_needs
    from agentrl.testing.env_preview import preview_env

    if write is not None and write.exists():
        raise ConfigError(f"--write {write} is there already; name another file, or remove it")
    check_writable(write, "--write")
    settings = parse_env_kwargs(kwargs)
    id = find_env_id(what, kind, kinds())
    config = _build_config(id, settings)
    check_env(config)
    env = make(id, **settings)
    check_needs(config, getattr(env, "needs", ()))
    preview = asyncio.run(preview_env(env, episodes=episodes, max_turns=max_turns))
    if as_json:
        show_json(to_json(id, preview))
    else:
        show_text("\n".join(describe(id, preview)))
    if write is not None:
        from agentrl.runtime.atomic_files import write_text

        write_text(write, format_config(id, settings, preview))
        show_text(f"wrote {write}; next: agentrl train {write}")
    if fault := preview.find_fault():
        show_text(f"warning: {fault}", err)
        raise typer.Exit(1)


def find_env_id(what: str, kind: str | None, kinds: "Mapping[str, EnvKind]") -> str:
    """Return the id of an environment for what somebody has.

    Raises `ConfigError` for what no kind, or more than one, takes for its own.
    """
    if kind is not None:
        if kind not in kinds:
            raise ConfigError(f"--kind {kind} is none; the kinds are {', '.join(kinds)}")
        return f"{kind}:{what}"
    if what.partition(":")[0] in kinds:
        return what
    from agentrl.runtime.imports import import_callable

    matches = [
        one.name
        for one in kinds.values()
        if one.recogniser and import_callable(one.recogniser)(what)
    ]
    if len(matches) > 1:
        raise ConfigError(
            f"{what} may be of the kinds {', '.join(matches)}; choose one with --kind {matches[0]}"
        )
    if matches:
        return f"{matches[0]}:{what}"
    try:
        from agentrl.registry import spec

        spec(what)
    except ConfigError as error:
        raise ConfigError(
            f"no kind recognises {what}; name its kind with --kind, one of {', '.join(kinds)}, "
            f"or check the path ({error})"
        ) from error
    return what


def to_json(id: str, preview: "EnvPreview") -> dict[str, Any]:
    """Return the findings about an environment as plain values."""
    return {
        "id": id,
        "tasks": dict(preview.task_counts),
        "opening": [{"role": one.role, "text": one.text} for one in preview.opening],
        "answer": preview.example.answer,
        "tools": list(preview.tools),
        "idle_rewards": preview.idle_rewards,
        "gold_rewards": preview.gold_rewards,
        "fault": preview.find_fault() or None,
    }


def describe(id: str, preview: "EnvPreview") -> Iterator[str]:
    """Yield lines about an environment."""
    from agentrl.testing.env_preview import COUNTED_TASKS

    counts = [
        f"{split} {'at least ' if count == COUNTED_TASKS else ''}{count}"
        for split, count in preview.task_counts.items()
    ]
    yield f"id      {id}"
    yield f"tasks   {', '.join(counts)}"
    for message in preview.opening:
        text = " ".join(message.text.split())
        cut = f"{text[:SHOWN_CHARACTERS]}..." if len(text) > SHOWN_CHARACTERS else text
        yield f"        [{message.role}] {cut}"
    answer = json.dumps(preview.example.answer, ensure_ascii=False)
    yield f"answer  {answer[:SHOWN_CHARACTERS]}"
    yield f"tools   {'none' if not preview.tools else len(preview.tools)}"
    for tool in preview.tools:
        yield f"        {json.dumps(tool, ensure_ascii=False)}"
    yield f"reward  says nothing: {_format_rewards(preview.idle_rewards)}"
    gold = preview.gold_rewards
    yield f"        gold player: {'none' if gold is None else _format_rewards(gold)}"
    yield "needs   all there"


def format_config(id: str, settings: Mapping[str, Any], preview: "EnvPreview") -> str:
    """Return a config, as YAML, that trains on an environment.

    With a gold player it begins with a new small model that is shown how it is done.
    """
    import yaml

    env: dict[str, Any] = {"id": id, **({"kwargs": dict(settings)} if settings else {})}
    name = "".join(c if c.isalnum() or c in "-_" else "-" for c in id).strip("-")[:40]
    config: dict[str, Any] = {
        "run": {"name": name, "steps": 100},
        "env": env,
        "policy": {"path": "Qwen/Qwen3-0.6B"},
        "engine": {"slots": 64, "context_tokens": 4096},
        "sampling": {"max_turn_tokens": 1024},
        "rollout": {
            "tasks_per_step": 8,
            "group_size": 8,
            "max_turns": max(8 if preview.tools else 1, preview.gold_turns + 1),
        },
        "learn": {"optimizer": {"learning_rate": 1e-6}},
        "evaluate": {"tasks": min(100, preview.task_counts["heldout"])},
    }
    head = "# A model that can read, by name or folder; see docs/your-model.md.\n"
    if preview.gold_rewards is not None:
        head = (
            "# A new small model, which the gold player shows how it is done; `policy: {path: "
            "FOLDER}`\n# without `warmstart` begins with a model of yours.\n"
        )
        small = {"hidden_size": 128, "layers": 4, "heads": 4, "kv_heads": 4, "head_dim": 32}
        config["policy"] = {"make": {**small, "intermediate_size": 256}}
        demonstrations = min(3000, preview.task_counts["train"])
        warmstart = {"steps": 400, "batch_size": 32, "demonstrations": demonstrations}
        config["warmstart"] = {**warmstart, "guess_fraction": 0.5}
        config["engine"]["context_tokens"] = 512
        config["sampling"]["max_turn_tokens"] = 64
        config["learn"]["optimizer"]["learning_rate"] = 3e-4
    return head + yaml.safe_dump(config, sort_keys=False, allow_unicode=True)


def _build_config(id: str, settings: Mapping[str, Any]) -> Any:
    """Return a config of the environment alone, which is asked what it needs."""
    from agentrl.config.run import RunConfig

    return RunConfig.model_validate(
        {
            "run": {"name": "import"},
            "env": {"id": id, "kwargs": dict(settings)},
            "policy": {"path": "none"},
        }
    )


def _format_rewards(rewards: tuple[float, ...]) -> str:
    return " ".join(f"{reward:g}" for reward in rewards)
