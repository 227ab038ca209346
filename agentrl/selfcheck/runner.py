"""Checks one after the other, each in a process of its own with a time limit.

A check that crashes, hangs or runs out of memory is a failed check, and the next one starts. The
report is written after each, so that a self-check that is killed leaves what it has found.
"""

import contextlib
import getpass
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import agentrl
from agentrl.errors import ConfigError
from agentrl.run.preflight import find_cuda_fault
from agentrl.runtime.atomic_files import write_json
from agentrl.runtime.distribution import __version__
from agentrl.runtime.gpu_placement import VARIABLE
from agentrl.runtime.machine import version_of
from agentrl.selfcheck.catalogue import DeviceCheck
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
"""A check is not started with less time left: importing torch takes as long."""
LOG_BYTES = 4_000
LOG_LINES = 3
"""Last lines of a process's output that explain its end."""
END_S = 5.0
"""Seconds that a process without a verdict has to end by itself, so that its status is known."""
LOOK_S = 0.1


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
    for check in checks:
        left_s = end_s - time.monotonic()
        if left_s < LEAST_S:
            reason = f"the time was up after {minutes:g} minutes; {MORE_TIME}"
            result = CheckResult(name=check.name, status="skipped", reason=reason)
        else:
            result = run_process(
                check, device=device, limit_s=min(check.limit_s, left_s), words=private_words
            )
        report = report.add(result)
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
        raise ConfigError(
            f"the report {file} cannot be written: {error.strerror or error}; make room, or give "
            "another file as --json"
        ) from error


def run_process(
    check: DeviceCheck, *, device: str, limit_s: float, words: Sequence[str] = ()
) -> CheckResult:
    """Run one check in a process of its own; `words` must not come back with its result."""
    start_s, start_cpu_s = time.monotonic(), _children_cpu_s()
    figures: dict[str, FigureValue] = {}
    end: dict[str, Any] = {}
    too_slow_s: float | None = None
    with (
        tempfile.TemporaryDirectory(prefix="agentrl-check-", ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile() as log,
        _start_process(check, device, folder, limit_s, log) as (process, pipe),
    ):
        try:
            for line in _read_lines(pipe, process, until_s=start_s + limit_s):
                message = read_message(line)
                if "figure" in message:
                    name = redact_text(str(message["figure"]), words)
                    figures[name] = redact_figure(message.get("value"), words)
                end = dict(message) if "status" in message else end
        except TimeoutError:
            too_slow_s = limit_s
        if not end and too_slow_s is None:
            _has_ended(process, END_S)
        code = _end(process)
        output = _tail(log)
        reason = str(end["reason"]) if end else _explain_end(code, too_slow_s, output)
    status: CheckStatus = end.get("status", "failed")
    if too_slow_s is not None and too_slow_s < check.limit_s:
        # It was not given its own time, so it may have done nothing wrong.
        status, reason = "skipped", f"the time was up after {too_slow_s:.0f} s of it; {MORE_TIME}"
    return CheckResult(
        name=check.name,
        status=status,
        reason=redact_text(reason, words),
        seconds=time.monotonic() - start_s,
        cpu_seconds=_children_cpu_s() - start_cpu_s,
        output=redact_tail(output, words) if status == "failed" else "",
        figures=figures,
    )


def _children_cpu_s() -> float:
    """Return the processor seconds of all children that were waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@contextlib.contextmanager
def _start_process(
    check: DeviceCheck, device: str, folder: str, limit_s: float, log: IO[bytes]
) -> Generator[tuple[subprocess.Popen[bytes], int]]:
    ours, theirs = os.pipe()
    roots = [str(Path(agentrl.__file__).parents[1]), *filter(None, sys.path)]
    command = (sys.executable, "-m", "agentrl.selfcheck", check.function, device, folder)
    try:
        process = subprocess.Popen(
            (*command, str(limit_s), str(theirs)),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(roots)},
            pass_fds=[theirs],
            start_new_session=True,
        )
    finally:
        os.close(theirs)
    try:
        yield process, ours
    finally:
        _end(process)
        os.close(ours)


def _read_lines(pipe: int, process: subprocess.Popen[bytes], *, until_s: float) -> Iterator[bytes]:
    """Yield lines until the pipe closes or the process has ended; `TimeoutError` when it is late.

    Children of the process may hold the pipe open longer than it lives.
    """
    rest = b""
    while True:
        ended = _has_ended(process)
        left_s = until_s - time.monotonic()
        if left_s <= 0 and not ended:
            raise TimeoutError
        ready, _, _ = select.select([pipe], [], [], 0 if ended else min(left_s, LOOK_S))
        data = os.read(pipe, 65_536) if ready else b""
        if (ready and not data) or (ended and not ready):
            return
        *lines, rest = (rest + data).split(b"\n")
        yield from lines


def _has_ended(process: subprocess.Popen[bytes], within_s: float = 0.0) -> bool:
    """Return whether a process has ended. It stays a zombie: its group keeps its name."""
    until_s = time.monotonic() + within_s
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while process.returncode is None and os.waitid(os.P_PID, process.pid, options) is None:
        if time.monotonic() >= until_s:
            return False
        time.sleep(LOOK_S)
    return True


def _end(process: subprocess.Popen[bytes]) -> int:
    """End a process and all that it has started; return its exit status."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if process.stdin is not None:
            process.stdin.close()
    return process.wait()


def _explain_end(code: int, limit_s: float | None, log: str) -> str:
    """Return why a process without a verdict has ended; `limit_s` of one that was too slow."""
    if limit_s is not None:
        ending = f"it took longer than {limit_s:.0f} s, and was ended"
    elif code < 0:
        ending = f"its process was ended by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            ending += ", as it is where memory runs out"
    else:
        ending = f"its process ended with exit status {code}"
    last = " / ".join(line.strip() for line in log.splitlines()[-LOG_LINES:])
    return f"{ending}; its last output: {last}" if last else ending


def _tail(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - LOG_BYTES))
    return log.read().decode(errors="replace").strip()


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without an entry, as containers have
        return ""
