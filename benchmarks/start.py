"""What does `pip install` bring with each extra, and how soon does agentrl do something?

Each extra is installed as a wheel with the versions of constraints.txt (`sinks` with the newest),
into an empty venv without pip, by the pip of this interpreter and from wherever that is configured
to take packages; an extra that it cannot install is named below the table. `vllm`, which brings
gigabytes of CUDA, is left out unless `--only` names it. Sizes are those of all files, what pip
compiles among them. Commands are those of the installed wheel; their first run is not measured.
Training begins with the quickstart's policy and no warm start, and is over at its first turn; the
evaluation before it plays one task.

A command's CPU seconds have as a measure those of `python -c pass` of the same venv and round.

`--before REVISION` installs an older revision, too: its core and what its training needs, or the
extras of `--only` that it has.
"""

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from importlib.metadata import distributions
from pathlib import Path

from benchmarks.harness import Benchmark, Contender, Measurement, Run, parser

ROOT = Path(__file__).parents[1]
CORE = "core"
TRAINING = "train,reasoning"
EXTRAS = (
    *(CORE, "train", TRAINING, "web", "gui", "data", "gym", "mcp", "docker", "ray"),
    *("sinks", "renderers", "torchao"),
)
LARGE = ("vllm",)
UNCONSTRAINED = ("sinks",)
"""Trackio asks for an older pillow than constraints.txt has."""
QUICK = (CORE,)
BEFORE = (CORE, TRAINING)
BASE = "python -c pass"
COMMAND = "agentrl"
FIRST_TURN = "first turn of training"
GOALS_S: Mapping[str, float] = {"import agentrl": 0.15, "agentrl --help": 0.3, "completion": 0.3}
TURN_GOAL_S = 4.0
COMPLETE = (
    *("env", "_AGENTRL_COMPLETE=complete_bash", "COMP_CWORD=3"),
    "COMP_WORDS=agentrl train quickstart learn.opt",
)
INSTALL_S = 900.0
TURN_S = 300.0
CONFIG = "configs/quickstart.yaml"
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
    """Build a revision, or the checkout for an empty one; return its wheel and its source."""
    source = ROOT
    if revision:
        source = folder / "source"
        call("git", "clone", "-q", "--shared", ROOT, source, cwd=folder)
        call("git", "checkout", "-q", "--detach", revision, cwd=source)
    out = folder / "dist"
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source]
    call(*build, cwd=folder)
    (wheel,) = out.glob("*.whl")
    return wheel, source


def choose_extras(extras: Sequence[str], provided: Collection[str]) -> list[str]:
    """Return the extras of which a wheel provides a part, reduced to it; the core always."""
    parts = {extra: [name for name in extra.split(",") if name in provided] for extra in extras}
    return [
        CORE if extra == CORE else ",".join(parts[extra])
        for extra in extras
        if extra == CORE or parts[extra]
    ]


def list_provided(wheel: Path) -> list[str]:
    """Return the extras of a wheel."""
    (metadata,) = distributions(path=[str(wheel)])
    return metadata.metadata.get_all("Provides-Extra") or []


def install(extra: str, wheel: Path, constraints: Path, venv: Path) -> tuple[float, float]:
    """Install a wheel with an extra into an empty venv; return the seconds and CPU seconds."""
    call(sys.executable, "-m", "venv", "--without-pip", venv, cwd=venv.parent)
    wanted = f"{wheel}[{extra}]" if extra != CORE else str(wheel)
    pip = [sys.executable, "-m", "pip", "--python", venv / "bin" / "python", "install", "-q"]
    began, used = time.perf_counter(), children_cpu_s()
    versions = [] if extra in UNCONSTRAINED else ["-c", constraints]
    call(*pip, *versions, wanted, cwd=venv.parent)
    return time.perf_counter() - began, children_cpu_s() - used


def children_cpu_s() -> float:
    """Return the user and system seconds of the children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


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


def run_to_first_turn(agentrl: Path, config: Path, folder: Path) -> Run:
    """Return what trains until the first turn is in the store, and kills the run then."""

    def again() -> float:
        name = f"turn-{time.monotonic_ns()}"
        words = [agentrl, "train", config, f"run.name={name}", *TRAIN]
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
        wheel, source = build_wheel(revision, folder)
        contenders: dict[str, Contender] = {}
        for number, extra in enumerate(choose_extras(extras, list_provided(wheel))):
            venv = folder / f"venv{number}"
            try:
                seconds, cpu_s = install(extra, wheel, source / "constraints.txt", venv)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                bench.notes.append(f"{extra}{when} is not installed: {error}")
                continue
            packages, size = weigh(venv)
            bench.console.print(
                f"{extra}{when}: {packages} packages of {size / 1e6:.0f} MB in {cpu_s:.1f} CPU s, "
                f"{seconds:.0f} s"
            )
            bench.row(f"packages, {extra}{when}", packages, unit="packages")
            bench.row(f"size, {extra}{when}", size / 1e6, unit="MB")
            bench.row(f"install, {extra}{when}", seconds, unit="s")
            bench.row(f"install, {extra}{when}, CPU", cpu_s, unit="s")
            python, agentrl = venv / "bin" / "python", venv / "bin" / COMMAND
            if extra == CORE:
                commands: Mapping[str, Sequence[str | Path]] = {
                    BASE: [python, "-c", "pass"],
                    "import agentrl": [python, "-c", "import agentrl"],
                    "agentrl --help": [agentrl, "--help"],
                    "completion": [*COMPLETE, agentrl],
                }
                for title, words in commands.items():
                    contenders[title] = Contender(set_up=partial(run_command, words, folder))
            elif "reasoning" in extra.split(","):
                contenders[FIRST_TURN] = Contender(
                    set_up=partial(run_to_first_turn, agentrl, source / CONFIG, folder)
                )
            else:
                shutil.rmtree(venv)
        state_commands(bench, bench.compare(contenders), when=when)


def state_commands(
    bench: Benchmark, runs: Mapping[str, Sequence[Measurement]], *, when: str
) -> None:
    """State what each command took, and how many times that of an interpreter that does nothing."""
    for title, measured in runs.items():
        goal = None if when else GOALS_S.get(title)
        bench.cost(f"{title}{when}, CPU", measured, unit="s", goal=goal)
        goal = TURN_GOAL_S if title == FIRST_TURN and not when else None
        bench.cost(f"{title}{when}", measured, unit="s", by="wall", goal=goal)
        if title != BASE and (base := runs.get(BASE)):
            times = [one.cpu_s / other.cpu_s for one, other in zip(measured, base, strict=True)]
            bench.row(f"{title}{when}", statistics.median(times), unit="x", peer=BASE)


def main() -> None:
    arguments = parser(__doc__)
    choices = EXTRAS + LARGE
    arguments.add_argument("--only", nargs="+", choices=choices, help="install these alone")
    arguments.add_argument("--before", default="", metavar="REVISION", help="an older one, too")
    chosen = arguments.parse_args()
    bench = Benchmark.from_arguments("start", chosen)
    extras = chosen.only or (QUICK if bench.quick else EXTRAS)
    bench.notes += [
        f"{name} is not installed: name it with --only" for name in LARGE if name not in extras
    ]
    measure_installations(bench, extras, "")
    if chosen.before:
        measure_installations(bench, chosen.only or BEFORE, chosen.before)
    bench.finish()


if __name__ == "__main__":
    main()
