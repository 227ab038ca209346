"""`agentrl eval`."""

from pathlib import Path
from typing import Annotated

import typer

from agentrl.cli.arguments import JsonFlag, Overrides
from agentrl.cli.completion import complete_config_or_run
from agentrl.cli.console import err, show_json, show_table, show_text
from agentrl.cli.progress import show_progress
from agentrl.errors import ConfigError
from agentrl.runtime.extras import check_installed


def evaluate(
    target: Annotated[
        Path,
        typer.Argument(
            autocompletion=complete_config_or_run,
            metavar="CONFIG|RUN",
            help="Config file, or run folder.",
        ),
    ],
    overrides: Overrides = None,
    *,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Checkpoint to evaluate; the newest one of RUN by default."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder in which to store all trajectories and the report.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            show_default=False, help="Play only the episodes that are missing or failed in --out."
        ),
    ] = False,
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help=(
                "Evaluate a model served by an OpenAI-compatible chat completions endpoint, such "
                "as http://HOST:PORT/v1; the API key is read from OPENAI_API_KEY."
            ),
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model name at --endpoint.")] = None,
    player: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=(
                "Evaluate a player instead of a model: gold, random, or your own function of "
                "messages and tools, as module:function."
            ),
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Evaluate a policy on held-out tasks."""
    if endpoint is None and model is None and player is None:
        check_installed("agentrl eval without --endpoint or --player", "torch", "transformers")
    from agentrl.config.load import load_config
    from agentrl.config.packaged import find_config_file
    from agentrl.runtime.http_endpoint import HttpEndpoint

    http_endpoint = None
    if endpoint is not None or model is not None:
        http_endpoint = HttpEndpoint(url=endpoint or "", model=model or "")
    if target.is_dir():
        if http_endpoint is None and player is None:
            checkpoint = checkpoint_of(target, checkpoint)
        target = target / "config.yaml"
    elif not find_config_file(target).exists() and target.suffix not in {".yaml", ".yml"}:
        raise _no_target(target)
    config = load_config(target, overrides or ())
    with show_progress() as progress:
        progress.say(f"{config.env.id}, {config.evaluate.tasks} held-out tasks")
        from agentrl.evaluation.report import HEADINGS
        from agentrl.run import evaluate  # after the line: it takes seconds

        try:
            report = evaluate.evaluate(
                config,
                checkpoint=checkpoint,
                progress=progress,
                out=out,
                resume=resume,
                endpoint=http_endpoint,
                player=player,
            )
        except KeyboardInterrupt:
            if out is None or not out.exists():
                raise
            text = f"stopped; {out} has what was played: the same command with --resume goes on"
            show_text(text, err)
            raise typer.Exit(130) from None
    if as_json:
        show_json(report.to_json())
    else:
        show_table(HEADINGS, report.rows())
    if cut := report.overall.outcomes.get("truncated_tokens", 0):
        show_text(
            f"{cut} trajectories were truncated by the context limit; raise engine.context_tokens "
            f"({config.engine.context_tokens}) to let them finish",
            err,
        )


def checkpoint_of(run: Path, named: Path | None) -> Path:
    """Return the newest checkpoint, or the named one by path, name, or as a hub's OWNER/NAME."""
    if named is None:
        return newest_checkpoint(run)
    inside = run / "checkpoints" / named
    if named.exists() or len(named.parts) == 2:
        return named
    if inside.is_dir():
        return inside
    names = sorted(path.name for path in (run / "checkpoints").glob("step-*"))
    raise ConfigError(
        f"--checkpoint is {named}, but that folder does not exist; {run} has "
        f"{', '.join(names) or 'no checkpoints'}"
    )


def _no_target(target: Path) -> ConfigError:
    runs = sorted(str(path.parent) for path in target.parent.glob("*/config.yaml"))
    return ConfigError(
        f"{target}: there is no run and no config file of this name; "
        + (f"existing runs: {', '.join(runs)}" if runs else "start one with agentrl train")
    )


def newest_checkpoint(run: Path) -> Path:
    """Return the newest checkpoint in a run's folder."""
    from agentrl.learn.checkpoint import latest

    checkpoint = latest(run / "checkpoints")
    if checkpoint is None:
        raise ConfigError(
            f"{run} has no checkpoint to evaluate; train it first, or name a checkpoint with "
            "--checkpoint"
        )
    return checkpoint
