"""NudgeRL's advantage: within a strategy that the prompt suggested, and among strategies."""

from collections.abc import Sequence

import numpy as np

from agentrl.config.learning.advantage import NudgeAdvantage
from agentrl.errors import LearnError
from agentrl.learn.advantage import TokenAdvantages, spread_over_tokens
from agentrl.learn.method import LearnMethod, bind_knobs
from agentrl.learn.sample import TrainingGroup, TrainingSample

STRATEGY = "strategy"
"""The reward component with the number of the strategy that the prompt suggested, 0 for none."""


def compare_strategies(
    rewards: Sequence[float],
    strategies: Sequence[int],
    *,
    between: float = 1.1,
    epsilon: float = 1e-5,
) -> tuple[float, ...]:
    """Return a less its mean over its population deviation + epsilon, over a task's trajectories.

    With o the mean of all rewards and g that of the same strategy, a = r - o without a strategy,
    and a = (r - g) + between (g - o) with one. Equal a give exactly zero.
    Source: tally0818/NudgeRL (arXiv 2605.15726); `between` is 1.1 in its configs, 0.1 in its class.
    """
    values, groups = np.asarray(rewards, dtype=np.float64), np.asarray(strategies)
    if not len(values) or values.max() == values.min():
        return (0.0,) * len(values)
    overall = values.mean()
    raw = values - overall
    for strategy in {*groups.tolist()} - {0}:
        members = groups == strategy
        mean = values[members].mean()
        raw[members] = values[members] - mean + between * (mean - overall)
    if raw.max() - raw.min() < 1e-12 * max(1.0, abs(values).max()):
        return (0.0,) * len(values)
    return tuple(float(a) for a in (raw - raw.mean()) / (raw.std() + epsilon))


def nudge(
    groups: Sequence[TrainingGroup], *, between: float = 1.1, epsilon: float = 1e-5
) -> TokenAdvantages:
    """Return `compare_strategies` of each group, by the reward component `strategy`.

    Training sees the prompt with the strategy, as sampling did. NudgeRL's second term, which trains
    the same tokens after the bare prompt, is `hint.distill`.
    """
    return [
        advantages
        for group in groups
        for advantages in spread_over_tokens(
            group,
            compare_strategies(
                group.rewards,
                read_strategies(group),
                between=between,
                epsilon=epsilon,
            ),
        )
    ]


def read_strategies(group: TrainingGroup) -> list[int]:
    """Return the number of the strategy that each trajectory's prompt suggested, 0 for none.

    A trajectory that was cut in its first turn has reported none: its prompt tells. A prompt that
    nobody reported is a strategy of its own.
    """
    prompts = [_find_prompt(sample) for sample in group.samples]
    numbers: dict[bytes, int] = {}
    for sample, prompt in zip(group.samples, prompts, strict=True):
        if (number := sample.components.get(STRATEGY)) is None:
            continue
        if not float(number).is_integer() or number < 0:
            raise LearnError(
                f"task {sample.task_id!r} sample {sample.sample}: the reward component {STRATEGY} "
                f"is {number}, but it is the number of a strategy, from 1, or 0 for none; fix the "
                "environment"
            )
        if numbers.setdefault(prompt, int(number)) != number:
            raise LearnError(
                f"task {sample.task_id!r} sample {sample.sample}: the reward component {STRATEGY} "
                f"is {number}, but another trajectory with the same prompt has {numbers[prompt]}; "
                "fix the environment"
            )
    highest = max(numbers.values(), default=0)
    for prompt in prompts:
        if prompt not in numbers:
            highest += 1
            numbers[prompt] = highest
    return [numbers[prompt] for prompt in prompts]


def _find_prompt(sample: TrainingSample) -> bytes:
    spoken = np.flatnonzero(sample.sampled)
    return sample.token_ids[: spoken[0] if len(spoken) else None].tobytes()


METHOD = LearnMethod(
    NudgeAdvantage, bind_knobs(nudge), "after NudgeRL, arXiv 2605.15726; tally0818/NudgeRL"
)
