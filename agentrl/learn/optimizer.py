"""AdamW as a config section describes it, with a state that has names."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from agentrl.config.learn import AdamWSection
from agentrl.errors import LearnError

MOMENTS = ("exp_avg", "exp_avg_sq", "step")


class AdamW:
    """AdamW over every trainable parameter of a model, with linear warm-up and norm clipping."""

    def __init__(self, model: nn.Module, section: AdamWSection) -> None:
        self._named = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._warmup_steps = section.warmup_steps
        self._learning_rate = section.learning_rate
        self._max_grad_norm = section.max_grad_norm
        self.updates = 0
        """How often the weights were updated."""
        self._adamw = torch.optim.AdamW(
            self._named.values(),
            lr=section.learning_rate,
            betas=section.betas,
            eps=section.epsilon,
            weight_decay=section.weight_decay,
            fused=True,
        )

    @property
    def learning_rate(self) -> float:
        """Return the rate of the next update."""
        return self._learning_rate * warmup(self.updates + 1, steps=self._warmup_steps)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self._adamw.zero_grad(set_to_none=True)

    def update(self) -> Tensor:
        """Clip the gradients, update the weights, forget the gradients; return the norm before.

        Raises `LearnError` and leaves the weights alone if the norm is not finite.
        """
        norm = torch.nn.utils.clip_grad_norm_(self._named.values(), self._max_grad_norm)
        if not norm.isfinite():
            self.zero_grad()
            raise LearnError(
                f"the gradient norm of update {self.updates + 1} is {float(norm)}; the weights "
                "were left as they are. See engine_gap/max and ratio/clip_fraction of the steps "
                "before, and lower learn.optimizer.learning_rate"
            )
        for group in self._adamw.param_groups:
            group["lr"] = self.learning_rate
        self._adamw.step()
        self.updates += 1
        self.zero_grad()
        return norm

    def state(self) -> dict[str, Tensor]:
        """Return the moments and step counts as `exp_avg.<parameter>` and so on; no copies."""
        return dict(self._states())

    def load_state(self, state: Mapping[str, Tensor], *, updates: int) -> None:
        """Take over what `state` returned; it is copied onto the parameters' devices."""
        for name, parameter in self._named.items():
            kept = {kind: state.get(f"{kind}.{name}") for kind in MOMENTS}
            self._adamw.state[parameter] = {
                kind: value.to(parameter.device, copy=True)
                for kind, value in kept.items()
                if value is not None
            }
        self.updates = updates

    def _states(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self._named.items():
            for kind, value in self._adamw.state.get(parameter, {}).items():
                yield f"{kind}.{name}", value


def warmup(update: int, *, steps: int) -> float:
    """Return the share of the learning rate at the `update`-th update, counted from 1."""
    return min(1.0, update / steps) if steps else 1.0
