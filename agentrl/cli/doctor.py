"""`agentrl doctor`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from agentrl.cli.arguments import Overrides, check_writable
from agentrl.cli.console import out, show_text
from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from agentrl.selfcheck.report import CheckResult

REPORT = Path("selfcheck.json")
STYLES = {"passed": "green", "failed": "red", "skipped": "yellow"}


def doctor(
    config_file: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG]", help="Check whether this machine can run this config."),
    ] = None,
    overrides: Overrides = None,
    *,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="cpu|cuda|auto",
            help="Try out training on this device: one check after the other, each in a process.",
        ),
    ] = None,
    minutes: Annotated[
        float, typer.Option(help="With --device: minutes after which no check goes on.")
    ] = 5.0,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="CHECK", help="With --device: run this check; may be repeated."),
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option(
            "--json", help=f"With --device: file of the report, {REPORT} by default, as JSON."
        ),
    ] = None,
) -> None:
    """Show what is installed on this machine and how to get what is missing, or try it out."""
    if device is not None:
        if config_file is not None:
            raise ConfigError(
                f"--device tries out this machine without a config, but {config_file} is given; "
                "leave one of them out"
            )
        _try_device(device, minutes, tuple(only or ()), json or REPORT)
        return
    if only or json is not None:
        raise ConfigError("--only and --json belong to --device; add --device auto")
    if config_file is not None:
        _check(config_file, overrides or [])
        return
    from agentrl.runtime.doctor import examine

    table = Table(show_edge=False)
    for heading in ("part", "", "details", "how to get it"):
        table.add_column(heading, overflow="fold")
    for group, parts in examine():
        table.add_section()
        table.add_row(Text(group, style="bold"))
        for part in parts:
            state = Text("live", style="green") if part.live else Text("missing", style="yellow")
            get_it = "" if part.live else part.get_it
            table.add_row(Text(part.name), state, Text(part.detail), Text(get_it))
    out.print(table)


def _check(config_file: Path, overrides: list[str]) -> None:
    """Raise `ConfigError` for a missing requirement, as `train` would at its start."""
    from agentrl.config.load import load_config
    from agentrl.run.preflight import check_training

    config = load_config(config_file, overrides)
    check_training(config)
    from agentrl.run.build import build_env_factory  # not before: it takes a second

    build_env_factory(config)
    show_text(f"{config_file}: this machine meets all requirements")


def _try_device(device: str, minutes: float, only: tuple[str, ...], file: Path) -> None:
    """Run the checks on a device, and exit with 1 if one has failed or all were skipped."""
    from agentrl.selfcheck.catalogue import choose_checks
    from agentrl.selfcheck.runner import choose_device, run_checks

    if not 0 < minutes < float("inf"):
        raise ConfigError(f"--minutes is {minutes:g}; give a number above 0, such as 5")
    checks = choose_checks(only)
    check_writable(file, "--json")
    device_name, no_gpu = choose_device(device)
    if no_gpu:
        show_text(f"the checks run on the CPU: {no_gpu}")
    try:
        report = run_checks(
            checks, device=device_name, minutes=minutes, file=file, no_gpu=no_gpu, tell=_show_result
        )
    except KeyboardInterrupt:
        show_text(f"interrupted; the report has the checks that ended before: {file}")
        raise
    show_text(
        f"{report.count('passed')} passed, {report.count('failed')} failed, "
        f"{report.count('skipped')} skipped on {report.device}; report: {file}"
    )
    is_nothing_checked = report.count("skipped") == len(report.results)
    if is_nothing_checked:
        show_text("nothing was checked: every check was skipped")
    if report.failed or is_nothing_checked:
        raise typer.Exit(1)


def _show_result(result: "CheckResult") -> None:
    line = Text.assemble(
        (f"{result.status:8}", STYLES[result.status]),
        f"{result.name:15} {result.seconds:5.1f} s",
        f"  {result.reason}" if result.reason else "",
    )
    out.print(line)
