"""`python -m agentrl_envs.recorded.convert FORM SOURCE FILE`: recordings of what others did."""

import sys
from collections.abc import Iterator
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
    _write(android_control(source, shown=shown), file)


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
    _write(osworld(source, tasks=tasks, size=(int(wide), int(high))), file)


def _write(converted: Iterator[ConversionResult], file: Path) -> None:
    refused: list[str] = []

    def recordings() -> Iterator[ConversationRecording]:
        for one in converted:
            if isinstance(one.recording, ConversationRecording):
                yield one.recording
            else:
                refused.append(f"{one.name}: {one.recording}")

    count = write_recordings(file, recordings())
    typer.echo(f"wrote {count} recordings to {file}")
    for line in refused:
        typer.echo(f"left out: {line}", err=True)


def main() -> None:
    """Run a command; exits 2 for an error agentrl raises on purpose."""
    try:
        app()
    except AgentrlError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
