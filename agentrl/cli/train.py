"""`agentrl train`."""

import shlex
import signal
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentrl.cli.arguments import ConfigFile, JsonFlag, Overrides
from agentrl.cli.console import err, show_json, show_table, show_text
from agentrl.cli.progress import watch
from agentrl.runtime.extras import check_installed
from agentrl.runtime.torchrun import TorchrunLaunch

if TYPE_CHECKING:
    from agentrl.run.train import TrainingResult


def train(
    config_file: ConfigFile,
    overrides: Overrides = None,
    *,
    resume: Annotated[
        bool, typer.Option(show_default=False, help="Resume from the newest checkpoint of the run.")
    ] = False,
    cut_damaged: Annotated[
        bool,
        typer.Option(
            show_default=False,
            help=(
                "With --resume: discard everything after the first damaged record in the run's "
                "store."
            ),
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Train a policy, and evaluate it on held-out tasks before and after.

    Ctrl-C stops cleanly with a checkpoint; --resume goes on from there.
    """
    check_installed("agentrl train", "torch", "transformers")
    from agentrl.config.load import load_config
    from agentrl.run.preflight import check_training

    launch = TorchrunLaunch.read()
    if launch is not None and not launch.leads:
        from agentrl.learn.sharded.torchrun import follow

        follow(launch)
        return
    config = load_config(config_file, overrides or ())
    folder = config.run.folder / config.run.name
    try:
        with _sigterm_as_ctrl_c(), watch() as progress:
            progress.say(f"{config.env.id}, {config.run.steps} steps, in {folder}")
            check_training(config, say=lambda _: None)  # `train` does so too, seconds later
            from agentrl.run import train

            result = train.train(config, progress=progress, resume=resume, cut_damaged=cut_damaged)
    except KeyboardInterrupt:
        if not folder.exists():
            show_text(f"stopped before {folder} was created; there is nothing to resume", err)
            raise typer.Exit(130) from None
        command = "the same command with --resume"
        if launch is None:
            words = [program(), "train", str(config_file), *(overrides or ()), "--resume"]
            command = shlex.join(words)
        show_text(f"stopped; to resume {folder}, run {command}", err)
        raise typer.Exit(130) from None
    if as_json:
        show_json(result)
    else:
        show(result)


@contextmanager
def _sigterm_as_ctrl_c() -> Generator[None]:
    """Stop as cleanly when a scheduler or a container runtime asks as when a person does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    of_ctrl_c = signal.getsignal(signal.SIGINT)
    if of_ctrl_c is signal.SIG_IGN:
        # What a script starts in the background ignores it, and would ignore what we make of it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, of_ctrl_c)


def show(result: "TrainingResult") -> None:
    """Print a run's evaluations, its reward curve, and the command that opens the viewer."""
    rows = [("before", *_cells(result.before)), ("after", *_cells(result.after))]
    headings = ("", "pass@1", "interval", "tasks")
    show_table(headings, rows, title=f"held-out tasks, {result.steps} steps")
    show_text(", ".join(f"{phase} {s:.1f} s" for phase, s in result.seconds.items()))
    if words := _reward_curve(result.folder):
        show_text(words)
    show_text(f"open the viewer: {shlex.join([program(), 'view', str(result.folder)])}")


def _reward_curve(folder: Path) -> str:
    """Return the mean rewards of a run's steps as one line of bars; empty for fewer than two."""
    from agentrl.metrics.writer import FILE, read_metrics
    from agentrl.view.frame import CURVE_COLUMNS, bucket_means, curve

    lines = read_metrics(folder) if (folder / FILE).exists() else []
    rewards = [line["reward/mean"] for line in lines if line.get("reward/mean") is not None]
    if len(rewards) < 2:
        return ""
    means = bucket_means(rewards, CURVE_COLUMNS)
    return f"reward {means[0]:.2f} {curve(means)} {means[-1]:.2f}"


def program() -> str:
    """Return the command that a person types to run agentrl: the program as it was called."""
    return sys.argv[0] if sys.argv[0].endswith("/agentrl") else "agentrl"


def _cells(found: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return pass@1, its interval at whatever confidence, and the number of tasks."""
    interval = next((value for name, value in found.items() if name.startswith("ci")), None)
    if found["pass@1"] is None or interval is None:
        return "unknown", "all trajectories failed", str(found["n"])
    low, high = interval
    return f"{found['pass@1']:.3f}", f"{low:.3f} .. {high:.3f}", str(found["n"])
