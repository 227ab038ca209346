"""What runs on the simulated device: training steps with several methods, and sampling.

Each returns how far its numbers are from those of the CPU, and where the host waited.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from agentrl.config.learn import LearnSection
from agentrl.engine.local import LocalEngine
from agentrl.learn.trainer import PolicyTrainer
from agentrl.policy import GenerateRequest, Sampling
from tests.support.engine_models import requests, tiny
from tests.support.learning import model_of, trees_of
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


def play_waits() -> dict[str, Any]:
    """Take a step in one pass and in several; return the waits of each further pass."""
    counts: list[Counter[str]] = []
    passes: list[int] = []
    for limit in (8192, 24):
        section = LearnSection(layout="packed", micro_batch_tokens=limit)
        model = model_of()
        with DeviceSimulation() as simulation:
            move(model)
            trainer = PolicyTrainer(model, section, seed=1)
            passes.append(0)
            plan = trainer.ranks.plan

            def count(*args: Any) -> list[list[int]]:
                made = plan(*args)  # noqa: B023 - called in this turn only
                passes[-1] += len(made)
                return made

            trainer.ranks.plan = count  # pyright: ignore[reportAttributeAccessIssue]
            simulation.waits.clear()
            trainer.step(trees_of(4))
            counts.append(Counter(simulation.waits))
            del trainer.ranks.plan
    further = passes[1] - passes[0]
    waits = {place: (n - counts[0][place]) / further for place, n in counts[1].items()}
    return {
        "passes": passes,
        "each pass": {place: n for place, n in waits.items() if n},
        "step": sum(counts[0].values()),
    }


def play_engine() -> dict[str, Any]:
    """Sample from the local engine: the same tokens as on the CPU, and waits for each step."""
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
                await engine.load(model.state_dict(), 1)
                return [turn.token_ids for turn in turns], engine.statistics().steps

        return asyncio.run(ask())

    expected, _ = run(False)
    with DeviceSimulation() as simulation:
        found, steps = run(True)
    each = {place: n / steps for place, n in simulation.waits.items()}
    return {"same": found == expected, "steps": steps, "each step": each}
