"""A warm start that was interrupted goes on where it was.

Mutants seen caught: a step done again; no look at `until_loss` before the next step; weights not
loaded, or not published to a rounded model; one moment for the other; trained tokens forgotten;
not written when it is interrupted; token ids, masks, section, precision or seed left out of the
fingerprint, or the fingerprint not compared; an interval that begins before the writing, or does
not grow with it; a file that is written in place.
"""

import errno
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from agentrl.config.learn import LearnSection, Precision
from agentrl.config.run import MakePolicySection, WarmstartSection
from agentrl.errors import CancelledRollout, LearnError
from agentrl.learn import warmstart_file
from agentrl.learn.warmstart import TokenizedDemonstration, WarmstartSummary, warmstart
from agentrl.learn.warmstart_file import WarmstartFile, WarmstartPosition
from agentrl.models.folders import make_model

MODEL = MakePolicySection(
    hidden_size=16, layers=1, heads=2, kv_heads=2, head_dim=8, intermediate_size=32
)
SECTION = WarmstartSection(steps=12, batch_size=8, learning_rate=1e-2, warmup_steps=2)
MASK = (False, False, True, True)
ROWS = [TokenizedDemonstration((2, 4 + at % 12, 4 + at % 12, 1), MASK) for at in range(60)]


def small(seed: int = 0) -> Any:
    """Return a one-layer Qwen3 with random weights."""
    return make_model(
        MODEL, vocab_size=16, eos_token_id=1, pad_token_id=0, context_tokens=32, seed=seed
    )


def weights(model: Any) -> list[Tensor]:
    """Return a copy of the weights."""
    return [p.detach().clone() for p in model.parameters()]


def same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Return whether both are the same, bit for bit."""
    return all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


def train(
    file: Path | None,
    *,
    stop_after: int | None = None,
    section: WarmstartSection = SECTION,
    rows: Sequence[TokenizedDemonstration] = ROWS,
    precision: Precision = "float32",
    seed: int = 0,
    model: Any = None,
) -> tuple[list[Tensor], WarmstartSummary | None, list[int]]:
    """Return the weights, the summary, and how many steps were done before and then each step."""
    model = model or small()
    told: list[int] = []

    def on_step(step: int, loss: float, tokens: int) -> None:
        told.append(step)
        if step == stop_after:
            raise CancelledRollout("interrupted")

    summary = None
    try:
        summary = warmstart(
            model,
            rows,
            section,
            seed=seed,
            learn=LearnSection(precision=precision),
            on_start=told.append,
            on_step=on_step,
            file=file,
        )
    except CancelledRollout:
        assert stop_after is not None
    return weights(model), summary, told


@pytest.mark.parametrize("precision", get_args(Precision))
@pytest.mark.parametrize("stop_after", [1, 5, 12])
def test_what_was_interrupted_ends_as_in_one_piece(
    stop_after: int, precision: Precision, tmp_path: Path
) -> None:
    whole, summary, steps = train(None, precision=precision)
    file = tmp_path / "warmstart-state.safetensors"
    _, none, told = train(file, stop_after=stop_after, precision=precision)
    assert (none, told) == (None, [0, *range(1, stop_after + 1)])
    # All that trains is in the file: it goes on from another model's weights.
    resumed, other, told = train(file, precision=precision, model=small(seed=1))
    assert told == [stop_after, *range(stop_after + 1, 13)]
    assert same(whole, resumed)
    assert other == summary
    assert steps == [0, *range(1, 13)]


def test_what_had_learnt_enough_when_it_was_interrupted_learns_no_more(tmp_path: Path) -> None:
    section = SECTION.model_copy(update={"steps": 400, "until_loss": 0.5})
    whole, summary, _ = train(None, section=section)
    assert summary is not None
    assert summary.reached
    assert 10 < summary.steps < 400
    file = tmp_path / "warmstart-state.safetensors"
    train(file, stop_after=summary.steps, section=section)
    resumed, other, told = train(file, section=section)
    assert same(whole, resumed)
    assert other == summary
    assert told == [summary.steps]


@pytest.mark.parametrize(
    "change",
    [
        {"rows": ROWS[:-1]},
        {"rows": [*ROWS[:-1], replace(ROWS[-1], mask=(False, True, True, True))]},
        {"rows": [*ROWS[:-1], replace(ROWS[-1], token_ids=(2, 5, 6, 1))]},
        {"rows": [*ROWS[1:], ROWS[0]]},
        {"section": SECTION.model_copy(update={"learning_rate": 2e-2})},
        {"precision": "bfloat16"},
        {"seed": 1},
    ],
    ids=["fewer", "mask", "token", "order", "rate", "precision", "seed"],
)
def test_what_is_trained_on_something_else_begins_anew(
    change: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "warmstart-state.safetensors"
    train(file, stop_after=5)
    resumed, _, told = train(file, **change)
    assert told == [0, *range(1, 13)]
    assert same(resumed, train(None, **change)[0])


@pytest.mark.parametrize("spoil", ["cut", "text", "empty", "other"])
def test_a_damaged_file_is_told_with_the_way_out(spoil: str, tmp_path: Path) -> None:
    file = tmp_path / "warmstart-state.safetensors"
    train(file, stop_after=5)
    data = file.read_bytes()
    spoilt = {"cut": data[:-40], "text": b"{}" * 90, "empty": b"", "other": data[:8] + data[9:]}
    file.write_bytes(spoilt[spoil])
    with pytest.raises(LearnError, match=r"is damaged: .*; remove it to begin the warm start anew"):
        train(file)


def test_it_is_written_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill without warning loses a minute, and writing takes a tenth of the time at most."""
    now_s, takes_s = 0.0, 1.0
    written: list[float] = []

    def write(*_: object, **__: object) -> int:
        nonlocal now_s
        written.append(now_s)
        now_s += takes_s
        return 0

    monkeypatch.setattr(warmstart_file.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(warmstart_file, "write_safetensors", write)
    file = WarmstartFile(path=tmp_path / "file", fingerprint="x")
    while now_s < 200:
        if file.is_due:
            file.write(WarmstartPosition(losses=[1.0], trained_tokens=1), {})
        now_s += 1
    takes_s = 20.0
    while now_s < 700:
        if file.is_due:
            file.write(WarmstartPosition(losses=[1.0], trained_tokens=1), {})
        now_s += 1
    assert written == [60, 121, 182, 243, 463, 683]


def test_a_full_disk_leaves_the_file_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "warmstart-state.safetensors"
    train(file, stop_after=3)
    before = file.read_bytes()

    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(warmstart_file, "write_safetensors", refuse)
    with pytest.raises(OSError, match="No space left") as failure:
        train(file, stop_after=6)
    assert failure.value.filename == str(file)
    assert file.read_bytes() == before
    assert os.listdir(tmp_path) == [file.name]
