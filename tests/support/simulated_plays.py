"""What runs on the simulated device: training steps with several methods, and sampling.

Each returns how far its numbers are from those of the CPU, and where the host waited.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from agentrl.config.learn import LearnSection
from agentrl.engine import local
from agentrl.engine.local import LocalEngine
from agentrl.learn.layouts import LAYOUTS
from agentrl.learn.trainer import PolicyTrainer
from agentrl.policy import GenerateRequest, Sampling
from tests.support.engine_models import requests, tiny
from tests.support.learning import CPU, model_of, rows_of, trees_of
from tests.support.simulated_device import NAME, DeviceSimulation, data_of, move

METHODS: Mapping[str, dict[str, Any]] = {
    "defaults": {},
    "padded": {"layout": "padded"},
    "packed": {"layout": "packed"},
    "bfloat16": {"precision": "bfloat16"},
    "updates": {"minibatches": 2, "epochs": 2},
    "critic": {"critic": {}, "advantage": {"name": "gae"}},
    "kl and entropy": {"kl": {}, "entropy_bonus": 0.01},
    "average": {"ema": {}},
    "gspo": {"loss": {"name": "gspo"}},
    "m2po": {"loss": {"name": "m2po"}},
    "ewma": {"proximal": {"name": "ewma"}},
    "offload": {"offload": True, "minibatches": 2, "ema": {}},
    "offload in bfloat16": {"offload": True, "precision": "bfloat16"},
    "offload, critic": {"offload": True, "critic": {"shared": True}, "advantage": {"name": "gae"}},
}


def _train(section: LearnSection, *, on_device: bool) -> tuple[PolicyTrainer, dict[str, float]]:
    model = model_of()
    if on_device:
        move(model)
    trainer = PolicyTrainer(model, section, seed=1, steps=2)
    trainer.keeps_credit = True
    metrics = [trainer.step(trees_of(seed=seed, version=seed)) for seed in range(2)]
    return trainer, metrics[-1]


def _distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    return max(
        float((data_of(one[n]).double() - data_of(other[n]).double()).abs().max()) for n in one
    )


def play_steps() -> dict[str, Any]:
    """Train two steps with each of the methods."""
    results: dict[str, Any] = {}
    for name, settings in METHODS.items():
        section = LearnSection.model_validate({"gap_alarm": {"action": "none"}, **settings})
        expected, expected_metrics = _train(section, on_device=False)
        with DeviceSimulation():
            found, metrics = _train(section, on_device=True)
            weights = dict(found.weights())
        results[name] = {
            "distance": _distance(expected.weights(), weights),
            "metrics": max(abs(metrics[n] - v) for n, v in expected_metrics.items()),
        }
    return results


def play_offload() -> dict[str, Any]:
    """Train with weights and moments in the host's memory, and go on from the state of it."""
    results: dict[str, Any] = {}
    for precision in ("float32", "bfloat16"):
        section = LearnSection.model_validate({"offload": True, "precision": precision})
        with DeviceSimulation():
            trainer, _ = _train(section, on_device=True)
            state = trainer.optimizer.state()
            values = [*trainer.optimizer.weights().values(), *state.values()]
            other, _ = _train(section, on_device=True)
            other.model.load_state_dict(trainer.model.state_dict())
            other.optimizer.load_state(state, updates=trainer.optimizer.updates)
            other.version = trainer.version
            for each in (trainer, other):
                each.step(trees_of(seed=5, version=2))
            results[precision] = {
                "devices": sorted({value.device.type for value in values}),
                "model": sorted({p.device.type for p in trainer.model.parameters()}),
                "distance": _distance(trainer.weights(), other.weights()),
                "masters": any(name.startswith("master.") for name in state),
            }
    return results


def play_waits() -> dict[str, Any]:
    """Take a step in one pass and in several; return the waits of each further pass, by layout."""
    return {layout: _count_waits(layout) for layout in ("padded", "packed")}


def _count_waits(layout: str) -> dict[str, Any]:
    steps = [_count_step(layout, limit_tokens) for limit_tokens in (8192, 24)]
    (few, first), (many, second) = steps
    waits = {place: (n - first[place]) / (many - few) for place, n in second.items()}
    return {
        "passes": [few, many],
        "each pass": {place: n for place, n in waits.items() if n},
        "step": sum(first.values()),
    }


def _count_step(layout: str, limit_tokens: int) -> tuple[int, Counter[str]]:
    """Return the number of passes of a step, and its waits."""
    settings = {"layout": layout, "micro_batch_tokens": limit_tokens}
    trees = trees_of(4)
    with DeviceSimulation() as simulation:
        model = model_of()
        move(model)
        trainer = PolicyTrainer(model, LearnSection.model_validate(settings), seed=1)
        simulation.waits.clear()
        trainer.step(trees)
        waits = Counter(simulation.waits)
    rows = rows_of(trees)
    return len(
        LAYOUTS[LearnSection.model_validate(settings).layout](limit_tokens).plan(rows)
    ), waits


def play_engine() -> dict[str, Any]:
    """Sample from the local engine, which sleeps and loads between: the same tokens as on the CPU,
    and waits for each step."""
    asked = [
        GenerateRequest(id="p", prompt=(5, 6, 7), max_new_tokens=9, sampling=Sampling(top_p=0.7)),
        GenerateRequest(id="k", prompt=(5, 6), max_new_tokens=9, sampling=Sampling(top_k=5)),
        GenerateRequest(id="g", prompt=(9,), max_new_tokens=9, sampling=Sampling(temperature=0)),
        GenerateRequest(id="t", prompt=(8,), max_new_tokens=5, top_logprobs=3, entropies=True),
        *requests(4, max_new_tokens=6),
    ]

    def run(on_device: bool) -> tuple[list[tuple[int, ...]], int]:
        model = tiny("qwen3")
        device = NAME if on_device else "cpu"

        async def ask() -> tuple[list[tuple[int, ...]], int]:
            async with LocalEngine(model, slots=4, context_tokens=256, device=device) as engine:
                turns = await asyncio.gather(*map(engine.generate, asked))
                await engine.sleep()
                await engine.load(model.state_dict(), 1)
                turns += await asyncio.gather(*map(engine.generate, asked))
                return [turn.token_ids for turn in turns], engine.statistics().steps

        return asyncio.run(ask())

    expected, _ = run(False)
    # The simulation belongs to its thread: a slow pass must not go to another one.
    with DeviceSimulation() as simulation, patch.object(local, "THREAD_S", math.inf):
        found, steps = run(True)
    each = {place: n / steps for place, n in simulation.waits.items()}
    return {"same": found == expected, "steps": steps, "each step": each}


def play_masks() -> dict[str, Any]:
    """Make the masks of packed sequences on the device: those of the CPU."""
    rows = rows_of(trees_of(4))
    expected = LAYOUTS["tree"](8192).tokens(rows, device=CPU).ancestry
    assert expected is not None
    with DeviceSimulation():
        found = LAYOUTS["tree"](8192).tokens(rows, device=torch.device(NAME)).ancestry
        assert found is not None
        masks = [found.mask(), found.mask(window=3), found.block_mask().to_dense()]
    others = [expected.mask(), expected.mask(window=3), expected.block_mask().to_dense()]
    return {
        "same": [bool((data_of(a) == b).all()) for a, b in zip(masks, others, strict=True)],
        "devices": sorted({mask.device.type for mask in masks}),
    }
