"""The trainer's weights with what they say of fixed tokens, for engines to be held to."""

import math
import random
from collections.abc import Mapping

from torch import Tensor

from agentrl.config.run import ProbeSection
from agentrl.errors import LearnError
from agentrl.learn.trainer import PolicyTrainer
from agentrl.weight_sync.check import CheckedWeights, WeightCheck

SEED = 20_231
"""Seed of the tokens, which are the same in every run, whatever its seed."""


def probe_tokens(count: int, *, vocabulary: int) -> tuple[int, ...]:
    """Return so many token ids, spread over the vocabulary: no text, so that all of the weights
    have a say, and none is sure of itself."""
    rng = random.Random(SEED)
    return tuple(rng.randrange(vocabulary) for _ in range(count))


def add_proof(
    trainer: PolicyTrainer, section: ProbeSection, *, max_gap: float
) -> Mapping[str, Tensor]:
    """Return the trainer's current weights with their proof, which costs one forward pass.

    Raises `LearnError` for weights that say nothing finite.
    """
    vocabulary = trainer.model.config.get_text_config().vocab_size
    tokens = probe_tokens(section.tokens + 1, vocabulary=vocabulary)
    logprobs = trainer.logprobs(tokens)
    if not all(map(math.isfinite, logprobs)):
        raise LearnError(
            f"version {trainer.version} of the weights gives the probe's tokens log-probs "
            f"{logprobs}, which are not all finite; the policy has diverged: lower "
            "learn.optimizer.learning_rate, and resume from the last checkpoint"
        )
    proof = WeightCheck(
        token_ids=tokens,
        logprobs=logprobs,
        max_gap=max_gap,
        deadline_s=section.deadline_s,
    )
    return CheckedWeights(trainer.weights(), proof)
