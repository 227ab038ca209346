"""AdamW as a config section describes it, with a state that has names."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.config.learn import AdamWSection
from agentrl.errors import ConfigError, LearnError
from agentrl.learn.dtensor import alike, gather_tensor
from agentrl.learn.quantized_moments import (
    KINDS,
    MOMENTS,
    check_torchao,
    is_quantized,
    join_moment,
    new_optimizer,
    split_moment,
    take_step,
)
from agentrl.learn.schedule import Shape, interpolate, warmup
from agentrl.models.precision import MasterWeight


class AdamW:
    """AdamW over every trainable parameter of a model, with norm clipping.

    Whatever the parameters' type, gradients are collected, and weights kept, in float32, and
    moments in what the section says; with `on_host` all three in the memory of the CPU. The rate
    follows a linear warm-up over updates and a schedule over the `steps` of the run.
    """

    def __init__(
        self,
        model: nn.Module,
        section: AdamWSection,
        *,
        steps: int | None = None,
        on_host: bool = False,
    ) -> None:
        if steps is None and section.decay != "constant":
            raise ConfigError(
                f"learn.optimizer.decay={section.decay} needs the number of steps; give the "
                "trainer the steps of the run, or keep the rate constant"
            )
        parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._masters = {
            name: MasterWeight.for_parameter(parameter, on_host=on_host)
            for name, parameter in parameters.items()
        }
        self._learning_rate = section.learning_rate
        self._warmup_steps = section.warmup_steps
        self._decay: Shape = section.decay
        self._final_fraction = section.final_learning_rate_fraction
        self._steps = steps or 0
        self._max_grad_norm = section.max_grad_norm
        self.updates = 0
        options: dict[str, Any] = {
            "lr": section.learning_rate,
            "betas": section.betas,
            "eps": section.epsilon,
            "weight_decay": section.weight_decay,
        }
        self._in_bytes = section.moments == "8bit"
        quantized = [w for w in self._weights if self._quantizes(w)]
        others = [w for w in self._weights if not self._quantizes(w)]
        self._adamw = torch.optim.AdamW(others, fused=True, **options) if others else None
        self._adamw_8bit = None
        if self._in_bytes:
            check_torchao()
            self._adamw_8bit = new_optimizer(quantized, **options) if quantized else None

    def learning_rate(self, *, step: int = 0) -> float:
        """Return the rate of the next update, at a step of the run counted from 0."""
        warm = warmup(self.updates + 1, steps=self._warmup_steps)
        share = interpolate(
            1.0, self._final_fraction, shape=self._decay, step=step, steps=self._steps
        )
        return self._learning_rate * warm * share

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for weight in self._weights:
            weight.grad = None

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
        rate = self.learning_rate(step=step)
        if self._adamw is not None:
            self._adamw.param_groups[0]["lr"] = rate
            self._adamw.step()
        if self._adamw_8bit is not None:
            take_step(self._adamw_8bit, rate=rate)
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
            parts = {kind: state[key] for kind in KINDS if (key := f"{kind}.{name}") in state}
            self._load_state(master.weight, parts)
            with torch.no_grad():
                if (weight := state.get(f"master.{name}")) is not None:
                    master.weight.copy_(alike(weight, master.weight))
                else:
                    master.take()
        self.updates = updates

    @property
    def _weights(self) -> list[nn.Parameter]:
        return [master.weight for master in self._masters.values()]

    def _quantizes(self, weight: Tensor) -> bool:
        return self._in_bytes and is_quantized(weight)

    def _state(self, weight: nn.Parameter) -> dict[str, Tensor]:
        """Return the state of a weight, which is empty before its first update."""
        owner: Any = self._adamw_8bit if self._quantizes(weight) else self._adamw
        return owner.state[weight]

    def _load_state(self, weight: nn.Parameter, parts: Mapping[str, Tensor]) -> None:
        quantizes = self._quantizes(weight)
        state = self._state(weight)
        state.clear()
        if (step := parts.get("step")) is not None:
            state["step"] = step.to("cpu" if quantizes else weight.device, copy=True)
        for kind in MOMENTS:
            moment = join_moment(kind, parts, weight, quantizes=quantizes)
            if moment is not None:
                state[kind] = moment

    def _states(self, *, masters: bool) -> Iterator[tuple[str, Tensor]]:
        for name, master in self._masters.items():
            for kind, value in self._state(master.weight).items():
                for part, tensor in split_moment(kind, value, master.weight):
                    yield f"{part}.{name}", tensor
            if masters or master.rounds:
                yield f"master.{name}", master.weight.detach()
