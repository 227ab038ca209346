"""The value probe: a ridge regression that reads rewards off the policy's hidden states.

Unlike the critic's head it is not trained by gradient, reads an inner layer, and values whole
trajectories.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy import ndarray
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentrl.config.learn import LearnSection
from agentrl.config.learning.advantage import PoiseAdvantage
from agentrl.errors import ConfigError
from agentrl.learn.advantages.poise import cross_predictions, cross_rewards
from agentrl.learn.contexts import contexts
from agentrl.learn.sample import TrainingGroup, TrainingSample, entropies_of
from agentrl.learn.sequence_layout import MaskedTokens, SequenceLayout
from agentrl.learn.token_logprobs import decoder, hidden_states
from agentrl.models.devices import computing_device

DEPTH = 0.6
"""Part of the model's depth at which hidden states are read by default; the paper reads layer 19 of
36 and of 28."""
PENALTIES = tuple(10.0**power for power in range(-2, 6))
"""Penalties to choose from, in ascending order. 0.01 is the paper's, which has thousands of
trajectories per fit; the largest leaves little but the mean of the targets."""


@dataclass(frozen=True, slots=True, eq=False)
class RidgeRegression:
    """Linear predictions from standardised features, one for each of several penalties, cut to the
    range of the targets."""

    centre: Float[ndarray, " features"]
    scale: Float[ndarray, " features"]
    """Standard deviations; 1 where a feature is constant."""
    weights: Float[ndarray, "features penalties"]
    intercept: float
    low: float
    high: float

    @classmethod
    def fit(
        cls,
        features: Float[ndarray, "pairs features"],
        targets: Float[ndarray, " pairs"],
        penalties: Sequence[float],
    ) -> "RidgeRegression":
        """Return the w that minimise |y - Xw|^2 + penalty |w|^2 over centred targets."""
        centre, spread = features.mean(axis=0), features.std(axis=0)
        scale = np.where(spread > 0, spread, 1.0)
        intercept = float(targets.mean())
        u, s, v = np.linalg.svd((features - centre) / scale, full_matrices=False)
        along = s * (u.T @ (targets - intercept))
        weights = v.T @ (along[:, None] / (s[:, None] ** 2 + np.asarray(penalties)))
        return cls(centre, scale, weights, intercept, float(targets.min()), float(targets.max()))

    def predict(self, features: Float[ndarray, "*_ features"]) -> Float[ndarray, "*_ penalties"]:
        """Return the predictions for one trajectory, or for several."""
        values = ((features - self.centre) / self.scale) @ self.weights + self.intercept
        return np.clip(values, self.low, self.high)


class ValueProbe:
    """Owns the regression and the features and targets of the latest steps it is fitted to.

    Features of a trajectory: the mean hidden state of one layer over the last tokens of the prompt,
    the same over the last sampled tokens, and mean, maximum and deviation of its tokens' entropies.
    Before the first fit the baseline is the mean reward of the batch's other trajectories. That of
    a trajectory without another in its group is the mean reward of the latest steps. Without a
    fixed penalty, that of `PENALTIES` is taken which predicted the latest steps best before it was
    fitted to them. Source: POISE (arXiv 2605.07579), whose three entropy statistics are not
    published.
    """

    name = "value_probe"

    def __init__(self, model: PreTrainedModel, section: PoiseAdvantage) -> None:
        self._model = model
        self._layer = find_layer(model, section.layer)
        self._tokens = section.tokens
        self._penalties = PENALTIES if section.penalty is None else (section.penalty,)
        self._steps: deque[tuple[ndarray, ndarray]] = deque(maxlen=section.buffer_steps)
        """Features and targets of each of the latest steps."""
        self._errors: deque[ndarray] = deque(maxlen=section.buffer_steps)
        """Mean squared error of each penalty's predictions for the targets of the latest steps,
        which they were not fitted to."""
        self._regression: RidgeRegression | None = None
        self._latest: tuple[ndarray, ndarray] | None = None

    def add_baselines(
        self, groups: Sequence[TrainingGroup], layout: SequenceLayout
    ) -> tuple[TrainingGroup, ...]:
        """Return the groups, each sample with its baseline; their features wait for `fit`.

        It takes one forward pass without the language-model head.
        """
        samples = [sample for group in groups for sample in group.samples]
        features = self._read(samples, layout)
        if self._regression is None:
            baselines = cross_rewards([sample.reward for sample in samples])
        else:
            baselines = self._cross(groups, features)
        targets = [target for group in groups for target in cross_rewards(group.rewards)]
        pairs = [
            (x, y)
            for x, y in zip(features, targets, strict=True)
            if x is not None and y is not None
        ]
        self._latest = (
            (np.stack([x for x, _ in pairs]), np.array([y for _, y in pairs])) if pairs else None
        )
        rest = iter(baselines)
        return tuple(
            replace(
                group,
                samples=tuple(replace(s, baseline=next(rest) or 0.0) for s in group.samples),
            )
            for group in groups
        )

    def fit(self) -> None:
        """Fit the regression to the latest steps and the batch that got baselines last."""
        if self._latest is None:
            return
        vectors, targets = self._latest
        if self._regression is not None:
            apart = self._regression.predict(vectors) - targets[:, None]
            self._errors.append((apart**2).mean(axis=0))
        self._steps.append(self._latest)
        self._latest = None
        vectors, targets = (np.concatenate(each) for each in zip(*self._steps, strict=True))
        self._regression = RidgeRegression.fit(vectors.astype(np.float64), targets, self._penalties)

    @property
    def penalty(self) -> float:
        """Penalty with the least error of late; the largest before there is any."""
        return self._penalties[self._choice]

    @property
    def _choice(self) -> int:
        if not self._errors:
            return len(self._penalties) - 1
        return int(np.argmin(np.mean(self._errors, axis=0)))

    def state(self) -> dict[str, Tensor]:
        """Return the latest steps and the regression, by name; no regression before a fit."""
        state = {"steps": torch.tensor(len(self._steps))}
        if self._regression is None:
            return state
        for step, (features, targets) in enumerate(self._steps):
            state[f"features.{step}"] = torch.from_numpy(features)
            state[f"targets.{step}"] = torch.from_numpy(targets)
        if self._errors:
            state["errors"] = torch.from_numpy(np.stack(self._errors))
        regression = self._regression
        for name in ("centre", "scale", "weights"):
            state[name] = torch.from_numpy(getattr(regression, name))
        numbers = (regression.intercept, regression.low, regression.high)
        return state | {"numbers": torch.tensor(numbers, dtype=torch.float64)}

    def check_state(self, state: Mapping[str, Tensor]) -> None:
        """Raise `ConfigError` for the state of a regression of another shape."""
        width = 2 * self._model.config.get_text_config().hidden_size + 3
        shape = [width, len(self._penalties)]
        if "weights" in state and list(state["weights"].shape) != shape:
            raise ConfigError(
                f"the regression of learn.advantage poise has {shape} features and penalties, but "
                f"the saved one has {list(state['weights'].shape)}; resume with the run's original "
                "learn.advantage.penalty and policy"
            )

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` returned."""
        self._steps.clear()
        self._errors.clear()
        self._latest = self._regression = None
        if "weights" not in state:
            return
        for step in range(int(state["steps"])):
            pair = (state[f"features.{step}"].numpy(), state[f"targets.{step}"].numpy())
            self._steps.append(pair)
        if "errors" in state:
            self._errors.extend(state["errors"].numpy())
        centre, scale, weights = (state[n].numpy() for n in ("centre", "scale", "weights"))
        intercept, low, high = state["numbers"].tolist()
        self._regression = RidgeRegression(centre, scale, weights, intercept, low, high)

    def _cross(
        self, groups: Sequence[TrainingGroup], features: Sequence[ndarray | None]
    ) -> list[float]:
        regression, choice, rest = self._regression, self._choice, iter(features)
        assert regression is not None
        alone = float(np.concatenate([targets for _, targets in self._steps]).mean())
        baselines: list[float] = []
        for group in groups:
            vectors = [next(rest) for _ in group.samples]
            predictions = [
                None if x is None else float(regression.predict(x)[choice]) for x in vectors
            ]
            baselines += cross_predictions(predictions, alone=alone)
        return baselines

    def _read(
        self, samples: Sequence[TrainingSample], layout: SequenceLayout
    ) -> list[Float[ndarray, " features"] | None]:
        """Return the features of each sample; None where the policy sampled nothing that trains."""
        features: list[ndarray | None] = [None] * len(samples)
        live = [i for i, sample in enumerate(samples) if sample.sampled_tokens]
        last = [contexts(samples[i])[0].sample for i in live]
        marks = [mark_ends(context.sampled, tokens=self._tokens) for context in last]
        sequences = [
            MaskedTokens(context.token_ids, start | end, context.images)
            for context, (start, end) in zip(last, marks, strict=True)
        ]
        device = computing_device(self._model)
        for indices in layout.plan(sequences):
            tokens = layout.tokens([sequences[i] for i in indices], device=device)
            states = self._read_layer(tokens)[tokens.predictions][tokens.entries].float()
            counts = tokens.mask.sum(dim=1).tolist()
            for index, part in zip(indices, states.split(counts), strict=True):
                marked = sequences[index].mask
                means = [
                    part[torch.from_numpy(mark[marked]).to(part.device)].mean(dim=0).cpu().numpy()
                    for mark in marks[index]
                ]
                sample = samples[live[index]]
                vector = np.concatenate([*means, measure_entropies(sample)])
                features[live[index]] = vector.astype(np.float32)
        return features

    def _read_layer(self, tokens: Any) -> Float[Tensor, "places width"]:
        states: list[Tensor] = []

        def keep(module: nn.Module, arguments: Any, output: Any) -> None:
            states.append(output[0] if isinstance(output, tuple) else output)

        handle = self._layer.register_forward_hook(keep)
        try:
            with torch.no_grad():
                hidden_states(self._model, tokens)
        finally:
            handle.remove()
        return states[0].flatten(0, 1)


def probe_of(model: PreTrainedModel, config: LearnSection) -> ValueProbe | None:
    """Return the value probe of a config, if its advantage needs one."""
    section = config.advantage
    return ValueProbe(model, section) if isinstance(section, PoiseAdvantage) else None


def find_layer(model: PreTrainedModel, number: int | None) -> nn.Module:
    """Return a layer of the decoder, counted from 1; by default the one at `DEPTH`.

    Raises `ConfigError` for a model without such a layer.
    """
    count = int(model.config.get_text_config().num_hidden_layers)
    stacks = (child for child in decoder(model).children() if isinstance(child, nn.ModuleList))
    layers = next((stack for stack in stacks if len(stack) == count), None)
    if layers is None:
        raise ConfigError(
            f"learn.advantage poise reads a layer, but {type(model).__name__} has no list of its "
            f"{count} layers; choose another method, such as rloo"
        )
    if number is not None and number > count:
        raise ConfigError(
            f"learn.advantage.layer is {number}, but the policy has {count} layers; name one of "
            "these, or set it to null"
        )
    return layers[(number or max(1, round(DEPTH * count))) - 1]


def mark_ends(
    sampled: Bool[ndarray, " tokens"], *, tokens: int
) -> tuple[Bool[ndarray, " tokens"], Bool[ndarray, " tokens"]]:
    """Return the tokens that the last ones of the prompt predict, and the last sampled ones.

    A mask marks tokens that are predicted: the state that predicts one is the one before it.
    """
    places = np.flatnonzero(sampled)
    first = int(places[0])
    start, end = np.zeros(len(sampled), dtype=bool), np.zeros(len(sampled), dtype=bool)
    start[max(1, first - tokens + 1) : first + 1] = True
    end[places[-tokens:]] = True
    return start, end


def measure_entropies(sample: TrainingSample) -> Float[ndarray, "3"]:
    """Return mean, maximum and standard deviation of the entropies of the tokens that train."""
    values = entropies_of(sample)[sample.mask]
    return np.array([values.mean(), values.max(), values.std()])


def explain_rewards(groups: Sequence[TrainingGroup]) -> float:
    """Return 1 - var(R - b) / var(R) over all trajectories: 1 for perfect baselines, 0 for no
    better ones than a constant, and where all rewards are equal."""
    samples = [sample for group in groups for sample in group.samples]
    rewards = np.array([sample.reward for sample in samples])
    left = rewards - np.array([sample.baseline or 0.0 for sample in samples])
    spread = float(rewards.var())
    return 1.0 - float(left.var()) / spread if spread else 0.0
