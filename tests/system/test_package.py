"""What gets installed, and what importing it costs."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.support.packages import ROOTS, modules

HEAVY = {
    "docker",
    "gymnasium",
    "playwright",
    "ray",
    "reasoning_gym",
    "tensorboard",
    "tokenizers",
    "torch",
    "transformers",
    "vllm",
}
"""Seconds of import each, or an optional part: an environment worker starts thousands of times."""

HEAVY_ROOMS = (
    "agentrl.cluster.engines.replicas",
    "agentrl.cluster.engines.weight_cache",
    "agentrl.cluster.trainer",
    "agentrl.engine",
    "agentrl.weight_sync",
    "agentrl.gym.",
    "agentrl.gymnasium_",
    "agentrl.learn",
    "agentrl.metrics.accumulator",
    "agentrl.models.devices",
    "agentrl.models.folders",
    "agentrl.models.out_of_memory",
    "agentrl.models.precision",
    "agentrl.models.quiet",
    "agentrl.models.sinks",
    "agentrl.models.vision.encoder_cache",
    "agentrl.models.vision.model",
    "agentrl.plan.",
    "agentrl.run.build_trainer",
    "agentrl.selfcheck.checks.",
    "agentrl_envs.adapters.gymnasium",
)
"""Modules with these beginnings are what HEAVY is for; everything else imports it when it is used,
if at all."""


def test_imports_are_light(root: Path) -> None:
    """One process imports one module after the other and stops at the first that is not light."""
    light = [
        name
        for name in modules(root)
        if not name.startswith(HEAVY_ROOMS) and not name.endswith("__main__")
    ]
    assert {"agentrl", "agentrl.cli", "agentrl_envs", "agentrl_tools", "agentrl_sandbox"} <= {
        *light
    }
    code = (
        "import importlib, sys\n"
        f"for name in {light!r}:\n"
        "    importlib.import_module(name)\n"
        f"    if heavy := {HEAVY!r} & sys.modules.keys():\n"
        "        sys.exit(f'importing {name} pulled in {sorted(heavy)}')\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_the_wheel_holds_the_four_packages_with_their_data(root: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir"]
    subprocess.run(
        [*command, str(tmp_path), str(root)], check=True, capture_output=True, timeout=120
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    on_disk = {
        path.relative_to(root / place).as_posix()
        for package, place in ROOTS.items()
        for path in (root / place / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
        if not path.is_relative_to(root / "agentrl" / "view" / "web")
    }
    assert held == on_disk
    assert {Path(name).suffix for name in held} >= {".py", ".typed", ".jinja", ".template"}
