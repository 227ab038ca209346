"""Checks of a module that does what `SELFCHECK_IMPORT` says when it is imported; one that
hangs makes the file `SELFCHECK_MARK` before."""

import os
import signal
import sys
import time
from pathlib import Path

from agentrl.selfcheck.context import CheckContext

importer = os.getpid()
values: list[int] = []
if (event := os.environ.get("SELFCHECK_IMPORT")) == "hang":
    if mark := os.environ.get("SELFCHECK_MARK"):
        Path(mark).touch()
    time.sleep(600)
elif event == "crash":
    sys.stderr.write("no such instruction\n")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGSEGV)


def tell_import(context: CheckContext) -> None:
    """Record who has imported the module, and what is in it."""
    context.record("importer", importer)
    context.record("parent", os.getppid())
    context.record("pid", os.getpid())
    context.record("value", len(values))


def change_module(context: CheckContext) -> None:
    """Change the module."""
    values.append(1)
