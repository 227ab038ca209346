"""What every test runs under: one thread per process, named parts of the system, no leaks.

A test marked with the name of a part of the system (`namespaces`, `gpu`) is skipped, with the
reason, where that part is missing. `AGENTRL_REQUIRE=namespaces,gpu` names the parts that must be
there: a test that lacks one of those fails. A machine that has to prove something sets it, so that
nothing is skipped behind its back.
"""

import contextlib
import gc
import os

# Read once by numpy's and torch's OpenMP, so it is set before anything imports them. Subprocesses
# inherit it: on two cores, processes with one thread each beat processes with two.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ray starts a worker for every CPU of a cluster, each of which imports for seconds, whether or not
# anybody asks for one.
os.environ.setdefault("RAY_enable_worker_prestart", "0")
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")

import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from agentrl.runtime.machine import set_batch_invariance
from tests.support.examples import THOROUGH
from tests.support.processes import children, command_line

if TYPE_CHECKING:
    from agentrl_sandbox.recipe import Kind

set_batch_invariance()

# A machine that is busy with something else must not fail a property for being slow.
settings.register_profile(
    "agentrl",
    deadline=None,
    derandomize="CI" in os.environ,
    max_examples=100 if os.environ.get(THOROUGH) else 40,
)
settings.load_profile("agentrl")


def missing_bubblewrap() -> str:
    """Return why nothing can be isolated here, or an empty string."""
    if shutil.which("bwrap") is None:
        return "bwrap is not installed; apt-get install bubblewrap"
    command = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return "" if ran.returncode == 0 else f"bwrap cannot unshare: {ran.stderr.strip()}"


def missing_namespaces() -> str:
    """Return why we can isolate nothing by ourselves here, or an empty string."""
    from agentrl_sandbox import layers

    (row,) = (layer for layer in layers() if layer.name == "user namespaces")
    return "" if row.live else f"{row.detail}; {row.get_it}"


def missing_cgroup() -> str:
    """Return why no cgroup can be made here, or an empty string."""
    from agentrl_sandbox.cgroup import explain_no_cgroups

    return explain_no_cgroups()


def missing_chromium() -> str:
    """Return why no browser can be run here, or an empty string."""
    from agentrl.errors import ConfigError
    from agentrl_envs.web.browser.chromium import find

    try:
        find()
    except ConfigError as error:
        return str(error)
    return missing_bubblewrap()


def missing_docker() -> str:
    """Return why no container of sandboxes can be started here, or an empty string."""
    return missing_image("sandbox")


def missing_docker_bridge() -> str:
    """Return why no container of ours can have a network of the engine's, or an empty string."""
    command = ["docker", "network", "inspect", "bridge"]
    if why := missing_docker():
        return why
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if ran.returncode == 0 else f"{ran.stderr.strip()}: start dockerd with a bridge"


def missing_desktop_image() -> str:
    """Return why no desktop can be started in a container here, or an empty string."""
    return missing_image("desktop")


def missing_image(kind: "Kind") -> str:
    """Return why no container of an image of ours can be started, or an empty string."""
    from agentrl.errors import AgentrlError
    from agentrl_sandbox.launch.engine import DockerEngine
    from agentrl_sandbox.recipe import RECIPES

    try:
        with contextlib.closing(DockerEngine()) as engine:
            engine.check_image(RECIPES[kind].image(RECIPES[kind].tag))
    except AgentrlError as error:
        return str(error)
    return ""


def missing_gpu() -> str:
    """Return why there is no CUDA device to compute on, or an empty string."""
    import torch

    return "" if torch.cuda.is_available() else "torch sees no CUDA device"


def missing_peer(name: str) -> str:
    """Return why somebody else's package cannot be compared with, or an empty string."""
    place = Path(__file__).parents[1] / ".bench" / name
    return "" if place.is_dir() else f"{place} is not there; tests/peers.sh {name} builds it"


def missing_gui() -> str:
    """Return why no desktop with programs can be run here, or an empty string."""
    from agentrl_envs.gui.desktop.parts import probe_own_parts

    rows = probe_own_parts()
    missing = [f"{part.name}: {part.detail}; {part.get_it}" for part in rows if not part.live]
    return "; ".join(missing) or missing_bubblewrap()


def missing_ray() -> str:
    """Return why no cluster can be started here, or an empty string."""
    # What its job server needs comes with `ray[default]` alone.
    there = all(map(importlib.util.find_spec, ("ray", "aiohttp")))
    return "" if there else "Ray is not all there; pip install -c constraints.txt '.[ray]'"


def missing_pycosat() -> str:
    """Return why one family of reasoning-gym cannot be used here, or an empty string."""
    return "" if importlib.util.find_spec("pycosat") else "pip install -c constraints.txt pycosat"


PEERS = (
    *("agents", "browsergym", "datasets", "gem", "harbor", "inspect", "math_verify", "openenv"),
    *("openenv_next", "pyarrow", "renderers", "sinks", "smollm2", "torchao", "trl_templates", "uv"),
    *("verifiers", "vllm"),
)
"""Packages that do not go into our venv; see peers.sh."""
PARTS: Mapping[str, Callable[[], str]] = {
    "bubblewrap": cache(missing_bubblewrap),
    "cgroup": cache(missing_cgroup),
    "chromium": cache(missing_chromium),
    "desktop_image": cache(missing_desktop_image),
    "docker": cache(missing_docker),
    "docker_bridge": cache(missing_docker_bridge),
    "gpu": cache(missing_gpu),
    "gui": cache(missing_gui),
    "namespaces": cache(missing_namespaces),
    "pycosat": missing_pycosat,
    "ray": cache(missing_ray),
    **{name: partial(missing_peer, name) for name in PEERS},
}
"""Marks that stand for a part of the system, and what says why it is missing."""


def required_parts(text: str) -> frozenset[str]:
    """Read the value of AGENTRL_REQUIRE: names of parts, comma-separated."""
    names = frozenset(filter(None, (name.strip() for name in text.split(","))))
    if unknown := names - PARTS.keys():
        raise pytest.UsageError(
            f"AGENTRL_REQUIRE names {sorted(unknown)}; the parts are {sorted(PARTS)}"
        )
    return names


def pytest_configure() -> None:
    """Refuse a requirement nobody checks before the first test runs."""
    required_parts(os.environ.get("AGENTRL_REQUIRE", ""))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest: a file stays in one process, and none ends alone."""
    long = {item.path for item in items if any(map(item.get_closest_marker, ("slow", "timeout")))}
    items.sort(key=lambda item: item.path not in long)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from going through what was collected and imported.

    A run in the process of a test begins with a full pass, 0.4 s where all tests are collected.
    """
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, or fail where it is required, a test whose part of the system is missing."""
    for part, missing in PARTS.items():
        if item.get_closest_marker(part) and (why := missing()):
            if part in required_parts(os.environ.get("AGENTRL_REQUIRE", "")):
                pytest.fail(f"AGENTRL_REQUIRE asks for {part}: {why}", pytrace=False)
            pytest.skip(why)
    # A test may have run code that set its own number; importing torch for this alone is too dear.
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


# Those that import vLLM; tests/system/engine/vllm/test_vllm.py runs them in its venv.
collect_ignore = [] if importlib.util.find_spec("vllm") else ["system/with_vllm"]


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the repository root."""
    return Path(__file__).parents[1]


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left() -> Iterator[None]:
    """Fail the session when a process it started is alive after everything is torn down."""
    yield
    ends = time.monotonic() + 20.0  # what was told to end may be about to
    while left := [line for line in child_commands() if "resource_tracker" not in line]:
        assert time.monotonic() < ends, f"the tests left processes behind: {left}"
        time.sleep(0.1)


def child_commands() -> list[str]:
    """Return the command lines of this process's children; a zombie has none left."""
    return [
        command_line(pid).replace(b"\0", b" ").decode(errors="replace").strip() or f"zombie {pid}"
        for pid in children(os.getpid())
    ]
