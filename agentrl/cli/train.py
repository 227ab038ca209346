"""`agentrl train`."""

import shlex
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentrl.cli.arguments import ConfigFile, JsonFlag, Overrides
from agentrl.cli.console import err, show_json, show_table, show_text
from agentrl.cli.progress import show_progress
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
    with tell_resume("train", config_file, overrides or (), folder), show_progress() as progress:
        progress.say(f"{config.env.id}, {config.run.steps} steps, in {folder}")
        check_training(config, say=lambda _: None)  # `train` does so too, seconds later
        from agentrl.run import train

        result = train.train(config, progress=progress, resume=resume, cut_damaged=cut_damaged)
    if as_json:
        show_json(result)
    else:
        show(result)


@contextmanager
def tell_resume(
    command: str, config_file: Path, overrides: Sequence[str], folder: Path
) -> Generator[None]:
    """Show how a run is resumed that is stopped in this block, and exit with 130."""
    try:
        yield
    except KeyboardInterrupt:
        if not folder.exists():
            show_text(f"stopped before {folder} was created; there is nothing to resume", err)
            raise typer.Exit(130) from None
        words = "the same command with --resume"
        if TorchrunLaunch.read() is None:
            words = shlex.join([program(), command, str(config_file), *overrides, "--resume"])
        show_text(f"stopped; to resume {folder}, run {words}", err)
        raise typer.Exit(130) from None


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
