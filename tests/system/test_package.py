"""What gets installed, and what importing it costs."""

import http.server
import json
import os
import re
import runpy
import subprocess
import sys
import sysconfig
import threading
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.made_run import MadeRun
from tests.support.core_venv import WheelVenv, make_wheel_venv
from tests.support.packages import ROOTS, modules

MOST_PACKAGES = 25
MOST_BYTES = 150e6
"""Of an installation without an extra, agentrl among them."""

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


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel that is built from the source distribution, as packagers do."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(root)]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    assert [*folder.glob("*.tar.gz")]
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_the_wheel_holds_the_four_packages_with_their_data(root: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    on_disk = {
        path.relative_to(root / place).as_posix()
        for package, place in ROOTS.items()
        for path in (root / place / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    configs = {f"agentrl/{file.relative_to(root)}" for file in root.glob("configs/**/*.yaml")}
    assert held == on_disk | configs
    assert {Path(name).suffix for name in held} >= {".py", ".typed", ".jinja", ".template"}


def find_relative_links(text: str) -> list[str]:
    return re.findall(r"\]\((?!https?://|#)([^)]*)\)", text)


def test_the_description_on_an_index_links_to_nothing_beside_it(root: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
    assert find_relative_links((root / "README.md").read_text())
    assert "# agentrl\n" in text
    assert find_relative_links(text) == []


@pytest.mark.parametrize(
    ("source", "want"),
    [
        (
            "https://example.org/us/it/",
            "![a b](https://example.org/us/it/raw/v1.2.0/docs/a.png) "
            "[two\nlines](https://example.org/us/it/blob/v1.2.0/docs/b.md#c) ",
        ),
        (None, " two\nlines "),
    ],
)
def test_links_of_the_readme_lead_to_the_tag_of_the_release(
    root: Path, source: str | None, want: str
) -> None:
    text = "![a b](docs/a.png) [two\nlines](docs/b.md#c) "
    same = "[web](https://example.org) [here](#there) [post](mailto:a@example.org)"
    link_readme = runpy.run_path(str(root / "hatch_build.py"))["link_readme"]
    assert link_readme(text + same, source, "1.2.0") == want + same


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> WheelVenv:
    """Return a venv with the wheel and no extra."""
    return make_wheel_venv(tmp_path_factory.mktemp("core") / "venv", wheel)


def test_the_core_is_small(core: WheelVenv, wheel: Path) -> None:
    assert len(core.distributions) + 1 <= MOST_PACKAGES
    files = [each.locate_file(file) for each in core.distributions for file in each.files or ()]
    sizes = [Path(str(file)).stat().st_size for file in files if Path(str(file)).exists()]
    with zipfile.ZipFile(wheel) as archive:
        sizes += [info.file_size for info in archive.infolist()]
    assert 30e6 < sum(sizes) <= MOST_BYTES


SLOW_TO_IMPORT = {"httpx", "importlib.metadata", "numpy", "pydantic", "rich", "typer"}
"""Modules that would double the time of `import agentrl`."""


def test_importing_agentrl_is_quick(core: WheelVenv, tmp_path: Path) -> None:
    code = f"import sys, agentrl; print(sorted({SLOW_TO_IMPORT} & sys.modules.keys()))"
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(core.python), "-c", code]
    said = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert (said.stdout, said.stderr) == ("[]\n", "")


COMMANDS = """
import contextlib, io, json, os, sys, time
from agentrl.cli import app

def run(words):
    sys.argv = ["agentrl", *words]
    out, err = io.StringIO(), io.StringIO()
    code, began = 0, time.process_time()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            app.main()
    except SystemExit as end:
        code = end.code
    return [code, out.getvalue(), err.getvalue(), time.process_time() - began]

results = []
for words in json.load(sys.stdin):
    if words[0] == "cd":
        os.chdir(words[1])
    else:
        results.append(run(words))
json.dump([results, sorted(sys.modules)], sys.__stdout__)
"""


def run_commands(
    venv: WheelVenv, lines: Sequence[str], folder: Path
) -> list[tuple[int | None, str, str, float]]:
    """Run commands one after the other in one process; return code, stdout, stderr and seconds."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(venv.python), "-c", COMMANDS],
        input=json.dumps([line.split() for line in lines]),
        cwd=folder,
        env={**environ, "COLUMNS": "300"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results, loaded = json.loads(done.stdout)
    assert {"torch", "transformers"} & {*loaded} == set()
    return [tuple(result) for result in results]


class Answering(http.server.BaseHTTPRequestHandler):
    """A chat completions endpoint that says the same to all."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        message = {"role": "assistant", "content": "<answer>42</answer>"}
        body = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def endpoint() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_the_core_plays_evaluates_and_shows(core: WheelVenv, endpoint: str, tmp_path: Path) -> None:
    """All that needs no extra, in an empty folder."""
    run = MadeRun(folder=tmp_path / "made", groups=3, size=2).make()
    env, few = "shop_env:shop/Multiply-v0", "evaluate.tasks=4"
    lines = [
        "--markdown",
        "init shop",
        "cd shop",
        "configs",
        "envs",
        "config show quickstart",
        "config explain rollout.group_size",
        f"check-env {env}",
        f"check-splits shop.yaml {few}",
        f"record {env} gold.jsonl --tasks 3",
        f"eval shop.yaml --player gold {few}",
        f"eval shop.yaml --endpoint {endpoint} --model m --out one {few}",
        f"eval shop.yaml --endpoint {endpoint} --model m --out two {few}",
        "compare one two",
        "reverify one",
        f"export {run} -o exported",
        f"view {run} --no-open -o page.html",
        f"watch {run} --once",
        "methods loss",
        "simulate quickstart --no-recommend --steps 2",
        "model list",
        "doctor",
        "gc",
    ]
    results = run_commands(core, lines, tmp_path)
    commands = [line for line in lines if not line.startswith("cd ")]
    told = dict(zip(commands, results, strict=True))
    assert {line: err for line, (code, _, err, _) in told.items() if code} == {}
    assert "quickstart" in told["configs"][1]
    assert "not known without PIL" in told["doctor"][1]
    assert "reinstall" not in told["doctor"][1]
    assert "pass@1" in told[lines[11]][1]
    assert (tmp_path / "shop" / "gold.jsonl").stat().st_size > 0
    assert (tmp_path / "shop" / "page.html").read_text(encoding="utf-8").startswith("<!doctype")


@pytest.mark.parametrize(
    ("line", "command", "extra"),
    [
        ("train quickstart", "agentrl train", "train"),
        ("train nothing.yaml", "agentrl train", "train"),
        ("warmstart quickstart", "agentrl warmstart", "train"),
        ("plan quickstart", "agentrl plan", "train"),
        ("eval quickstart", "agentrl eval without --endpoint or --player", "train"),
        ("engine serve quickstart", "agentrl engine serve", "train"),
        ("check-template x", "agentrl check-template", "train"),
        ("eval quickstart --player gold", "code/", "reasoning"),
        ("import gymnasium:CartPole-v1", "agentrl_envs.adapters.gymnasium", "gym"),
    ],
)
def test_a_missing_extra_is_one_line(
    core: WheelVenv, tmp_path: Path, line: str, command: str, extra: str
) -> None:
    ((code, out, err, seconds),) = run_commands(core, [line], tmp_path)
    assert (code, out, err.count("error: ")) == (2, "", 1)
    told = rf"error: {re.escape(command)}.* needs .*: pip install '.*\[{extra}\]'"
    assert re.match(told, err.splitlines()[-1])
    assert seconds < 1 or extra != "train"


@pytest.mark.slow
def test_the_quickstart_trains_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """Everything but agentrl is what the tests have; no file is in the folder at first."""
    venv = make_wheel_venv(tmp_path / "venv", wheel)
    (venv.site_packages / "tests_have.pth").write_text(sysconfig.get_path("purelib") + "\n")
    folder = tmp_path / "empty"
    folder.mkdir()
    small = (
        "run.steps=1 warmstart.steps=2 warmstart.demonstrations=8 evaluate.tasks=4 "
        "rollout.tasks_per_step=2 rollout.group_size=2"
    )
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for line in (f"train quickstart {small}", "view runs/quickstart --no-open"):
        done = subprocess.run(
            [str(venv.agentrl), *line.split()],
            cwd=folder, env=environ, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert {path.name for path in folder.iterdir()} == {"runs", "quickstart.html"}
