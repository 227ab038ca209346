"""`agentrl doctor`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.arguments import JsonFlag, Overrides, check_writable
from agentrl.cli.completion import complete_config
from agentrl.cli.console import out, show_json, show_table, show_text
from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from agentrl.runtime.doctor import SystemPart
    from agentrl.selfcheck.report import CheckResult

REPORT = Path("selfcheck.json")
STYLES = {"passed": "green", "failed": "red", "skipped": "yellow"}


def doctor(
    config_file: Annotated[
        Path | None,
        typer.Argument(
            autocompletion=complete_config,
            metavar="CONFIG",
            help="Check whether this machine can run this config.",
        ),
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
    report: Annotated[
        Path | None,
        typer.Option(
            help=f"With --device: file of the report, {REPORT} by default, kept while checks run."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what is installed on this machine and how to get what is missing, or try it out."""
    if device is not None:
        if config_file is not None:
            raise ConfigError(
                f"--device tries out this machine without a config, but {config_file} is given; "
                "leave one of them out"
            )
        _try_device(device, minutes, tuple(only or ()), report or REPORT, as_json=as_json)
        return
    if only or report is not None:
        raise ConfigError("--only and --report belong to --device; add --device auto")
    if config_file is not None:
        _check(config_file, overrides or [])
        if as_json:
            show_json({"config": config_file, "ok": True})
        else:
            show_text(f"{config_file}: this machine meets all requirements")
        return
    from agentrl.runtime.doctor import examine

    parts = [(group, part) for group, parts in examine() for part in parts]
    if as_json:
        show_json([_part_json(group, part) for group, part in parts])
        return
    rows = [
        (group, p.name, "live", p.detail, "")
        if p.live
        else (group, p.name, "missing", p.detail, p.get_it)
        for group, p in parts
    ]
    show_table(
        ("group", "part", "", "details", "how to get it"),
        rows,
        styles={"live": "green", "missing": "yellow"},
    )


def _part_json(group: str, part: "SystemPart") -> dict[str, object]:
    return {
        "group": group,
        "name": part.name,
        "live": part.live,
        "detail": part.detail,
        "get_it": part.get_it,
    }


def _check(config_file: Path, overrides: list[str]) -> None:
    """Raise `ConfigError` for a missing requirement, as `train` would at its start."""
    from agentrl.config.load import load_config
    from agentrl.run.preflight import check_training

    config = load_config(config_file, overrides)
    check_training(config)
    from agentrl.run.build import build_env_factory  # not before: it takes a second

    build_env_factory(config)


def _try_device(
    device: str, minutes: float, only: tuple[str, ...], file: Path, *, as_json: bool
) -> None:
    """Run the checks on a device, and exit with 1 if one has failed or all were skipped."""
    from agentrl.selfcheck.catalogue import choose_checks
    from agentrl.selfcheck.runner import choose_device, run_checks

    if not 0 < minutes < float("inf"):
        raise ConfigError(f"--minutes is {minutes:g}; give a number above 0, such as 5")
    checks = choose_checks(only)
    check_writable(file, "--report")
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
    if as_json:
        show_json(report.to_json())
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
    status = out.paint(f"{result.status:8}", STYLES[result.status])
    reason = f"  {result.reason}" if result.reason else ""
    show_text(f"{status}{result.name:15} {result.seconds:5.1f} s{reason}")
