"""pass@k, the chance that one of k attempts at a task passes, and pass^k, that all k do."""

import math

from agentrl.errors import ConfigError


def pass_at_k(passed: int, *, samples: int, k: int) -> float:
    """Return the unbiased estimate of pass@k from `passed` passes among `samples` attempts.

    It is 1 - C(samples - passed, k) / C(samples, k): the share of all ways to pick k of the
    attempts that contain a pass (Chen et al. 2021, "Evaluating Large Language Models Trained on
    Code"). The plug-in 1 - (1 - passed / samples)**k is too small on average. Raises `ConfigError`
    for k > samples: then no unbiased estimate exists.
    """
    _check(passed, samples=samples, k=k)
    # Factor by factor, because the binomials themselves overflow a float. With fewer than k
    # failures one factor is 0.
    failures = samples - passed
    return 1 - math.prod((failures - i) / (samples - i) for i in range(k))


def pass_hat_k(passed: int, *, samples: int, k: int) -> float:
    """Return the unbiased estimate of pass^k from `passed` passes among `samples` attempts.

    It is C(passed, k) / C(samples, k): the share of all ways to pick k of the attempts in which
    every one passes (Yao et al. 2024, "tau-bench"). The plug-in (passed / samples)**k is too large
    on average. Raises `ConfigError` for k > samples.
    """
    _check(passed, samples=samples, k=k)
    return math.prod((passed - i) / (samples - i) for i in range(k)) if passed >= k else 0.0


def _check(passed: int, *, samples: int, k: int) -> None:
    if not 1 <= k <= samples:
        raise ConfigError(
            f"pass@{k} of {samples} samples per task: k must be within [1, {samples}]; lower "
            "evaluate.k or raise evaluate.samples_per_task"
        )
    if not 0 <= passed <= samples:
        raise ValueError(f"{passed} of {samples} samples passed; count each sample once")
