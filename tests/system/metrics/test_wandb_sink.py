"""W&B's own package, offline: what it keeps of a run is read back by its own records' type.

Seen caught: a resumed run as another one; lines without a step of their own; a key that counts as
used because it was sent.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb
from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]

from agentrl.config.load import load_config
from agentrl.config.section import find_unread
from agentrl.metrics.wandb_sink import FINISH_S, KNOWN_AS
from agentrl.metrics.writer import MetricsWriter
from agentrl.run.build import build_metrics_sinks

pytestmark = pytest.mark.filterwarnings("default")
"""What the package warns of is its own."""

CONFIG = """
run: {name: sums}
env: {id: made/Up-v0}
policy: {path: nowhere}
metrics: {wandb: {project: demo, mode: offline, tags: [small], group: g}}
"""


@pytest.fixture(autouse=True, scope="module")
def no_process_is_left() -> Iterator[None]:
    """End the process that the package keeps for all runs of this one."""
    yield
    wandb.teardown()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let nothing of this machine's W&B settings count."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "settings"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))


def kept(folder: Path) -> list[Any]:
    """Return the records of the one time the run was started."""
    (file,) = folder.glob("offline-run-*/*.wandb")
    records: list[Any] = []
    for data in logged(file.read_bytes()):
        record: Any = Record()
        record.ParseFromString(data)
        records.append(record)
    return records


def logged(data: bytes) -> Iterator[bytes]:
    """Yield the records of a log in LevelDB's format, which W&B's file is behind seven bytes."""
    block, at, parts = 32 * 1024, 7, b""
    while at + 7 <= len(data):
        if block - at % block < 7:
            at += block - at % block
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def lines(records: list[Any]) -> list[dict[str, float]]:
    found: list[dict[str, float]] = []
    for record in records:
        items = {
            item.key or ".".join(item.nested_key): json.loads(item.value_json)
            for item in record.history.item
        }
        if items:
            found.append({k: v for k, v in items.items() if not k.startswith("_")})
    return found


def test_every_line_arrives_and_a_resumed_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(CONFIG)
    config = load_config(tmp_path / "a.yaml")
    with MetricsWriter(tmp_path, sinks=build_metrics_sinks(config, tmp_path)) as writer:
        writer.write(1, {"reward/mean": 0.5, "bad": float("nan")})
        writer.write(2, {"reward/mean": 0.75})
    # The package names what it keeps by the second it began in; two of them could be one.
    before = (tmp_path / "wandb").rename(tmp_path / "before")
    again = load_config(tmp_path / "a.yaml")
    with MetricsWriter(tmp_path, sinks=build_metrics_sinks(again, tmp_path)) as writer:
        writer.truncate_after(1)
        writer.write(2, {"reward/mean": 0.8})
        writer.close()
    # What its process has taken is on the disk when that has ended.
    wandb.teardown()
    first, second = kept(before), kept(tmp_path / "wandb")
    assert lines(first) == [
        {"reward/mean": 0.5, "step": 1},
        {"reward/mean": 0.75, "step": 2},
    ]
    assert lines(second) == [{"reward/mean": 0.8, "step": 2}]
    (run,) = [record.run for record in first if record.WhichOneof("record_type") == "run"]
    assert (run.display_name, run.project, run.run_group, [*run.tags]) == (
        "sums",
        "demo",
        "g",
        ["small"],
    )
    shown = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert shown["env"]["id"] == "made/Up-v0"
    known = json.loads((tmp_path / KNOWN_AS).read_text())["id"]
    names = {r.run.run_id for records in (first, second) for r in records if r.HasField("run")}
    assert names == {known}
    assert "env.id" in find_unread(config), "to send a key is not to use it"


def test_the_end_of_a_run_waits_for_a_slow_server_no_longer_than_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen caught: no limit, which is the package's default."""
    (tmp_path / "a.yaml").write_text(CONFIG)
    sinks = build_metrics_sinks(load_config(tmp_path / "a.yaml"), tmp_path)
    run = wandb.run
    assert run is not None
    assert run.settings.finish_timeout == FINISH_S

    def time_out(self: Any) -> None:
        finish(self)
        raise TimeoutError("Timed out finishing run.")

    finish = wandb.Run.finish
    monkeypatch.setattr(wandb.Run, "finish", time_out)
    messages: list[str] = []
    MetricsWriter(tmp_path, sinks=sinks, say=messages.append).close()
    (message,) = messages
    assert "metrics.wandb failed" in message
    assert f"wandb sync {next(tmp_path.glob('wandb/offline-run-*'))}" in message
