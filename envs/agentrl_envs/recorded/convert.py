"""`python -m agentrl_envs.recorded.convert FORM SOURCE FILE`: recordings of what others did."""

import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from agentrl.errors import AgentrlError, ConfigError
from agentrl.learn.recording import ConversationRecording, write_recordings
from agentrl_envs.recorded.converters.android_control import Shown, android_control
from agentrl_envs.recorded.converters.converted import ConversionResult
from agentrl_envs.recorded.converters.osworld import osworld

Source = Annotated[Path, typer.Argument(metavar="SOURCE")]
Target = Annotated[Path, typer.Argument(metavar="FILE", help="JSONL file to write.")]
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)


@app.command("android-control")
def android(
    source: Source,
    file: Target,
    shown: Annotated[
        Shown, typer.Option("--shown", help="Observations to show to the policy.")
    ] = "both",
) -> None:
    """Convert episodes of AndroidControl: a JSON lines file, or a folder of JSON files."""
    _write(android_control(source, shown=shown), source, file)


@app.command("osworld")
def desktops(
    source: Source,
    file: Target,
    tasks: Annotated[
        Path | None,
        typer.Option(
            "--tasks", help="Folder of OSWorld's examples, which contain the task instructions."
        ),
    ] = None,
    size: Annotated[str, typer.Option("--size", help="Screen size, in pixels.")] = "1920x1080",
) -> None:
    """Convert results of OSWorld: every folder below SOURCE that has a traj.jsonl."""
    wide, _, high = size.partition("x")
    if not (wide.isdecimal() and high.isdecimal()):
        raise ConfigError(f"--size is {size!r}; give width and height such as 1920x1080")
    _write(osworld(source, tasks=tasks, size=(int(wide), int(high))), source, file)


def _write(converted: Iterator[ConversionResult], source: Path, file: Path) -> None:
    """Write what could be converted, and say what could not; exit with 1 where nothing could."""
    if file.is_dir():
        raise ConfigError(f"FILE {file} is a folder; name a JSON lines file in it")
    if file.exists() and file.resolve().is_relative_to(source.resolve()):
        raise ConfigError(
            f"FILE {file} exists and is part of SOURCE {source}, which is only read; name another"
        )
    refused: list[str] = []

    def recordings() -> Iterator[ConversationRecording]:
        for one in converted:
            if isinstance(one.recording, ConversationRecording):
                yield one.recording
            else:
                refused.append(f"{one.name}: {one.recording}")

    every = recordings()
    first = next(every, None)
    count = 0 if first is None else write_recordings(file, chain([first], every))
    for line in refused:
        typer.echo(f"left out: {line}", err=True)
    if not count:
        typer.echo(f"wrote no recording to {file}: none could be converted", err=True)
        raise typer.Exit(1)
    typer.echo(f"wrote {count} recordings to {file}")


def main() -> None:
    """Run a command; exits 2 for an error agentrl raises on purpose, or of a file."""
    try:
        app()
    except (AgentrlError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
