"""Trackio's and MLflow's own packages, on this machine: what they keep is read back by themselves.

Seen caught: a resumed run as another one; one that goes on in a newer run of the same name; a name
that MLflow refuses; an error of the sending thread that nobody hears of, or hears of twice.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.foreign_packages import python_of

pytestmark = pytest.mark.sinks

CONFIG = """
run: {name: sums}
env: {id: made/Up-v0}
policy: {path: nowhere}
"""

_BEGIN = """
import json, sys
from pathlib import Path
from agentrl.config.load import load_config
from agentrl.errors import ConfigError
from agentrl.metrics.writer import MetricsWriter, read_metrics
from agentrl.run.build import build_metrics_sinks

said = []

def open_writer(folder, *changes):
    config = load_config("a.yaml", changes)
    Path(folder).mkdir(exist_ok=True)
    sinks = build_metrics_sinks(config, Path(folder))
    return MetricsWriter(Path(folder), sinks=sinks, say=said.append)

def run_twice(folder, *changes):
    with open_writer(folder, *changes) as writer:
        writer.write(1, {"reward/mean": 0.5, "heldout/pass@1": 0.25, "bad": float("nan")})
        writer.write(2, {"reward/mean": 0.75})
    with open_writer(folder, *changes) as writer:
        writer.truncate_after(1)
        writer.write(2, {"reward/mean": 0.8})
"""

_TRACKIO = """
import trackio
project = "metrics.trackio.project=demo"
run_twice("one", project, "metrics.trackio.group=g")
runs = [*trackio.Api().runs("demo")]
(run,) = runs
with open_writer("two", project) as writer:
    writer.write(1, {"reward/mean": 0.1})
try:
    open_writer("one", project)
    refused = ""
except ConfigError as error:
    refused = str(error)
rows = trackio.sqlite_storage.SQLiteStorage.get_logs("demo", "sums", run_id=run.id)
print(json.dumps({
    "said": said, "refused": refused,
    "known": json.loads(Path("one/trackio.json").read_text())["id"],
    "id": run.id, "name": run.name, "rows": rows, "runs": len([*trackio.Api().runs("demo")]),
    "config": run.config,
}), file=sys.stderr)
"""

_MLFLOW = """
import threading
from mlflow import MlflowClient
uri = Path("store").absolute().as_uri()
changes = ["metrics.mlflow.experiment=demo", f"metrics.mlflow.tracking_uri={uri}"]
run_twice("one", *changes)
client = MlflowClient(uri)
experiment = client.get_experiment_by_name("demo").experiment_id
(run,) = client.search_runs([experiment])
history = {
    name: [[each.step, each.value] for each in client.get_metric_history(run.info.run_id, name)]
    for name in run.data.metrics
}
with open_writer("one", *changes) as writer:
    client.delete_run(run.info.run_id)
    for step in range(3, 8):
        writer.write(step, {"reward/mean": 0.5})
        for thread in threading.enumerate():
            if thread.name == "agentrl-mlflow":
                thread.join(0.5)
    kept = [line["step"] for line in read_metrics(Path("one"))]
try:
    open_writer("one", *changes)
    refused = ""
except ConfigError as error:
    refused = str(error)
print(json.dumps({
    "said": said, "refused": refused,
    "known": json.loads(Path("one/mlflow.json").read_text())["id"],
    "id": run.info.run_id, "name": run.info.run_name, "status": run.info.status,
    "history": history, "kept": kept, "parameters": run.data.params,
}), file=sys.stderr)
"""


def ask(program: str, folder: Path, root: Path) -> dict[str, Any]:
    """Run a program in the peer's interpreter, offline; return what it says in its last line."""
    (folder / "a.yaml").write_text(CONFIG)
    places = [root, root / "envs", root / "tools", root / "sandbox"]
    ran = subprocess.run(
        [python_of("sinks"), "-W", "ignore", "-c", _BEGIN + program],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(map(str, places)),
            "HOME": str(folder),
            "HF_HUB_OFFLINE": "1",
            "TRACKIO_DIR": str(folder / "trackio"),
            "MLFLOW_ALLOW_FILE_STORE": "true",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "", "stdout is the command's"
    return json.loads(ran.stderr.splitlines()[-1])


def test_trackio_has_every_line_and_a_resumed_run_goes_on(tmp_path: Path, root: Path) -> None:
    told = ask(_TRACKIO, tmp_path, root)
    assert (told["known"], told["name"], told["said"]) == (told["id"], "sums", [])
    lines = [
        {name: row[name] for name in row if name not in ("timestamp", "run")}
        for row in told["rows"]
    ]
    assert lines == [
        {"reward/mean": 0.5, "heldout/pass@1": 0.25, "step": 1},
        {"reward/mean": 0.75, "step": 2},
        {"reward/mean": 0.8, "step": 2},
    ]
    assert told["config"]["env"]["id"] == "made/Up-v0"
    assert told["runs"] == 2
    assert "has a newer run 'sums' than this one" in told["refused"]


@pytest.mark.slow
def test_mlflow_has_every_line_and_a_lost_run_is_said_once(tmp_path: Path, root: Path) -> None:
    told = ask(_MLFLOW, tmp_path, root)
    assert (told["known"], told["name"], told["status"]) == (told["id"], "sums", "FINISHED")
    assert told["history"] == {
        "reward/mean": [[1, 0.5], [2, 0.75], [2, 0.8]],
        "heldout/pass_1": [[1, 0.25]],
    }
    assert told["parameters"]["env.id"] == "made/Up-v0"
    assert told["parameters"]["rollout.group_size"] == "8"
    assert told["kept"] == [1, 2, 3, 4, 5, 6, 7]
    (said,) = told["said"]
    assert said.startswith("metrics.mlflow failed (MlflowException: ")
    assert said.endswith("the run goes on without it, and metrics.jsonl has every step")
    assert "MLflow rejected the run 'sums' of experiment 'demo'" in told["refused"]
