"""Memory of a step beside its plan."""

import gc
from mmap import mmap
from pathlib import Path

import pytest
import torch

from agentrl.config.learn import LearnSection
from agentrl.selfcheck.__main__ import run_check
from agentrl.selfcheck.checks import memory, throughput
from agentrl.selfcheck.checks.memory import MemoryMeter, choose_size, predict_peak_bytes
from agentrl.selfcheck.checks.policies import build_batch, write_policy
from agentrl.selfcheck.context import CheckContext, CheckFailed
from agentrl.selfcheck.report import FigureValue


@pytest.mark.parametrize(
    ("free", "chosen"),
    [
        (float("inf"), 8192),
        (24 / 0.94 + 0.01, 8192),
        (24.0, 4096),  # a share is the driver's
        (13.0, 2048),
        (12.0, None),
        (0.0, None),
    ],
)
def test_the_largest_size_that_there_is_room_for_is_taken(free: float, chosen: int | None) -> None:
    assert choose_size({8192: 24, 4096: 16, 2048: 12}, free) == chosen


@pytest.mark.parametrize(
    ("device", "measured", "is_fault"),
    [
        ("cuda", 1250, False),
        ("cuda", 1260, True),
        ("cuda", 10, False),
        ("cpu", 1500, False),
        ("cpu", 1510, True),
    ],
)
def test_a_peak_far_above_its_plan_fails(device: str, measured: int, is_fault: bool) -> None:
    figures: dict[str, FigureValue] = {}
    context = CheckContext(device, Path(), 1.0, figures.__setitem__)
    throughput.compare_memory(context, planned_bytes=1000, measured_bytes=measured)
    assert figures["train.peak_of_plan"] == measured / 1000
    if not is_fault:
        context.conclude()
        return
    with pytest.raises(CheckFailed, match=r"train\.peak_of_plan is 1.*at most 1\.(25|5) is"):
        context.conclude()


def test_a_peak_that_is_not_known_is_no_fault() -> None:
    figures: dict[str, FigureValue] = {}
    context = CheckContext("cpu", Path(), 1.0, figures.__setitem__)
    throughput.compare_memory(context, planned_bytes=1000, measured_bytes=None)
    context.conclude()
    assert figures == {"train.peak_mib": None}


def test_the_most_of_a_process_is_reckoned_from_a_moment_on(tmp_path: Path) -> None:
    assert MemoryMeter("cpu", tmp_path).read_peak_bytes() is None
    (tmp_path / "status").write_text("Name:\tx\nVmHWM:\t     300 kB\nVmRSS:\t     100 kB\n")
    meter = MemoryMeter("cpu", tmp_path)
    assert meter.read_peak_bytes() == 200 * 1024
    meter.restart()
    assert (tmp_path / "clear_refs").read_text() == "5"


def test_the_most_of_this_process_comes_and_goes() -> None:
    gc.collect()
    meter = MemoryMeter("cpu")
    meter.restart()
    size = 2**26
    block = mmap(-1, size)  # new pages, and no block that an allocator has kept
    block.write(bytes([1]) * size)
    # The bytes that are written are a block of their own.
    assert 0.9 * size < (meter.read_peak_bytes() or 0) < 2.5 * size
    block.close()
    meter.restart()
    assert (meter.read_peak_bytes() or 0) < size / 4


def test_a_plan_is_of_the_policy_and_the_step(tmp_path: Path) -> None:
    """Gradients, moments and weights by hand; activations grow with the tokens of a pass."""
    folder = write_policy(tmp_path)
    batch = build_batch(lambda token_ids: [0.0] * (len(token_ids) - 1), prompt_tokens=400)
    samples = [sample for group in batch.groups for sample in group.samples]

    def plan(**changes: object) -> int:
        values = {"layout": "packed", "micro_batch_tokens": 512, **changes}
        return predict_peak_bytes(folder, LearnSection.model_validate(values), samples)

    small = plan()
    assert plan(micro_batch_tokens=2048) > 2 * small
    # With common prompts computed once, a pass has fewer places.
    assert plan(layout="tree", micro_batch_tokens=2048) < plan(micro_batch_tokens=2048)
    assert plan(precision="bfloat16") != small


def test_a_gpu_without_room_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def accept_bfloat16(**options: bool) -> bool:
        return True

    def find_free() -> tuple[int, int]:
        return 3 * 2**30, 8 * 2**30

    def plan(folder: Path, section: LearnSection, samples: object) -> int:
        return section.micro_batch_tokens * 2**21

    monkeypatch.setattr(torch.cuda, "mem_get_info", find_free)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", accept_bfloat16)
    monkeypatch.setattr(throughput, "predict_peak_bytes", plan)
    monkeypatch.setattr(throughput, "write_policy", lambda folder, section: folder)  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    context = CheckContext("cuda", tmp_path, 1.0, lambda name, value: None)
    status, reason = run_check("agentrl.selfcheck.checks.throughput:check_throughput", context)
    assert status == "skipped"
    assert reason.startswith("training would take 4.0 GiB by its plan, and 3.0 GiB are free on")


def test_figures_are_of_this_page(root: Path) -> None:
    """The page names the factors."""
    page = (root / "docs" / "selfcheck.md").read_text()
    for factor in throughput.MEMORY_FACTOR.values():
        assert f"{factor:g}" in page
    assert memory.OWN.is_dir()
