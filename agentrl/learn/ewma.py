"""Moving averages of the weights: for evaluation, and as the proximal policy (PPO-EWMA)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import Module

from agentrl.learn.logprob_scorer import LogprobScorer
from agentrl.learn.micro_batch import CreditedSample
from agentrl.learn.proximal import ProximalWeights
from agentrl.learn.swap import swap_weights, trainable_parameters


class WeightEma:
    """Owns the average of what an optimiser moves, in float32. It begins at the first weights.

    Source: Polyak and Juditsky 1992, in its exponential form:
    average = decay x average + (1 - decay) x weights, after every update.
    """

    def __init__(self, weights: Mapping[str, Tensor], *, decay: float) -> None:
        self._decay = decay
        self._values = {name: value.detach().clone() for name, value in weights.items()}

    def update(self, weights: Mapping[str, Tensor]) -> None:
        """Take in the weights after an update."""
        with torch.no_grad():
            for name, value in self._values.items():
                value.lerp_(weights[name], 1 - self._decay)

    def state(self) -> dict[str, Tensor]:
        """Return the average by parameter name; no copies."""
        return dict(self._values)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` returned."""
        for name, value in self._values.items():
            value.copy_(state[name])


@dataclass(slots=True, eq=False)
class EwmaAverage:
    """Sum of beta^age x weights over the sum of beta^age: bias-corrected, so that the first weights
    count no more than they should.

    Source: Hilton et al. 2021 (PPO-EWMA, arXiv 2110.00641). In float32, whatever the model is in:
    in bfloat16 most shares of the newest weights would be lost.
    """

    weights: dict[str, Tensor]
    total: float = 1.0

    @classmethod
    def from_model(cls, model: Module, *, on_cpu: bool = False) -> "EwmaAverage":
        """Return the average that begins with a model's weights."""
        return cls(
            {
                name: torch.empty_like(
                    p, dtype=torch.float32, device="cpu" if on_cpu else p.device
                ).copy_(p.detach())
                for name, p in trainable_parameters(model).items()
            }
        )

    def update(self, model: Module, *, beta: float) -> None:
        """Let the model's weights count once, and all before them `beta` times as much.

        A `beta` of 0 begins anew.
        """
        before, self.total = self.total, beta * self.total + 1
        with torch.no_grad():
            for name, parameter in trainable_parameters(model).items():
                mean = self.weights[name]
                new = parameter.detach().to(device=mean.device, dtype=mean.dtype)
                mean.mul_(beta * before / self.total).add_(new, alpha=1 / self.total)


class _Averaged(ProximalWeights):
    name = "ewma"

    def __init__(self, evidence: LogprobScorer, *, on_cpu: bool) -> None:
        self._evidence = evidence
        self._on_cpu = on_cpu
        self.average = EwmaAverage.from_model(evidence.model, on_cpu=on_cpu)

    def score_rows(self, rows: Sequence[CreditedSample]) -> list[CreditedSample]:
        with swap_weights(self._evidence.model, self.average.weights):
            samples = self._evidence.score_proximal([row.sample for row in rows])
        return [replace(row, sample=s) for row, s in zip(rows, samples, strict=True)]

    def state(self) -> dict[str, Tensor]:
        total = torch.tensor(self.average.total, dtype=torch.float64)
        weights = {f"weights.{name}": value for name, value in self.average.weights.items()}
        return weights | {"total": total}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        if not state:
            self.average = EwmaAverage.from_model(self._evidence.model, on_cpu=self._on_cpu)
            return
        self.average.total = state["total"].item()
        for name, value in self.average.weights.items():
            value.copy_(state[f"weights.{name}"])


class StepAverage(_Averaged):
    """PPO-EWMA: over optimiser steps, each of which is scored with the average before it."""

    def __init__(self, evidence: LogprobScorer, *, beta: float, on_cpu: bool = False) -> None:
        super().__init__(evidence, on_cpu=on_cpu)
        self._beta = beta

    def score_update(self, rows: Sequence[CreditedSample]) -> list[CreditedSample]:
        return self.score_rows(rows)

    def on_update(self) -> None:
        self.average.update(self._evidence.model, beta=self._beta)


class VersionAverage(_Averaged):
    """The revised PPO-EWMA: over versions, so that the average's mean age is the middle of the
    window; begun anew where too many tokens are clipped or masked.

    Source: "Missing Old Logits in Asynchronous Agentic RL" (arXiv 2605.12070).
    """

    def __init__(
        self,
        evidence: LogprobScorer,
        *,
        window_versions: int,
        reset_below: float,
        on_cpu: bool = False,
    ) -> None:
        super().__init__(evidence, on_cpu=on_cpu)
        self._beta = beta_of(window_versions)
        self._reset_below = reset_below

    def score_batch(self, rows: Sequence[CreditedSample], *, version: int) -> list[CreditedSample]:
        return self.score_rows(rows)

    def on_step(self, *, active_fraction: float) -> Mapping[str, float]:
        begins_anew = active_fraction < self._reset_below
        self.average.update(self._evidence.model, beta=0.0 if begins_anew else self._beta)
        return {"proximal/reset": float(begins_anew)}


def beta_of(window_versions: int) -> float:
    """Return W / (W + 2), with which the mean age beta / (1 - beta) is half the window."""
    return window_versions / (window_versions + 2)
