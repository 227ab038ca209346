"""Parts of this machine, one by one, and the commands that get those that are missing."""

import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol

from agentrl.runtime.extras import (
    EXTRAS,
    install_command,
    is_installed,
    list_extras,
    missing_module,
)
from agentrl.runtime.machine import PACKAGES, gpus, usable_cores, version_of

ENTRY_POINTS = "agentrl.runtime.doctor"
"""Group of functions that return parts: how the sandboxes and the browsers report theirs."""


class SystemPart(Protocol):
    """Something a machine has or lacks: a version or why it cannot be used, and how to get it."""

    @property
    def name(self) -> str: ...

    @property
    def live(self) -> bool: ...

    @property
    def detail(self) -> str: ...

    @property
    def get_it(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ProbedPart:
    """A part the doctor looked for itself."""

    name: str
    live: bool
    detail: str
    get_it: str = ""


def examine() -> Iterator[tuple[str, list[SystemPart]]]:
    """Yield the parts of this machine by group, each as soon as it is known. Imports torch."""
    yield "machine", [*_probe_python(), *_probe_torch()]
    for point in sorted(entry_points(group=ENTRY_POINTS)):
        try:
            report: Callable[[], Iterable[SystemPart]] = point.load()
        except ImportError as error:
            yield point.name, [explain_import(point.name, error)]
        else:
            yield point.name, list(report())
    yield "extras", [*_probe_extras()]


def explain_import(name: str, error: ImportError) -> ProbedPart:
    """Return a part in the place of those whose module cannot be imported."""
    if module := missing_module(error):
        return ProbedPart(name, False, f"not known without {module}", "see the extras below")
    return ProbedPart(name, False, f"cannot be imported: {error}", "reinstall its package")


def _probe_python() -> Iterator[SystemPart]:
    version_ok = sys.version_info >= (3, 11)
    yield ProbedPart("python", version_ok, platform.python_version(), "Python 3.11 or newer")
    gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    yield ProbedPart("cores", True, f"{usable_cores()} usable, {gib:.1f} GiB of memory")


def _probe_torch() -> Iterator[SystemPart]:
    version = version_of("torch")
    if version is None:
        yield ProbedPart("torch", False, "not installed", install_command("torch"))
        return
    import torch

    yield ProbedPart("torch", True, f"{version}, {torch.get_num_threads()} threads")
    names = gpus()
    built_for = torch.version.cuda
    missing = f"torch is built for CUDA {built_for}" if built_for else "torch is built for the CPU"
    detail = ", ".join(names) or f"no CUDA device ({missing}); the CPU is used"
    yield ProbedPart("gpu", bool(names), detail, "a CUDA build of torch and an NVIDIA driver")


def _probe_extras() -> Iterator[SystemPart]:
    for extra, modules in list_extras().items():
        missing = [module for module in modules if not is_installed(module)]
        versions = [
            f"{package} {version}"
            for package in PACKAGES
            if EXTRAS.get(package.replace("-", "_")) == extra and (version := version_of(package))
        ]
        detail = f"without {', '.join(missing)}" if missing else ", ".join(versions) or "installed"
        yield ProbedPart(extra, not missing, detail, install_command(*modules))
