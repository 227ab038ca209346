"""The process of one check: `python -m agentrl.selfcheck FUNCTION DEVICE FOLDER LIMIT_S PIPE`.

Messages go to the pipe, a JSON object a line: `{"figure": name, "value": value}`, and at the end
`{"status": ..., "reason": ...}`. Standard input stays open as long as the parent lives; when it
closes, the folder is removed and the whole process group ends.
"""

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.selfcheck.context import CheckContext, CheckFailed, CheckSkipped, host_peak_mib
from agentrl.selfcheck.report import CheckStatus, FigureValue, plain_figure


def main(arguments: list[str]) -> None:
    """Run one check, and tell how it ended."""
    function, device, folder, limit_s, pipe = arguments
    threading.Thread(target=_end_with_parent, args=(Path(folder),), daemon=True).start()
    with os.fdopen(int(pipe), "wb", buffering=0) as file:

        def send(message: dict[str, Any]) -> None:
            file.write(json.dumps(message).encode() + b"\n")

        def send_figure(name: str, value: FigureValue) -> None:
            send({"figure": name, "value": plain_figure(value)})

        context = CheckContext(device, Path(folder), float(limit_s), send_figure)
        status, reason = run_check(function, context)
        _record_peaks(context)
        send({"status": status, "reason": reason})


def run_check(function: str, context: CheckContext) -> tuple[CheckStatus, str]:
    """Run a check and return its verdict. Any other exception is a failure, with its traceback
    printed."""
    from agentrl.runtime.imports import import_callable

    try:
        check: Callable[[CheckContext], None] = import_callable(function)
        check(context)
        context.conclude()
    except CheckSkipped as skip:
        return "skipped", str(skip)
    except CheckFailed as failure:
        return "failed", str(failure)
    except Exception as error:  # noqa: BLE001 - whatever breaks is what the check has found
        import traceback

        traceback.print_exc()
        reason = "; ".join([*context.faults, f"{type(error).__name__}: {error}"])
        return "failed", reason
    return "passed", ""


def _record_peaks(context: CheckContext) -> None:
    """Record the most memory that this process has had, and so its device."""
    context.record("peak_host_mib", round(host_peak_mib(), 1))
    torch: Any = sys.modules.get("torch")
    if context.device != "cpu" and torch is not None and torch.cuda.is_initialized():
        context.record("peak_device_mib", round(torch.cuda.max_memory_allocated() / 2**20, 1))


def _end_with_parent(folder: Path) -> None:
    while os.read(0, 4096):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
