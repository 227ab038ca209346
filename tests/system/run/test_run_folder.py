"""Who owns a run's folder, and what is left when it cannot be opened.

Mutants seen caught: no lock; a lock file that outlives kill -9; config.yaml written before the
checks; a changed key let through; folders left behind; environment.json overwritten on resume;
garbage in it or in summary.json read as it is.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.learn import LearnSection
from agentrl.config.learning.correction import NoCorrection
from agentrl.config.load import load_config
from agentrl.config.run import EnvSection, RunConfig, RunSection
from agentrl.config.section import find_unread
from agentrl.errors import ConfigError, EnvError
from agentrl.run.folder import RunFolder
from agentrl.run.summary import RunSummary
from agentrl.runtime.atomic_files import write_json, write_text


def config(where: Path, /, *, learn: LearnSection | None = None, **run: Any) -> RunConfig:
    section = RunSection.model_validate({"name": "one", "folder": where / "runs", **run})
    return RunConfig(
        run=section, env=EnvSection(id="a/B-v0", kwargs={"n": 1}), learn=learn or LearnSection()
    )


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in sorted(folder.rglob("*"))
    }


def refused(settings: RunConfig, folder: Path, *, resume: bool = False) -> str:
    """Return why a folder is not opened; whatever lay there lies there unchanged."""
    before = tree(folder)
    with pytest.raises(ConfigError) as caught:
        RunFolder.open(settings, resume=resume)
    assert tree(folder) == before
    return str(caught.value)


def test_a_new_run_records_what_it_is(tmp_path: Path) -> None:
    settings = config(tmp_path, steps=3)
    with RunFolder.open(settings, resume=False) as folder:
        assert folder.path == tmp_path / "runs" / "one"
        assert load_config(folder.config) == settings
        (session,) = json.loads(folder.environment.read_text())
        assert session["packages"]["pydantic"]
        assert session["machine"]["cores"] >= 1
        assert json.loads((folder.path / "lock").read_text())["pid"] == os.getpid()
    assert (folder.path / "lock").read_text() == ""
    assert folder.metrics.parent == folder.checkpoints.parent == folder.policy.parent == folder.path
    # Saving a config is not reading it; saying where it is saved is.
    assert find_unread(settings) == ["run.steps", "env.id", "env.kwargs"]


def test_two_runs_in_one_folder(tmp_path: Path) -> None:
    with RunFolder.open(config(tmp_path), resume=False):
        for resume in (True, False):
            said = refused(config(tmp_path), tmp_path, resume=resume)
            assert f"{tmp_path}/runs/one is in use by process {os.getpid()} on " in said
            assert "two runs cannot share a folder" in said
            assert "choose another run.name" in said
    RunFolder.open(config(tmp_path), resume=True).close()


HOLD = """
import sys, time
from agentrl.config.load import load_config
from agentrl.run.folder import RunFolder
folder = RunFolder.open(load_config(sys.argv[1], [f"run.folder={sys.argv[2]}"]), resume=False)
print("open", flush=True)
time.sleep(60)
"""


def test_a_run_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("env: {id: a/B-v0}\nrun: {name: one}\n")
    runs = tmp_path / "runs"
    command = [sys.executable, "-c", HOLD, str(path), str(runs)]
    settings = load_config(path, {"run.folder": runs})
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "open\n"
            assert f"process {other.pid} on" in refused(settings, tmp_path, resume=True)
        finally:
            other.send_signal(signal.SIGKILL)
    assert json.loads((runs / "one" / "lock").read_text())["pid"] == other.pid
    with RunFolder.open(settings, resume=True) as folder:
        assert json.loads((folder.path / "lock").read_text())["pid"] == os.getpid()


def test_a_folder_with_a_run_is_only_opened_to_resume(tmp_path: Path) -> None:
    RunFolder.open(config(tmp_path), resume=False).close()
    said = refused(config(tmp_path), tmp_path)
    assert f"{tmp_path}/runs/one already holds a run" in said
    assert "--resume" in said
    assert "choose another run.name" in said
    with RunFolder.open(config(tmp_path), resume=True) as folder:
        assert len(json.loads(folder.environment.read_text())) == 2


def test_nothing_to_resume_leaves_nothing(tmp_path: Path) -> None:
    said = refused(config(tmp_path), tmp_path, resume=True)
    assert f"{tmp_path}/runs/one holds no run to resume" in said
    assert "start one without --resume" in said


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "thesis.tex").write_text("x")
    assert "one holds thesis.tex but no run" in refused(config(tmp_path), tmp_path)


def test_a_start_that_was_killed_half_way_can_be_started_again(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "one"
    path.mkdir(parents=True)
    for name in ("lock", "environment.json", ".config.yaml.123.partial"):
        (path / name).write_text("")
    RunFolder.open(config(tmp_path), resume=False).close()
    assert load_config(path / "config.yaml").run.name == "one"


def test_a_resumed_run_keeps_its_config(tmp_path: Path) -> None:
    RunFolder.open(config(tmp_path), resume=False).close()
    changed = config(tmp_path, learn=LearnSection(correction=NoCorrection(), epochs=2), seed=1)
    said = refused(changed, tmp_path, resume=True)
    assert "runs/one holds a run with a different config: " in said
    assert "learn.correction.cap was 2.0 and is not set; " in said
    assert "learn.correction.name was tis and is none; " in said
    assert "; learn.epochs was 1 and is 2; " in said
    assert "run.seed was 0 and is 1. Resume it with the original values" in said


@pytest.mark.parametrize("garbage", [b"\xff", b"[" * 100_000, b"3", b""])
def test_damaged_notes_of_a_run_are_told_with_their_file(tmp_path: Path, garbage: bytes) -> None:
    settings = config(tmp_path)
    with RunFolder.open(settings, resume=False) as folder:
        environment, summary = folder.environment, folder.summary
    environment.write_bytes(garbage)
    said = refused(settings, tmp_path, resume=True)
    assert said.startswith(f"{environment} is damaged: ")
    assert "; remove it to resume: " in said
    environment.unlink()
    with RunFolder.open(settings, resume=True):
        (session,) = json.loads(environment.read_text())
    assert session["packages"]["pydantic"]
    summary.write_bytes(garbage)
    with pytest.raises(ConfigError, match=r"summary\.json is damaged: .*; remove it to resume: "):
        RunSummary(summary)


def test_long_values_are_compared_whole(tmp_path: Path) -> None:
    first, second = (
        RunConfig(run=config(tmp_path).run, env=EnvSection(id="a/B-v0", kwargs={"x": "y" * 90 + z}))
        for z in "ab"
    )
    RunFolder.open(first, resume=False).close()
    assert "env.kwargs.x was yyy" in refused(second, tmp_path, resume=True)


def test_a_resumed_run_may_be_longer_and_lie_elsewhere(tmp_path: Path) -> None:
    RunFolder.open(config(tmp_path, steps=1), resume=False).close()
    (tmp_path / "runs").rename(tmp_path / "moved")
    longer = config(tmp_path, steps=2, folder=tmp_path / "moved", checkpoint_every=1)
    with RunFolder.open(longer, resume=True) as folder:
        assert load_config(folder.config) == longer


def test_a_resumed_run_is_no_shorter_than_what_it_has_trained(tmp_path: Path) -> None:
    """Kills: a run of 10 steps that says it has 9, in a config that is written anew."""
    with RunFolder.open(config(tmp_path, steps=20), resume=False) as folder:
        for name in ("step-000009", "step-000010", ".step-000011.partial"):
            (folder.checkpoints / name).mkdir(parents=True)
    said = refused(config(tmp_path, steps=9), tmp_path, resume=True)
    assert "run.steps is 9, but " in said
    assert "runs/one has trained 10 steps; set it to 10 or more" in said
    assert load_config(folder.config) == config(tmp_path, steps=20)
    RunFolder.open(config(tmp_path, steps=10), resume=True).close()


def test_a_folder_that_cannot_be_made_is_a_wrong_config(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = refused(config(tmp_path, folder=tmp_path / "file" / "deeper"), tmp_path)
    assert "Not a directory" in said
    assert "choose a run.folder that is writable" in said


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device" in refused(config(tmp_path), tmp_path)
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("kind", [ConfigError, EnvError])
def test_what_is_wrong_before_a_policy_leaves_nothing(
    tmp_path: Path, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match="wrong"), RunFolder.open(config(tmp_path), resume=False):
        raise kind("wrong")
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("made", ["policy", "checkpoints", "metrics.jsonl"])
def test_what_a_run_has_made_is_never_removed(tmp_path: Path, made: str) -> None:
    with pytest.raises(ConfigError), RunFolder.open(config(tmp_path), resume=False) as folder:  # noqa: PT012
        (folder.path / made).mkdir()
        raise ConfigError("wrong")
    assert folder.config.exists()
    with pytest.raises(KeyError), RunFolder.open(config(tmp_path, name="b"), resume=False) as other:
        raise KeyError
    assert other.config.exists()


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": float("nan")})
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert json.loads(path.read_text()) == {"a": 1}
    assert tree(tmp_path).keys() == {"x.json"}
