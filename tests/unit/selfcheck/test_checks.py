"""Checks of a self-check in this process: each passes here, and each can fail.

Mutants seen caught: packed sequences see each other; a factor of the gradient; a chunk of the head
left out; an engine that keeps its weights; a trainer at another temperature; a checkpoint without
moments; a count of operations without attention, or with the embedding.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from agentrl.config.load import load_config
from agentrl.engine.in_process import InProcessEngine
from agentrl.engine.local import LocalEngine
from agentrl.learn.layouts import attention, packed
from agentrl.learn.optimizer import AdamW
from agentrl.learn.sequence_layout import ModelInputs
from agentrl.models.folders import load_model
from agentrl.selfcheck.__main__ import run_check
from agentrl.selfcheck.catalogue import CHECKS
from agentrl.selfcheck.checks import device, kernels, quickstart, throughput, weights
from agentrl.selfcheck.checks.policies import CONTEXT_TOKENS, SMALL, draw_tokens, write_policy
from agentrl.selfcheck.context import CheckContext, CheckFailed
from agentrl.selfcheck.report import FigureValue
from agentrl.weight_sync import check as weight_check

Found = tuple[str, str, dict[str, FigureValue]]


def run(name: str, folder: Path) -> Found:
    """Return status, reason and figures of a check on the CPU."""
    figures: dict[str, FigureValue] = {}
    (function,) = (check.function for check in CHECKS if check.name == name)
    context = CheckContext("cpu", folder, 60.0, figures.__setitem__)
    status, reason = run_check(function, context)
    return status, reason, figures


def do_nothing(*args: Any, **options: Any) -> None:
    """Take anything, and find nothing."""


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("device", "product.bfloat16.error"),
        ("layouts", "tree.bfloat16.gradient"),
        ("head", "bfloat16.entropies"),
        ("gap", "bfloat16.mean_nats"),
        ("weights-memory", "transfer.seconds"),
        ("weights-file", "transfer.mib"),
        ("checkpoint", "second_step"),
    ],
)
def test_a_check_passes_on_the_cpu_with_its_figures(name: str, figure: str, tmp_path: Path) -> None:
    status, reason, figures = run(name, tmp_path)
    assert (status, reason) == ("passed", "")
    assert figure in figures


def test_sequences_that_see_each_other_fail_in_every_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens_of = packed.tokens_of

    def forget_ends(*args: Any, **options: Any) -> ModelInputs:
        made = tokens_of(*args, **options)
        assert made.ancestry is not None
        ends = torch.full_like(made.ancestry.ends, made.inputs.shape[1] - 1)
        stop = made.inputs.shape[1]
        forgot = replace(made.ancestry, ends=ends, chains=((0, stop),), across=())
        return replace(made, ancestry=forgot)

    monkeypatch.setattr(packed, "tokens_of", forget_ends)
    status, reason, _ = run("layouts", tmp_path)
    assert status == "failed"
    for layout in ("packed", "tree"):
        for dtype in ("float32", "bfloat16"):
            for figure in ("max_nats", "mean_nats", "gradient"):
                assert f"{layout}.{dtype}.{figure} is" in reason
    assert "padded" not in reason


def test_a_wrong_gradient_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backward = attention._Split.backward  # pyright: ignore[reportPrivateUsage]

    def double(ctx: Any, *gradients: Any) -> Any:
        query, *others = backward(ctx, *gradients)
        return (2 * query, *others)

    monkeypatch.setattr(attention._Split, "backward", staticmethod(double))  # pyright: ignore[reportPrivateUsage]
    status, reason, _ = run("layouts", tmp_path)
    assert status == "failed"
    assert "tree.bfloat16.gradient" in reason
    assert "nats" not in reason


def test_a_head_that_leaves_out_a_chunk_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentrl.learn import head

    parts = head._parts  # pyright: ignore[reportPrivateUsage]

    def leave_out(length: int, chunk: int) -> list[slice]:
        return [*parts(length, chunk)][:-1]

    monkeypatch.setattr(head, "_parts", leave_out)
    status, reason, _ = run("head", tmp_path)
    assert status == "failed"
    assert "float32.gradient" in reason


def test_an_engine_of_another_temperature_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentrl.engine import local

    sample = local.sample

    def warm(logits: torch.Tensor, *args: Any, **options: Any) -> Any:
        return sample(logits / 1.2, *args, **options)

    monkeypatch.setattr(local, "sample", warm)
    status, reason, _ = run("gap", tmp_path)
    assert status == "failed"
    assert "float32.mean_nats" in reason
    assert "bfloat16.mean_nats" in reason


@pytest.mark.parametrize("name", ["weights-memory", "weights-file"])
def test_an_engine_that_keeps_its_weights_fails(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def keep(self: LocalEngine, weights: Any, version: int) -> None:
        self._version = version  # pyright: ignore[reportPrivateUsage]

    monkeypatch.setattr(LocalEngine, "load", keep)
    status, reason, _ = run(name, tmp_path)
    assert status == "failed"
    assert "after the transfer, it gives token" in reason


def test_a_proof_that_cannot_fail_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "complaint", do_nothing)
    assert weight_check.complaint is not weights.complaint
    status, reason, _ = run("weights-memory", tmp_path)
    assert (status, reason) == ("failed", "the engine proves weights that it was not given")


def test_a_checkpoint_without_moments_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AdamW, "load_state", do_nothing)
    status, reason, figures = run("checkpoint", tmp_path)
    assert status == "failed"
    assert figures["unequal_weights"] == 0
    assert "second_step" in reason


def test_what_breaks_is_a_failure_with_the_faults_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def break_down(context: CheckContext) -> None:
        context.expect("first", 3.0, at_most=1)
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(kernels, "check_head", break_down)
    status, reason, figures = run("head", tmp_path)
    assert status == "failed"
    assert reason == "first is 3, and at most 1 is allowed; OutOfMemoryError: no memory"
    assert figures == {"first": 3.0}
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "is_fault"),
    [(1.0, False), (1.01, True), (float("nan"), True), (float("inf"), True), (-5.0, False)],
)
def test_a_figure_above_its_limit_or_no_number_is_a_fault(value: float, is_fault: bool) -> None:
    context = CheckContext("cpu", Path(), 1.0, lambda name, value: None)
    context.expect("x", value, at_most=1.0)
    if not is_fault:
        context.conclude()
        return
    with pytest.raises(CheckFailed, match=r"x is .*, and at most 1 is allowed"):
        context.conclude()


def test_operations_are_those_that_torch_counts(tmp_path: Path) -> None:
    """Torch counts all of attention's square, of which causal attention needs half."""
    folder = write_policy(tmp_path)
    model = load_model(folder, dtype="float32", device="cpu")
    length = 256
    tokens = torch.from_numpy(draw_tokens(length, seed=0))[None]
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(input_ids=tokens, use_cache=False).logits.sum().backward()
    # Two products forward and four backward, of two operations each.
    square = 2 * 6 * SMALL.layers * SMALL.heads * SMALL.head_dim * length**2
    ours = throughput.count_training_flops(model, [length])
    assert ours == counter.get_total_flops() - square / 2
    assert throughput.count_training_flops(model, [length, length]) == 2 * ours


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12\nGCC 12",
            "535.183.01",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build",
            "570.86.15",
        ),
        ("NVRM version: unknown", None),
        ("", None),
    ],
)
def test_the_driver_is_read(text: str, version: str | None, tmp_path: Path) -> None:
    file = tmp_path / "version"
    assert device.read_driver(file) is None
    file.write_text(text)
    assert device.read_driver(file) == version


def test_the_quickstart_is_the_one_that_is_shipped(root: Path) -> None:
    shipped = load_config(root / "configs" / "quickstart.yaml", {})
    ours = type(shipped).model_validate(quickstart.CONFIG)
    same = {"env", "policy", "engine", "sampling", "learn"}
    assert ours.model_dump(include=same) == shipped.model_dump(include=same)
    shared = ("batch_size", "layout", "learning_rate", "guess_fraction")
    assert ours.warmstart is not None
    assert shipped.warmstart is not None
    for name in shared:
        assert getattr(ours.warmstart, name) == getattr(shipped.warmstart, name)
    assert ours.run.steps == 20


def test_rewards_are_read_in_their_order(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"reward/mean": 0.25}\n{"other": 1}\n{"reward/mean": 1}\n')
    assert quickstart.read_rewards(file) == [0.25, 1.0]


def test_policies_fit_their_requests() -> None:
    longest = max(len(sequence.token_ids) for sequence in kernels.build_sequences())
    assert longest < CONTEXT_TOKENS
    assert issubclass(LocalEngine, InProcessEngine)
