"""Traces made up: the shapes that make scheduling hard."""

import math
from collections.abc import Callable, Mapping
from random import Random

from agentrl.errors import ConfigError
from agentrl.metrics.latency_trace import LatencyTrace, TrajectoryCost, TurnCost

TRAJECTORIES = 4000
"""So many different ones to draw from."""


def lognormal(seed: int = 0) -> LatencyTrace:
    """Return single turns of 1,000 tokens in the median, sigma 1: maths with a long tail."""
    random = Random(seed)

    def one() -> TrajectoryCost:
        tokens = min(16_384, max(16, round(1000 * math.exp(random.gauss(0, 1)))))
        return TrajectoryCost(prompt_tokens=200, turns=(TurnCost(tokens=tokens, step_s=0.05),))

    return LatencyTrace(name="lognormal", trajectories=tuple(one() for _ in range(TRAJECTORIES)))


def bimodal(seed: int = 0) -> LatencyTrace:
    """Return single turns of which 10 % are ten times longer than the rest."""
    random = Random(seed)

    def one() -> TrajectoryCost:
        scale = 10 if random.random() < 0.1 else 1
        tokens = round(800 * scale * random.uniform(0.8, 1.2))
        return TrajectoryCost(prompt_tokens=200, turns=(TurnCost(tokens=tokens, step_s=0.05),))

    return LatencyTrace(name="bimodal", trajectories=tuple(one() for _ in range(TRAJECTORIES)))


def agentic(seed: int = 0) -> LatencyTrace:
    """Return many turns with tools: lognormal lengths and latencies, 2 % of steps straggle."""
    random = Random(seed)

    def step_s() -> float:
        usual = math.exp(random.gauss(math.log(2.0), 0.8))
        return min(280.0, usual * (20 if random.random() < 0.02 else 1))

    def one() -> TrajectoryCost:
        turns = min(30, max(1, round(math.exp(random.gauss(math.log(6), 0.6)))))
        return TrajectoryCost(
            prompt_tokens=1000,
            reset_s=math.exp(random.gauss(math.log(3.0), 0.7)),
            turns=tuple(
                TurnCost(
                    tokens=min(4096, max(16, round(250 * math.exp(random.gauss(0, 0.8))))),
                    step_s=step_s(),
                    reply_tokens=random.randint(20, 400),
                )
                for _ in range(turns)
            ),
        )

    return LatencyTrace(name="agentic", trajectories=tuple(one() for _ in range(TRAJECTORIES)))


TRACES: Mapping[str, Callable[[], LatencyTrace]] = {
    "lognormal": lognormal,
    "bimodal": bimodal,
    "agentic": agentic,
}


def synthetic(name: str) -> LatencyTrace:
    """Return a made-up trace by name. `ConfigError` names those there are."""
    if name not in TRACES:
        raise ConfigError(f"there is no trace {name!r}; name a file, or one of {', '.join(TRACES)}")
    return TRACES[name]()
