"""DAPO's soft overlong punishment: the last tokens before the limit cost reward."""

from typing import Literal

from agentrl.config.learning.shaping import OverlongShaping
from agentrl.learn.method import LearnMethod, bind_knobs
from agentrl.learn.sample import TrainingSample


def overlong(
    sample: TrainingSample,
    *,
    limit_tokens: int = 20480,
    buffer_tokens: int = 4096,
    penalty: float = 1.0,
    counts: Literal["sampled", "context"] = "sampled",
) -> float:
    """Return the reward less what its length costs.

    That is 0 up to limit - buffer tokens, rises evenly to `penalty` at the limit, and stays there.
    Sampled tokens count whether they are young enough to train or not.
    Source: Yu et al. 2025 (arXiv 2503.14476), equation 13.
    """
    length = int(sample.sampled.sum()) if counts == "sampled" else len(sample.token_ids)
    over = (length - (limit_tokens - buffer_tokens)) / buffer_tokens
    return sample.reward - penalty * min(1.0, max(0.0, over))


METHOD = LearnMethod(OverlongShaping, bind_knobs(overlong), "Yu et al. 2025, arXiv 2503.14476")
