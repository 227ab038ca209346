"""New weights for one engine: taken, proven, or taken back."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from agentrl.engine.remote.shared_weights import SharedWeights
from agentrl.errors import EngineError, EngineLost, WeightsUnproven
from agentrl.policy import ScoringEngine
from agentrl.weight_sync.check import Verdict, WeightCheck, complaint, next_move

WeightLoad = Callable[[Path | SharedWeights, int], Awaitable[None]]
"""Function that loads weights of a version into an engine."""
_numbers = count(1)


@dataclass(frozen=True, slots=True, eq=False)
class VersionedWeights:
    """Weights, where they are, and their version."""

    weights: Path | SharedWeights
    version: int

    @property
    def proof(self) -> WeightCheck | None:
        """Log-probs of fixed tokens under the weights, if they are known."""
        return self.weights.proof if isinstance(self.weights, SharedWeights) else None


async def load_checked(
    engine: ScoringEngine,
    load: WeightLoad,
    new: VersionedWeights,
    good: VersionedWeights | None,
    *,
    name: str,
    went_back: Callable[[], None],
) -> None:
    """Load weights into an engine, and have it prove that it has them, if they have a proof.

    `name` is that of the server in errors. An engine that computes something else is given the last
    good ones, which `went_back` hears of, and the new ones are tried once more. Raises
    `WeightsUnproven` where that does not help either, and at once for one that fails or is late:
    then it is to be replaced, whatever it has. Raises `EngineLost` for one that is gone, else as
    `load` and `score` do.
    """
    proof = new.proof
    if proof is None:
        await load(new.weights, new.version)
        return
    for tries in count(1):
        verdict, why = await _try_weights(engine, load, new, proof, deadline_s=proof.deadline_s)
        move = next_move(verdict, tries=tries)
        if move == "keep":
            return
        unproven = f"the engine in {name} did not load version {new.version} of the weights"
        if move == "replace":
            raise WeightsUnproven(f"{unproven}, after {tries} tries: {why}")
        if good is not None:
            went_back()
            verdict, again = await _try_weights(
                engine, load, good, good.proof, deadline_s=proof.deadline_s
            )
            if verdict != "proven":
                raise WeightsUnproven(
                    f"{unproven}: {why}; it cannot return to version {good.version} either: {again}"
                )


async def _try_weights(
    engine: ScoringEngine,
    load: WeightLoad,
    given: VersionedWeights,
    proof: WeightCheck | None,
    *,
    deadline_s: float,
) -> tuple[Verdict, str]:
    doing = "loading"
    try:
        async with asyncio.timeout(deadline_s):
            await load(given.weights, given.version)
        if proof is None:
            return "proven", ""
        doing = f"scoring {len(proof.logprobs)} tokens"
        async with asyncio.timeout(deadline_s):
            scores = await engine.score(proof.request(f"proof/{next(_numbers)}"))
    except TimeoutError:
        return "broken", f"{doing} took longer than {deadline_s:g} s (engine.probe.deadline_s)"
    except EngineLost:
        raise
    except EngineError as error:
        return "broken", f"{doing} failed: {error}"
    why = complaint(proof, scores, version=given.version)
    return ("proven", "") if why is None else ("wrong", why)
