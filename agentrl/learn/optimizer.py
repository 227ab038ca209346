"""AdamW as a config section describes it, with a state that has names."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from agentrl.config.learn import AdamWSection
from agentrl.errors import ConfigError, LearnError
from agentrl.learn.dtensor import alike, gather_tensor
from agentrl.learn.schedule import Shape, interpolate, warmup
from agentrl.models.precision import MasterWeight

MOMENTS = ("exp_avg", "exp_avg_sq", "step")


class AdamW:
    """AdamW over every trainable parameter of a model, with norm clipping.

    Whatever the parameters' type, gradients are collected, and moments and weights kept, in
    float32. The rate follows a linear warm-up over updates and a schedule over the `steps` of the
    run.
    """

    def __init__(
        self, model: nn.Module, section: AdamWSection, *, steps: int | None = None
    ) -> None:
        if steps is None and section.decay != "constant":
            raise ConfigError(
                f"learn.optimizer.decay={section.decay} needs the number of steps; give the "
                "trainer the steps of the run, or keep the rate constant"
            )
        parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._masters = {
            name: MasterWeight.for_parameter(parameter) for name, parameter in parameters.items()
        }
        self._learning_rate = section.learning_rate
        self._warmup_steps = section.warmup_steps
        self._decay: Shape = section.decay
        self._final_fraction = section.final_learning_rate_fraction
        self._steps = steps or 0
        self._max_grad_norm = section.max_grad_norm
        self.updates = 0
        self._adamw = torch.optim.AdamW(
            self._weights,
            lr=section.learning_rate,
            betas=section.betas,
            eps=section.epsilon,
            weight_decay=section.weight_decay,
            fused=True,
        )

    def learning_rate(self, *, step: int = 0) -> float:
        """Return the rate of the next update, at a step of the run counted from 0."""
        warm = warmup(self.updates + 1, steps=self._warmup_steps)
        share = interpolate(
            1.0, self._final_fraction, shape=self._decay, step=step, steps=self._steps
        )
        return self._learning_rate * warm * share

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self._adamw.zero_grad(set_to_none=True)

    def update(self, *, step: int = 0) -> Tensor:
        """Clip the gradients, update the weights, forget the gradients; return the norm before.

        Raises `LearnError` and leaves the weights alone if the norm is not finite.
        """
        norm = gather_tensor(torch.nn.utils.clip_grad_norm_(self._weights, self._max_grad_norm))
        if not norm.isfinite():
            self.zero_grad()
            raise LearnError(
                f"the gradient norm of update {self.updates + 1} is {float(norm)}; the weights "
                "were not changed. See engine_gap/max and ratio/clip_fraction of the previous "
                "steps, and lower learn.optimizer.learning_rate"
            )
        for group in self._adamw.param_groups:
            group["lr"] = self.learning_rate(step=step)
        self._adamw.step()
        for master in self._masters.values():
            master.publish()
        self.updates += 1
        self.zero_grad()
        return norm

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Return the optimised parameters by name; gradients are collected there."""
        return {name: master.weight for name, master in self._masters.items()}

    def weights(self) -> dict[str, Tensor]:
        """Return the optimised weights by parameter name, in float32; no copies."""
        return {name: master.weight.detach() for name, master in self._masters.items()}

    def state(self, *, masters: bool = False) -> dict[str, Tensor]:
        """Return the moments and step counts as `exp_avg.<parameter>` and so on, and `master.<...>`
        where the model holds a rounded copy, or of all weights; no copies."""
        return dict(self._states(masters=masters))

    def load_state(self, state: Mapping[str, Tensor], *, updates: int) -> None:
        """Take over what `state` returned; it is copied onto the parameters' devices.

        The model has its own weights already.
        """
        for name, master in self._masters.items():
            moments = {kind: state.get(f"{kind}.{name}") for kind in MOMENTS}
            self._adamw.state[master.weight] = {
                kind: alike(value, master.weight if value.dim() else value).to(
                    master.weight.device, copy=True
                )
                for kind, value in moments.items()
                if value is not None
            }
            if (weight := state.get(f"master.{name}")) is not None:
                with torch.no_grad():
                    master.weight.copy_(alike(weight, master.weight))
        self.updates = updates

    @property
    def _weights(self) -> list[nn.Parameter]:
        return [master.weight for master in self._masters.values()]

    def _states(self, *, masters: bool) -> Iterator[tuple[str, Tensor]]:
        for name, master in self._masters.items():
            for kind, value in self._adamw.state.get(master.weight, {}).items():
                yield f"{kind}.{name}", value
            if masters or master.rounds:
                yield f"master.{name}", master.weight.detach()
