"""Checks one after the other, each in a process of its own with a time limit.

A check that crashes, hangs or runs out of memory is a failed check, and the next one starts. The
report is written after each, so that a self-check that is killed leaves what it has found.
"""

import contextlib
import errno
import getpass
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.run.preflight import find_cuda_fault
from agentrl.runtime.atomic_files import write_json
from agentrl.runtime.distribution import __version__
from agentrl.runtime.gpu_placement import VARIABLE
from agentrl.runtime.machine import version_of
from agentrl.selfcheck.catalogue import DeviceCheck
from agentrl.selfcheck.check_processes import START_S, CheckForkServer, explain_end, read_tail
from agentrl.selfcheck.context import CheckFailed
from agentrl.selfcheck.report import (
    CheckResult,
    CheckStatus,
    FigureValue,
    SelfCheckReport,
    find_private_words,
    read_message,
    redact_figure,
    redact_tail,
    redact_text,
)

MORE_TIME = "raise --minutes"
LEAST_S = 5.0
"""A check is not started with less time left: hardly any would end."""
VERDICT_S = 5.0
"""Seconds that a process without a verdict has to end by itself, so that its status is known."""


def choose_device(name: str) -> tuple[str, str]:
    """Return `cpu` or `cuda`, the one named or for `auto` the best that works, and why no GPU is
    used where `auto` found none.

    Raises `ConfigError` for another name, and for `cuda` where torch cannot use a GPU.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(
            f"--device is {name!r}: give cpu, cuda or auto; cuda is the first GPU that "
            f"{VARIABLE} shows"
        )
    if name == "cpu":
        return "cpu", ""
    fault = find_cuda_fault(version_of("torch")) or find_gpu_fault(os.environ.get(VARIABLE))
    if name == "cuda" and fault:
        raise ConfigError(f"--device is cuda, but {fault}; fix that, or give --device cpu")
    return ("cpu" if fault else "cuda"), fault


def find_gpu_fault(visible: str | None) -> str:
    """Return why torch can use no GPU, empty where it can; `visible` is `CUDA_VISIBLE_DEVICES`.

    Nothing is put on a GPU: one in exclusive mode is for the process of a check.
    """
    import torch

    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        try:
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        except RuntimeError as error:  # a driver that is broken
            return f"torch cannot ask the GPU's driver: {error}"
    if count:
        return ""
    fault = "torch finds no GPU that it can use (nvidia-smi shows the driver's view)"
    if visible is not None:
        fault += f"; {VARIABLE} is {visible!r}, and only the GPUs that it names are seen"
    return fault + "".join(f"; torch says: {warning.message}" for warning in messages[:1])


def run_checks(
    checks: Sequence[DeviceCheck],
    *,
    device: str,
    minutes: float,
    file: Path,
    no_gpu: str = "",
    tell: Callable[[CheckResult], None] = lambda result: None,
) -> SelfCheckReport:
    """Run the checks, at most so many minutes, and write the report to `file` after each.

    Raises `ConfigError` where it cannot be written: at once, or after the last check.
    """
    end_s = time.monotonic() + 60 * minutes
    private_words = find_private_words(os.environ, (_user_name(), os.uname().nodename))
    names = tuple(check.name for check in checks)
    report = SelfCheckReport(
        device=device,
        agentrl=__version__,
        no_gpu=redact_text(no_gpu, private_words),
        waiting=names,
    )
    _write_report(file, report)
    fault: ConfigError | None = None
    with contextlib.closing(CheckForkServer(checks)) as server:
        for check in checks:
            result = _run_check(
                server, check, device=device, minutes=minutes, end_s=end_s, words=private_words
            )
            report = replace(report.add(result), import_seconds=server.import_s)
            try:
                _write_report(file, report)
                fault = None
            except ConfigError as error:  # the others can be told all the same
                fault = error
            tell(result)
    if fault is not None:
        raise fault
    return report


def _write_report(file: Path, report: SelfCheckReport) -> None:
    try:
        write_json(file, report.to_json())
    except OSError as error:
        make_room = "make room, or " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise ConfigError(
            f"the report {file} cannot be written: {error.strerror or error}; {make_room}give "
            "another file as --report"
        ) from error


def _run_check(
    server: CheckForkServer,
    check: DeviceCheck,
    *,
    device: str,
    minutes: float,
    end_s: float,
    words: Sequence[str],
) -> CheckResult:
    """Run one check in what is left of the whole time."""
    fault = ""
    if (left_s := end_s - time.monotonic()) >= LEAST_S:
        try:
            server.start(within_s=min(START_S, left_s))
        except CheckFailed as error:
            fault = redact_text(str(error), words)
        left_s = end_s - time.monotonic()
    if left_s < LEAST_S:
        reason = f"the time was up after {minutes:g} minutes; {MORE_TIME}"
        return CheckResult(name=check.name, status="skipped", reason=reason)
    if fault:
        return CheckResult(name=check.name, status="failed", reason=fault)
    return run_process(
        server, check, device=device, limit_s=min(check.limit_s, left_s), words=words
    )


def run_process(
    server: CheckForkServer,
    check: DeviceCheck,
    *,
    device: str,
    limit_s: float,
    words: Sequence[str] = (),
) -> CheckResult:
    """Run one check in a process of its own; `words` must not come back with its result."""
    start_s = time.monotonic()
    figures: dict[str, FigureValue] = {}
    verdict: dict[str, Any] = {}
    too_slow_s: float | None = None
    with (
        tempfile.TemporaryDirectory(prefix="agentrl-check-", ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile() as log,
        server.fork(check, device=device, folder=folder, limit_s=limit_s, log=log) as process,
    ):
        try:
            for line in process.read_lines(until_s=start_s + limit_s):
                message = read_message(line)
                if "figure" in message:
                    name = redact_text(str(message["figure"]), words)
                    figures[name] = redact_figure(message.get("value"), words)
                verdict = dict(message) if "status" in message else verdict
        except TimeoutError:
            too_slow_s = limit_s
        code, cpu_s = process.end(0.0 if verdict or too_slow_s is not None else VERDICT_S)
        output = read_tail(log)
        reason = str(verdict["reason"]) if verdict else explain_end(code, too_slow_s, output)
    status: CheckStatus = verdict.get("status", "failed")
    if too_slow_s is not None and too_slow_s < check.limit_s:
        # It was not given its own time, so it may have done nothing wrong.
        status, reason = "skipped", f"the time was up after {too_slow_s:.0f} s of it; {MORE_TIME}"
    return CheckResult(
        name=check.name,
        status=status,
        reason=redact_text(reason, words),
        seconds=time.monotonic() - start_s,
        cpu_seconds=cpu_s,
        output=redact_tail(output, words) if status == "failed" else "",
        figures=figures,
    )


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without an entry, as containers have
        return ""
