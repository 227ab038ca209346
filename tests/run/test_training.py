"""A whole run on a tiny model: what it leaves, resuming bit for bit, and what it refuses.

Mutants seen caught: the sampler not skipped on resume; the optimiser state not restored; weights
not loaded into the engine; evaluation seeds drawn anew; overlap not checked; a checkpoint written
on the event loop.
"""

import asyncio
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from agentrl.config.learn import Precision
from agentrl.config.load import load_config
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.learn import warmstart as supervised
from agentrl.learn.checkpoint import CheckpointManager
from agentrl.metrics.writer import read_metrics
from agentrl.models.precision import open_masters
from agentrl.run import initial_policy
from agentrl.run.train import TrainingLoop, TrainingResult, train, warmstart  # pyright: ignore[reportPrivateUsage]
from agentrl.runtime.machine import set_batch_invariance
from agentrl.runtime.progress import SilentProgress
from agentrl.task import Split, Task
from tests.support import tiny_run
from tests.support.doubles import doubles
from tests.support.tiny_run import config_file, final_weights


def tiny(folder: Path, **overrides: Any) -> TrainingResult:
    keys = {name.replace("__", "."): value for name, value in overrides.items()}
    return train(config_file(folder), keys)


def test_a_run_leaves_what_it_promises(tmp_path: Path) -> None:
    result = tiny(tmp_path)
    folder = tmp_path / "runs" / "tiny"
    assert result.folder == folder
    summary = json.loads((folder / "summary.json").read_text())
    for when in ("before", "after"):
        low, high = summary[when]["ci95"]
        assert 0 <= low <= summary[when]["pass@1"] <= high <= 1
        assert summary[when]["n"] == 6
    assert {"train", "warm start", "evaluate before", "evaluate after"} <= summary["seconds"].keys()
    metrics = read_metrics(folder)
    assert [line["step"] for line in metrics] == [1, 2, 3, 4]
    wanted = {
        "reward/mean",
        "entropy",
        "engine_gap/max",
        "engine_gap/ess",
        "ratio/clip_fraction",
        "advantage/zero_fraction",
    }
    assert wanted <= metrics[0].keys()
    assert 0 < metrics[0]["engine_gap/max"] < 1e-3
    assert all(line["grad/norm"] > 0 for line in metrics)
    assert all(line["age/max"] == 0 for line in metrics), "the engine samples with old weights"
    assert load_config(folder / "config.yaml") == load_config(config_file(tmp_path))


class Told(SilentProgress):
    """Keeps the lines that stay."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def warmed(folder: Path, until_loss: float) -> tuple[dict[str, Any], list[str]]:
    """Return what a warm start up to a loss left in the summary, and what was said."""
    told = Told()
    config = load_config(config_file(folder), {"warmstart.until_loss": until_loss})
    policy = warmstart(config, progress=told)
    assert (policy / "model.safetensors").is_file()
    return json.loads((policy.parent / "summary.json").read_text())["warm start"], told.lines


def test_a_first_policy_is_in_memory_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made, saved, and loaded from its folder; what was made is gone by then."""
    counts = list[int]()
    load = initial_policy.load_policy

    def model_count() -> int:
        return sum(issubclass(type(value), PreTrainedModel) for value in gc.get_objects())

    def counted_load(
        config: RunConfig, path: Path | str, **options: Any
    ) -> initial_policy.PolicyModel:
        counts.append(model_count())
        return load(config, path, **options)

    gc.collect()
    before = model_count()
    monkeypatch.setattr(initial_policy, "load_policy", counted_load)
    warmstart(load_config(config_file(tmp_path)))
    assert counts == [before]


def test_a_warm_start_that_ends_by_its_loss_tells_whether_it_came_so_far(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    summary, lines = warmed(tmp_path / "far", 100.0)
    assert (summary["steps"], summary["reached"], lines) == (10, True, [])
    (tmp_path / "short").mkdir()
    summary, (line,) = warmed(tmp_path / "short", 1e-9)
    assert (summary["steps"], summary["reached"]) == (20, False)
    assert f"after 20 steps at a loss of {summary['loss']:.3f}, above" in line
    assert "warmstart.until_loss=1e-09; raise warmstart.steps" in line


def test_a_warm_start_computes_as_the_learn_section_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def note(model: PreTrainedModel, precision: Precision) -> Any:
        opened.append(precision)
        return open_masters(model, precision)

    monkeypatch.setattr(supervised, "open_masters", note)
    policy = warmstart(load_config(config_file(tmp_path), {"learn.precision": "bfloat16"}))
    assert opened == ["bfloat16"]
    weights = load_file(policy / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    digits = [bool((weight == weight.bfloat16().float()).all()) for weight in weights.values()]
    assert not all(digits), "the policy is as exact as policy.dtype"


def test_a_made_policy_is_saved_in_its_type(tmp_path: Path) -> None:
    policy = warmstart(load_config(config_file(tmp_path), {"policy.dtype": "bfloat16"}))
    weights = load_file(policy / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}


def test_a_warm_start_goes_on_in_the_folder_of_one_that_was_killed(tmp_path: Path) -> None:
    config = load_config(config_file(tmp_path))
    folder = warmstart(config).parent
    shutil.rmtree(folder / "policy")  # as `kill -9` leaves it
    with pytest.raises(ConfigError, match="already holds a run; resume it with --resume"):
        warmstart(config)
    assert (warmstart(config, resume=True) / "model.safetensors").is_file()


@pytest.mark.parametrize(
    "learn",
    [{}, {"lora": {"rank": 4}, "ema": {"decay": 0.5}, "gradient_checkpointing": True}],
    ids=["plain", "adapters and an average"],
)
def test_a_run_that_is_stopped_and_resumed_has_the_same_weights_bit_for_bit(
    tmp_path: Path, learn: dict[str, Any]
) -> None:
    keys = {f"learn__{name}": value for name, value in learn.items()}
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = tiny(tmp_path / "whole", **keys)
    tiny(tmp_path / "parts", run__steps=2, **keys)
    dotted = {name.replace("__", "."): value for name, value in keys.items()}
    config = load_config(config_file(tmp_path / "parts"), dotted)
    resumed = train(config, resume=True)
    assert all(line["engine_gap/max"] < 1e-3 for line in read_metrics(resumed.folder))
    first, second = final_weights(whole), final_weights(resumed)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
    assert resumed.before == whole.before
    assert resumed.after == whole.after


def test_a_run_whose_checkpoints_are_gone_says_that_it_begins_again(tmp_path: Path) -> None:
    class Told(SilentProgress):
        def say(self, text: str) -> None:
            lines.append(text)

    lines: list[str] = []
    checkpoints = tiny(tmp_path, run__steps=1).folder / "checkpoints"
    shutil.rmtree(checkpoints / "step-000001")
    config = load_config(config_file(tmp_path), {"run.steps": 1})
    assert train(config, resume=True, progress=Told()).steps == 1
    assert f"{checkpoints} holds no checkpoint: the run starts at step 0" in lines


def test_a_lost_summary_does_not_make_a_trained_policy_the_first_one(tmp_path: Path) -> None:
    """Mutant: the evaluation before training is played anew, by the policy of the checkpoint."""
    first = tiny(tmp_path, run__steps=2)
    config = load_config(config_file(tmp_path), {"run.steps": 2})
    (first.folder / "summary.json").unlink()
    assert train(config, resume=True).before == first.before
    (first.folder / "summary.json").unlink()
    (first.folder / "evaluations" / "before.json").unlink()
    with pytest.raises(
        ConfigError, match=r"lost the evaluation before .* trained 2 steps; restore"
    ):
        train(config, resume=True)


def test_a_resume_under_other_rules_says_that_before_and_after_are_no_pair(tmp_path: Path) -> None:
    """Mutant: the two scores are shown side by side, and nothing is said."""

    class Told(SilentProgress):
        def say(self, text: str) -> None:
            lines.append(text)

    lines: list[str] = []
    tiny(tmp_path, run__steps=1)
    for steps, changes in ((2, {}), (3, {"evaluate.threshold": 0.5})):
        config = load_config(config_file(tmp_path), {"run.steps": steps, **changes})
        train(config, resume=True, progress=Told())
        said = [line for line in lines if line.startswith("before and after are no pair: ")]
        assert bool(said) == bool(changes)
    assert "threshold is 1 in A and 0.5 in B" in said[0]


def test_a_run_does_not_go_on_with_other_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the mark is not checked."""
    tiny(tmp_path, run__steps=2)
    config = load_config(config_file(tmp_path))

    def others(split: Split, seed: int) -> Iterable[Task]:
        return [*doubles(split, seed)][::-1]

    with monkeypatch.context() as patch:
        patch.setattr(tiny_run, "doubles", others)
        with pytest.raises(ConfigError, match=r"first 4 train tasks are not those .*restore it"):
            train(config, resume=True)
    assert train(config, resume=True).steps == 4


def test_a_trace_holds_no_batch_of_a_killed_step_twice(tmp_path: Path) -> None:
    """A step that was traced and killed before its checkpoint is traced again.

    Mutant: what was appended after the checkpoint stays.
    """
    trace = tiny(tmp_path, run__steps=1).folder / "trace.jsonl"
    of_one = trace.read_text().splitlines()
    assert of_one
    trace.write_text("\n".join([*of_one, *of_one, ""]))
    train(load_config(config_file(tmp_path), {"run.steps": 2}), resume=True)
    of_two = trace.read_text().splitlines()
    assert of_two[: len(of_one)] == of_one
    assert len(of_two) == 2 * len(of_one)


def test_everything_goes_on_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines that hear nothing for a minute take the run for dead, and steps have deadlines."""
    turned, waited = threading.Event(), list[bool]()
    run, save = TrainingLoop.run, CheckpointManager.save  # pyright: ignore[reportPrivateUsage]

    async def turning() -> None:
        while True:
            turned.set()
            await asyncio.sleep(0.001)

    async def beside(loop: Any, writer: Any) -> TrainingResult:
        beats = asyncio.create_task(turning())
        try:
            return await run(loop, writer)
        finally:
            beats.cancel()

    def slowly(checkpoints: CheckpointManager, *args: Any, **kwargs: Any) -> Path:
        turned.clear()
        waited.append(turned.wait(10.0))
        return save(checkpoints, *args, **kwargs)

    monkeypatch.setattr(TrainingLoop, "run", beside)  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(CheckpointManager, "save", slowly)
    tiny(tmp_path, run__steps=1)
    assert waited == [True]


def test_train_and_held_out_overlap_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="held-out task"):
        tiny(tmp_path, env__kwargs={"leak": True})


def test_an_empty_task_set_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no held-out task"):
        tiny(tmp_path, env__kwargs={"empty": True})
    assert not (tmp_path / "runs").exists()


def test_an_unknown_env_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"code/ChainSun-v0.*code/ChainSum-v0"):
        tiny(tmp_path, env__id="code/ChainSun-v0")
    assert not (tmp_path / "runs").exists()


def test_a_prompt_longer_than_the_context_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine\.context_tokens"):
        tiny(tmp_path, engine__context_tokens=4)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("asked", "of_ctrl_c"),
    [(signal.SIGINT, signal.SIG_DFL), (signal.SIGTERM, signal.SIG_IGN)],
    ids=["at a terminal", "in the background of a script"],
)
def test_ctrl_c_leaves_a_checkpoint_and_no_process(
    tmp_path: Path, root: Path, asked: signal.Signals, of_ctrl_c: signal.Handlers
) -> None:
    path = config_file(tmp_path)
    command = [sys.executable, "-m", "agentrl.cli", "train", str(path), "run.steps=10000"]
    places = [".", "envs", "tools", "sandbox"]
    env = {"PYTHONPATH": ":".join(str(root / place) for place in places), "PATH": "/usr/bin:/bin"}
    running = subprocess.Popen(
        command,
        env=env,
        cwd=tmp_path,
        start_new_session=True,
        # A script's background job ignores Ctrl-C, and so does what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, of_ctrl_c),
    )
    try:
        wait_for_checkpoint(tmp_path / "runs/tiny/checkpoints", timeout_s=400)
        running.send_signal(asked)
        assert running.wait(300) == 130
    finally:
        running.kill()
        running.wait(10)
    left = subprocess.run(
        ["ps", "-o", "pid=", "--sid", str(running.pid)], capture_output=True, text=True
    )
    assert left.stdout.strip() == ""
    assert list((tmp_path / "runs/tiny/checkpoints").iterdir())


def wait_for_checkpoint(folder: Path, *, timeout_s: float) -> None:
    ends = time.monotonic() + timeout_s
    while not list(folder.glob("step-*")):
        assert time.monotonic() < ends, f"no checkpoint in {folder} after {timeout_s} s"
        time.sleep(0.1)


def test_intels_cpus_are_told_to_be_batch_invariant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for vendor, expected in (("AuthenticAMD", None), ("GenuineIntel", "AUTO,STRICT")):
        monkeypatch.delenv("MKL_CBWR", raising=False)
        cpus = tmp_path / vendor
        cpus.write_text(f"vendor_id\t: {vendor}\n")
        set_batch_invariance(cpus)
        assert os.environ.get("MKL_CBWR") == expected
    monkeypatch.setenv("MKL_CBWR", "AVX2,STRICT")
    set_batch_invariance(cpus)
    assert os.environ["MKL_CBWR"] == "AVX2,STRICT", "somebody's own choice"


def test_threads_that_wait_do_not_spin(root: Path) -> None:
    """It is OpenMP that reads the variable, once, so it stands before torch is there."""
    code = (
        "import sys, os\n"
        "import agentrl.run.train\n"
        "assert 'torch' not in sys.modules, 'too late for the variable'\n"
        "from agentrl.runtime.machine import set_thread_count\n"
        "set_thread_count(2)\n"
        "print(os.environ['OMP_WAIT_POLICY'])\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    for chosen, expected in ((None, "PASSIVE"), ("ACTIVE", "ACTIVE")):
        mine = {} if chosen is None else {"OMP_WAIT_POLICY": chosen}
        ran = subprocess.run(
            [sys.executable, "-c", code],
            env=environment | mine,
            cwd=root,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert ran.stdout.strip() == expected, ran.stderr
