"""The check of sleep, with an engine of this process that takes memory as a server does."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.engine.local import LocalEngine
from agentrl.policy import Completion, GenerateRequest
from agentrl.selfcheck.__main__ import run_check
from agentrl.selfcheck.checks import engines, sleep
from agentrl.selfcheck.checks.policies import CONTEXT_TOKENS, SMALL, write_policy
from agentrl.selfcheck.checks.weights import build_spec, open_trainer
from agentrl.selfcheck.context import CheckContext, CheckFailed
from agentrl.selfcheck.report import FigureValue

MIB = 2**20


class DozingEngine:
    """An engine that gives up memory until it is given weights; `fault` is what it does wrong."""

    def __init__(self, engine: LocalEngine, fault: str) -> None:
        self._engine = engine
        self._fault = fault
        self._awake = asyncio.Event()
        self._awake.set()
        self.free_bytes = 1000 * MIB

    @property
    def version(self) -> int:
        return self._engine.version

    async def score(self, request: Any) -> Any:
        return await self._engine.score(request)

    async def generate(self, request: GenerateRequest) -> Completion:
        if self._fault != "answers" and self._fault != "breaks":
            await self._awake.wait()
        if self._fault == "breaks" and not self._awake.is_set():
            raise OSError("the server is gone")
        turn = await self._engine.generate(request)
        if self._fault == "stale" and "asleep" in request.id:
            return replace(turn, versions=(0, *turn.versions[1:]))
        return turn

    async def sleep(self) -> None:
        self._awake.clear()
        self.free_bytes += {"keeps": 0, "keeps weights": 60}.get(self._fault, 90) * MIB

    async def load(self, weights: Any, version: int) -> None:
        if self._fault == "forgets":
            self._engine._version = version  # pyright: ignore[reportPrivateUsage]
        else:
            await self._engine.load(weights, version)
        self.free_bytes -= {"stays small": 20}.get(self._fault, 90) * MIB
        self._awake.set()


def play(fault: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, FigureValue]:
    """Return the figures; raise what the check raises."""
    # Who answers or breaks is not waited for.
    monkeypatch.setattr(sleep, "ASLEEP_S", 30.0 if fault in ("answers", "breaks") else 0.05)
    figures: dict[str, FigureValue] = {}
    context = CheckContext("cpu", folder, 60.0, figures.__setitem__)
    folders = [write_policy(folder / name, seed=n) for n, name in enumerate(("old", "new"))]
    old, new = (open_trainer(each, device="cpu") for each in folders)

    async def ask() -> None:
        async with build_spec(folders[0], device="cpu", slots=8).open() as engine:
            assert isinstance(engine, LocalEngine)
            dozing = DozingEngine(engine, fault)
            await sleep.expect_sleep(
                context,
                dozing,  # pyright: ignore[reportArgumentType]
                old=old,
                new=new,
                dtype="float32",
                level=2,
                holds_bytes=100 * MIB,
                read_free_bytes=lambda: dozing.free_bytes,
            )

    asyncio.run(ask())
    context.conclude()
    return figures


def test_an_engine_that_sleeps_and_wakes_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = play("", tmp_path, monkeypatch)
    expected = {"level_2.held_mib": 100.0, "level_2.freed_mib": 90.0, "level_2.kept": 0.1}
    assert expected.items() <= figures.items()
    assert figures["level_2.not_taken_again"] == 0.1
    assert float(figures["level_2.float32.mean_nats"] or 0) < 1e-3
    assert "level_2.wake_seconds" in figures


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("keeps", r"level_2\.kept is 1, and at most 0\.25"),
        ("keeps weights", r"level_2\.kept is 0\.4, and at most 0\.25"),
        ("answers", "the engine answered a request while it slept"),
        ("forgets", "after it woke in level 2, it gives token"),
        ("stays small", r"level_2\.not_taken_again is 0\.8, and at most 0\.25"),
        ("stale", "after it woke, a turn has tokens of version 0"),
    ],
)
def test_what_is_wrong_with_sleep_is_found(
    fault: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CheckFailed, match=words):
        play(fault, tmp_path, monkeypatch)


def test_an_engine_that_breaks_asleep_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError, match="the server is gone"):
        play("breaks", tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("function", "device", "words"),
    [
        (
            "sleep:check_sleep",
            "cpu",
            "sleep gives up memory of a GPU, and vLLM's CPU build ignores it",
        ),
        ("sleep:check_sleep", "cuda", "vLLM is not installed"),
        ("engines:check_vllm_ipc", "cpu", "CUDA's handles need a GPU"),
        ("engines:check_vllm_ipc", "cuda", "vLLM is not installed"),
        ("engines:check_vllm", "cpu", "vLLM is not installed"),
    ],
)
def test_a_check_of_vllm_is_skipped_without_its_parts(
    function: str, device: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "is_installed", lambda module: False)  # pyright: ignore[reportUnknownLambdaType]
    context = CheckContext(device, tmp_path, 1.0, lambda name, value: None)
    assert run_check(f"agentrl.selfcheck.checks.{function}", context) == ("skipped", words)


def test_weights_and_keys_both_show() -> None:
    """Neither may stay unnoticed below the share that is allowed."""
    with torch.device("meta"):
        from agentrl.models.folders import make_model

        model = make_model(
            sleep.POLICY,
            vocab_size=sleep.POLICY.vocab_size,
            eos_token_id=1,
            pad_token_id=0,
            context_tokens=CONTEXT_TOKENS,
            seed=0,
        )
    weight_bytes = 2 * sum(parameter.numel() for parameter in model.parameters())
    least = min(weight_bytes, engines.VLLM_CACHE_BYTES)
    assert least / (weight_bytes + engines.VLLM_CACHE_BYTES) > 1.2 * sleep.MOST_KEPT
    assert sleep.POLICY.vocab_size >= SMALL.vocab_size
