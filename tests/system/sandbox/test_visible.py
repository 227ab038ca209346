"""What a session can see of agentrl, however agentrl was installed: nothing but what runs inside.

Each installation is looked at from a session of a process that runs from it: by every import, in
every directory, in `/proc`. The search is first seen to find what it looks for on the host.

Mutants seen caught: no cover over packages, over imported paths, over the interpreter's own
packages, all of an interpreter's prefix bound, all of /usr bound.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl_sandbox.launch.launcher import packages_directory
from agentrl_sandbox.launch.shown import base_python
from agentrl_sandbox.visible_files import select_covered

PACKAGES = ("agentrl", "envs/agentrl_envs", "sandbox/agentrl_sandbox", "tools/agentrl_tools")
INSIDE = ("/run/agentrl.zip", "/run/agentrl", "/run/agentrl/inside.zip")
"""What runs inside, and where a container has it."""
LOOK = r"""
import glob, importlib, os, sys, zipfile
def text_of(path):
    try: return os.readlink(path) if os.path.islink(path) else open(path, errors="replace").read()
    except OSError: return ""
def imported(prefix):
    for top in ("/usr/lib*", "/usr/local/lib*", f"{sys.prefix}/lib*"):
        sys.path += glob.glob(f"{top}/python*/*-packages")
    loaded = {n: sys.modules.pop(n) for n in [*sys.modules] if n.startswith(prefix)}
    found = [n for n in loaded if not f"{n}.".startswith(f"{prefix}_sandbox.")]
    for name in ("", ".grading", "_envs", "_tools", "_sandbox.pool"):
        try: found.append(f"import {importlib.import_module(prefix + name)}")
        except ImportError: pass
    sys.modules.update(loaded)
    return found
def lying_about(prefix, mine, top="/"):
    found = []
    for folder, names, files in os.walk(top):
        if folder in ("/proc", "/sys"):
            names.clear()
            continue
        paths = {os.path.join(folder, name): name for name in (*names, *files)}
        found += [p for p, name in paths.items() if name.startswith(prefix) and p not in mine]
        links = [p for p in paths if p.endswith((".pth", ".egg-link"))]
        found += [p for p in links if prefix in text_of(p)]
    for folder in ("/tmp", "/var/tmp", "/dev/shm"):
        if top == "/" and os.path.isdir(folder) and not os.path.samefile(folder, os.getcwd()):
            found += [os.path.join(folder, name) for name in os.listdir(folder)]
    return found
def archived(prefix, mine):
    own = ("__main__.py", f"{prefix}_sandbox/__init__.py", f"{prefix}_sandbox/inside/")
    archives = [p for p in mine if p.endswith(".zip") and os.path.exists(p)]
    names = [name for path in archives for name in zipfile.ZipFile(path).namelist()]
    return [name for name in names if not name.startswith(own)]
def told_by_processes(prefix, mine):
    kinds = ("cmdline", "environ", "fd/*", "cwd", "root", "exe")
    paths = [path for kind in kinds for path in glob.glob(f"/proc/[0-9]*/{kind}")]
    texts = {path: text_of(path) for path in paths}
    return [(p, t) for p, t in texts.items() if prefix in t and not any(m in t for m in mine)]
def look(prefix, mine):
    found = [*imported(prefix), *lying_about(prefix, mine), *archived(prefix, mine)]
    return found + told_by_processes(prefix, mine)
"""
HOST = r"""
import asyncio, json, sys
from pathlib import Path
import agentrl, agentrl_envs
from agentrl.sandbox import Limits, SandboxSettings
from agentrl_sandbox import ForkServerPool
async def main():
    look, backend, mine = sys.argv[1:]
    limits = Limits(wall_s=120.0, output_bytes=2**16)
    pool = ForkServerPool(SandboxSettings(backend=backend, limits=limits))
    try:
        session = await pool.open()
        await session.exec(look)
        result = await session.exec(f"import json; print(json.dumps(look('agentrl', {mine})))")
        command = await session.run(["python3", "-c", "import agentrl_envs"])
    finally:
        await pool.close()
    assert result.ok, result
    assert command.exit_code == 1, command
    print(json.dumps({"from": agentrl.__file__, "found": json.loads(result.stdout)}))
asyncio.run(main())
"""


def look_from_inside(
    command: Sequence[str], *, backend: str = "namespaces", env: dict[str, str] | None = None
) -> tuple[str, list[str]]:
    """Run an installation's Python; return where it has agentrl, and what its session found."""
    done = subprocess.run(
        [*command, "-c", HOST, LOOK, backend, repr(INSIDE)],
        cwd="/",
        # Without the path that pytest-xdist gives its workers.
        env={n: v for n, v in os.environ.items() if n != "PYTHONPATH"} | (env or {}),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    return answer["from"], answer["found"]


def install(root: Path, directory: Path) -> None:
    """Put agentrl where pip would, and beside it what it needs."""
    directory.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        shutil.copytree(
            root / package,
            directory / Path(package).name,
            ignore=shutil.ignore_patterns("__pycache__", "web"),
        )
    (directory / "agentrl_gym-0.1.0.dist-info").mkdir()
    # Its dependencies are those of the tests; paths in a .pth are not searched for more of them.
    (directory / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("namespaces", marks=pytest.mark.namespaces),
        pytest.param("bubblewrap", marks=pytest.mark.bubblewrap),
    ],
)
def test_from_an_editable_checkout(root: Path, backend: str) -> None:
    where, found = look_from_inside([sys.executable], backend=backend)
    assert where == str(root / "agentrl" / "__init__.py")
    assert not found


@pytest.mark.namespaces
def test_from_an_environment_of_its_own(root: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "venv"
    subprocess.run([base_python(), "-m", "venv", "--without-pip", prefix], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    install(root, prefix / "lib" / version / "site-packages")
    where, found = look_from_inside([f"{prefix}/bin/python"])
    assert where.startswith(str(prefix))
    assert not found


@pytest.mark.namespaces
@pytest.mark.bubblewrap
def test_from_the_packages_of_the_interpreter_itself(root: Path, tmp_path: Path) -> None:
    """As `pip install` in a container does it: where sandboxes see the interpreter's libraries."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    asked = subprocess.run([base_python(), "-c", code], capture_output=True, text=True, check=True)
    packages = Path(asked.stdout.strip())
    if not packages.is_dir():
        pytest.skip(f"the interpreter has no {packages}")
    install(root, tmp_path / "packages")
    here = ["bwrap", "--dev-bind", "/", "/", "--bind", f"{tmp_path}/packages", f"{packages}"]
    where, found = look_from_inside([*here, base_python()])
    assert where == str(packages / "agentrl" / "__init__.py")
    assert not found
    # And the same search, outside, finds all of it.
    search = f"{LOOK}\nprint(imported('agentrl'), lying_about('agentrl', (), {str(packages)!r}))"
    done = subprocess.run(
        [*here, base_python(), "-c", search],
        env={n: v for n, v in os.environ.items() if n != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=True,
    )
    for what in ("import <module 'agentrl_envs'", f"{packages}/agentrl_tools", "dist-info"):
        assert what in done.stdout, what


@pytest.mark.docker
def test_from_a_container(root: Path) -> None:
    _, found = look_from_inside([sys.executable], backend="docker")
    assert not found


def test_packages_with_agentrl_are_refused(tmp_path: Path) -> None:
    (tmp_path / "numpy").mkdir()
    (tmp_path / "agentrl_users_own").mkdir()
    assert packages_directory(str(tmp_path)) == str(tmp_path)
    (tmp_path / "agentrl_envs").mkdir()
    with pytest.raises(
        ConfigError, match="which contains agentrl_envs, where sessions could read the answers"
    ):
        packages_directory(str(tmp_path))


PATHS = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(
    lambda parts: Path("/", *parts)
)


@given(st.sets(PATHS, max_size=8), st.sets(PATHS, max_size=3), st.lists(PATHS, max_size=4))
def test_what_is_seen_is_covered_unless_it_holds_what_is_needed(
    paths: set[Path], visible: set[Path], needed: list[Path]
) -> None:
    """Kills: a path outside covered, a needed one covered, one left open, one covered twice."""
    covered = select_covered(paths, visible=visible, needed=needed)
    for path in covered:
        assert path in paths
        assert not any(other.is_relative_to(path) for other in needed)
        assert sum(path.is_relative_to(above) for above in covered) == 1
    for path in paths:
        seen = any(path.is_relative_to(top) for top in visible)
        holds = any(other.is_relative_to(path) for other in needed)
        is_covered = any(path.is_relative_to(above) for above in covered)
        assert is_covered or not seen or holds


def test_a_script_s_own_directory_is_covered_and_a_directory_of_programs_is_not() -> None:
    """Worked out by hand, as for /usr/local/bin/agentrl and a project below /usr/share."""
    bin_, share = Path("/usr/local/bin"), Path("/usr/share")
    imported = {bin_, bin_ / "agentrl", share / "work", share / "work" / "envs", Path("/srv/x")}
    covered = select_covered(imported, visible=[bin_, share], needed=[bin_, share])
    assert covered == [bin_ / "agentrl", share / "work"]
