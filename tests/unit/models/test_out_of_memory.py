"""Memory that is not there, by phase. Errors are torch's own: of an allocation that no host has, or
of its class for a device, raised by a hook of what computes there, as no GPU is at hand.

Mutants seen caught: another phase's keys, scoring not told apart, and other errors explained, too.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from agentrl.config.learn import LearnSection
from agentrl.config.run import WarmstartSection
from agentrl.engine.local import LocalEngine
from agentrl.errors import EngineError, LearnError
from agentrl.learn.trainer import PolicyTrainer
from agentrl.learn.warmstart import TokenizedDemonstration, warmstart
from agentrl.models.out_of_memory import explain_out_of_memory
from agentrl.policy import GenerateRequest
from tests.support.engine_models import tiny
from tests.support.learning import model_of, trees_of

SIZES = (
    "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 1.00 GiB is free."
)


def run_out(*_: object) -> None:
    raise torch.OutOfMemoryError(
        f"CUDA out of memory. {SIZES} See documentation for Memory Management"
    )


def run_out_where(wanted: Callable[[], bool]) -> Callable[..., None]:
    def hook(*_: object) -> None:
        if wanted():
            run_out()

    return hook


def trainer_of(**changes: Any) -> PolicyTrainer:
    return PolicyTrainer(model_of(), LearnSection(**changes), seed=0)


@pytest.mark.parametrize(
    ("changes", "with_gradient", "phase"),
    [
        ({}, True, "the forward and backward passes of a training step"),
        ({"epochs": 2}, False, "scoring the batch of a step"),
        ({"proximal": {"name": "revised_ewma"}}, False, "scoring the batch of a step"),
    ],
)
def test_a_pass_names_its_phase_and_its_keys(
    changes: dict[str, Any], with_gradient: bool, phase: str
) -> None:
    trainer = trainer_of(**changes)
    hook = run_out_where(lambda: torch.is_grad_enabled() == with_gradient)
    trainer.model.get_input_embeddings().register_forward_pre_hook(hook)
    with pytest.raises(LearnError) as told:
        trainer.step(trees_of())
    text = str(told.value)
    assert text.startswith(f"{phase} ran out of GPU memory: {SIZES} Lower ")
    assert "learn.micro_batch_tokens" in text
    assert "learn.gradient_checkpointing" in text
    assert text.endswith("agentrl plan CONFIG forecasts what fits.")


def test_an_update_names_the_keys_of_its_moments() -> None:
    trainer = trainer_of()
    handle = register_optimizer_step_pre_hook(run_out)
    try:
        with pytest.raises(LearnError, match=r"^the optimizer's update ran out") as told:
            trainer.step(trees_of())
    finally:
        handle.remove()
    assert "learn.optimizer.moments: 8bit" in str(told.value)
    assert "learn.micro_batch_tokens" not in str(told.value)


def test_a_warm_start_names_its_keys() -> None:
    model = model_of()
    model.get_input_embeddings().register_forward_pre_hook(run_out_where(torch.is_grad_enabled))
    shown = [TokenizedDemonstration((1, 2, 3), (False, True, True))]
    section = WarmstartSection(demonstrations=1, steps=1, batch_size=1)
    with pytest.raises(LearnError, match=r"^the warm start ran .* learn.gradient_checkpointing"):
        warmstart(model, shown, section, seed=0)


async def test_an_engine_names_its_keys() -> None:
    model, is_full = tiny("gpt2"), False
    model.get_input_embeddings().register_forward_pre_hook(run_out_where(lambda: is_full))
    async with LocalEngine(model, slots=3, context_tokens=64) as engine:
        is_full = True
        with pytest.raises(EngineError) as told:
            await engine.generate(GenerateRequest(id="a", prompt=(1, 2), max_new_tokens=2))
    text = str(told.value)
    assert "the local engine with 3 slots of 64 tokens each ran out of GPU memory" in text
    assert "Lower engine.slots or engine.context_tokens" in text


def test_a_host_without_memory_is_told_too() -> None:
    with (
        pytest.raises(
            LearnError, match=r"^x ran out of the host's memory: .*you tried to allocate"
        ),
        explain_out_of_memory(LearnError, "x", "y"),
    ):
        torch.empty(2**50)


@pytest.mark.parametrize("error", [ZeroDivisionError("a"), RuntimeError("b"), LearnError("c")])
def test_other_errors_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as told, explain_out_of_memory(LearnError, "x", "y"):
        raise error
    assert told.value is error
