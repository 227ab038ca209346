"""What does `pip install` bring with each extra, and how soon does agentrl do something?

Each extra is installed as a wheel with the versions of constraints.txt, into an empty venv without
pip, by the pip of this interpreter and from wherever that is configured to take packages; an extra
that it cannot install is named below the table. Sizes are those of all files, what pip compiles
among them. Commands are those of the installed wheel; their first run is not measured. Training
begins with the quickstart's policy and no warm start, and is over at its first turn; the evaluation
before it plays one task.

`--before REVISION` installs an older revision, too, where that has the extras.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import distributions
from pathlib import Path

from benchmarks.harness import Benchmark, Contender, Run, parser

ROOT = Path(__file__).parents[1]
CORE = "core"
EXTRAS = (
    *(CORE, "train", "train,reasoning", "web", "gui", "data", "gym", "mcp", "docker", "ray"),
    *("sinks", "renderers", "torchao"),
)
QUICK = (CORE,)
INSTALL_S = 900.0
TURN_S = 300.0
TRAIN = ("warmstart=null", "evaluate.tasks=1", "run.steps=1")
SEGMENT_HEADER_BYTES = 36
"""Size of a segment of the store that no turn has been written to."""


def environ() -> Mapping[str, str]:
    """Return the environment of an installation that sees nothing of this checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def call(*words: str | Path, cwd: Path, timeout_s: float = INSTALL_S) -> None:
    """Run a command; `RuntimeError` with its last line where it fails."""
    ran = subprocess.run(
        words, cwd=cwd, env=environ(), capture_output=True, text=True, timeout=timeout_s
    )
    if ran.returncode:
        last = (ran.stderr or ran.stdout).strip().splitlines() or ["no output"]
        raise RuntimeError(f"exit code {ran.returncode}: {last[-1]}")


def build_wheel(revision: str, folder: Path) -> tuple[Path, Path]:
    """Build a revision, or the checkout for an empty one; return its wheel and constraints."""
    source = ROOT
    if revision:
        source = folder / "source"
        call("git", "clone", "-q", "--shared", ROOT, source, cwd=folder)
        call("git", "checkout", "-q", "--detach", revision, cwd=source)
    out = folder / "dist"
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source]
    call(*build, cwd=folder)
    (wheel,) = out.glob("*.whl")
    return wheel, source / "constraints.txt"


def install(extra: str, wheel: Path, constraints: Path, venv: Path) -> float:
    """Install a wheel with an extra into an empty venv; return the seconds it took."""
    call(sys.executable, "-m", "venv", "--without-pip", venv, cwd=venv.parent)
    wanted = f"{wheel}[{extra}]" if extra != CORE else str(wheel)
    pip = [sys.executable, "-m", "pip", "--python", venv / "bin" / "python", "install", "-q"]
    began = time.perf_counter()
    call(*pip, "-c", constraints, wanted, cwd=venv.parent)
    return time.perf_counter() - began


def weigh(venv: Path) -> tuple[int, int]:
    """Return packages and bytes of a venv."""
    (place,) = venv.glob("lib/python*/site-packages")
    sizes = (file.stat().st_size for file in place.rglob("*") if file.is_file())
    return sum(1 for _ in distributions(path=[str(place)])), sum(sizes)


def run_command(words: Sequence[str | Path], folder: Path) -> Run:
    """Run a command once, and return what runs it again."""

    def again() -> float:
        call(*words, cwd=folder, timeout_s=TURN_S)
        return 1.0

    again()
    return again


def run_to_first_turn(agentrl: Path, folder: Path) -> Run:
    """Return what trains until the first turn is in the store, and kills the run then."""

    def again() -> float:
        name = f"turn-{time.monotonic_ns()}"
        words = [agentrl, "train", "quickstart", f"run.name={name}", *TRAIN]
        until = time.monotonic() + TURN_S
        with subprocess.Popen(
            words, cwd=folder, env=environ(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                while not has_turn(folder / "runs" / name):
                    if process.poll() is not None or time.monotonic() > until:
                        raise RuntimeError(f"no turn in {folder / 'runs' / name}: run {words}")
                    time.sleep(0.01)
            finally:
                process.kill()
        return 1.0

    again()
    return again


def has_turn(run: Path) -> bool:
    """Return whether the store of a run has a turn."""
    segments = run.glob("store/segments/*.segment")
    return any(file.stat().st_size > SEGMENT_HEADER_BYTES for file in segments)


def measure_installations(bench: Benchmark, extras: Sequence[str], revision: str) -> None:
    """Install every extra of a revision, and run what it makes possible."""
    when = f", {revision}" if revision else ""
    with tempfile.TemporaryDirectory(prefix="agentrl-start-") as name:
        folder = Path(name)
        wheel, constraints = build_wheel(revision, folder)
        contenders: dict[str, Contender] = {}
        for number, extra in enumerate(extras):
            venv = folder / f"venv{number}"
            try:
                seconds = install(extra, wheel, constraints, venv)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                bench.notes.append(f"{extra}{when} is not installed: {error}")
                continue
            packages, size = weigh(venv)
            bench.row(f"packages, {extra}{when}", packages, unit="packages")
            bench.row(f"size, {extra}{when}", size / 1e6, unit="MB")
            bench.row(f"install, {extra}{when}", seconds, unit="s")
            python, agentrl = venv / "bin" / "python", venv / "bin" / "agentrl"
            if extra == CORE:
                for title, words in (
                    ("import agentrl", [python, "-c", "import agentrl"]),
                    ("agentrl --help", [agentrl, "--help"]),
                ):
                    contenders[title + when] = Contender(set_up=partial(run_command, words, folder))
            if extra == "train,reasoning":
                contenders[f"first turn of training{when}"] = Contender(
                    set_up=partial(run_to_first_turn, agentrl, folder)
                )
        for title, runs in bench.compare(contenders).items():
            bench.cost(f"{title}, CPU", runs, unit="s")
            goal = 4 if title == "first turn of training" else None
            bench.cost(title, runs, unit="s", by="wall", goal=goal)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--only", nargs="+", choices=EXTRAS, help="install these alone")
    arguments.add_argument("--before", default="", metavar="REVISION", help="an older one, too")
    chosen = arguments.parse_args()
    bench = Benchmark.from_arguments("start", chosen)
    extras = chosen.only or (QUICK if bench.quick else EXTRAS)
    measure_installations(bench, extras, "")
    if chosen.before:
        measure_installations(bench, extras, chosen.before)
    bench.finish()


if __name__ == "__main__":
    main()
