"""Supervised training on demonstrations: RL teaches nothing to a policy that never succeeds."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.config.learn import LearnSection
from agentrl.config.run import UNTIL_STEPS, WarmstartSection
from agentrl.errors import CancelledRollout, LearnError
from agentrl.learn.aggregate import LossDenominators, aggregate
from agentrl.learn.layouts import LAYOUTS
from agentrl.learn.layouts.probe import check_layout
from agentrl.learn.sequence_layout import MaskedTokens, SequenceLayout
from agentrl.learn.token_logprobs import head_is_plain, score
from agentrl.learn.warmstart_file import WarmstartFile, WarmstartPosition, fingerprint
from agentrl.message import ImageSpan
from agentrl.models.folders import recompute_layers, restore_layers
from agentrl.models.out_of_memory import explain_out_of_memory
from agentrl.models.precision import MasterWeight, open_masters
from agentrl.models.vision.encoder_cache import EncoderCache
from agentrl.models.vision.processor import ImageProcessor
from agentrl.runtime.seeds import derive

BETAS = (0.9, 0.98)
"""A short memory of squared gradients: a warm start is a few hundred steps long."""
DECAY_FRACTION = 0.3
"""The learning rate falls over this last part of the steps."""

WAY_OUT = (
    "Lower learn.micro_batch_tokens, set learn.gradient_checkpointing or learn.precision: "
    "bfloat16, or use a smaller model."
)

OnStep = Callable[[int, float, int], None]
"""Called after each step with its number (from 1), its loss in nats per token, and its tokens."""


@dataclass(frozen=True, slots=True)
class TokenizedDemonstration:
    """One conversation as tokens; the policy learns to say what is under the mask."""

    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    images: tuple[ImageSpan, ...] = ()

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.mask):
            raise ValueError(
                f"a demonstration has {len(self.token_ids)} tokens but a mask of {len(self.mask)}; "
                "the two must have the same length"
            )
        if not any(self.mask) or self.mask[0]:
            raise ValueError(
                "a demonstration needs a prompt and something to train on after it, but its mask "
                f"has {sum(self.mask)} tokens and "
                f"{'begins' if any(self.mask) else 'does not begin'} with the first one"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmstartSummary:
    """Result of a warm start."""

    steps: int
    trained_tokens: int
    first_loss: float
    last_loss: float
    """Mean over the last tenth of the steps, or with `until_loss` over those it is compared with;
    in nats per token."""
    reached: bool | None = None
    """True if the loss came down to `until_loss`; None where there is none."""


def warmstart(
    model: PreTrainedModel,
    demonstrations: Sequence[TokenizedDemonstration],
    section: WarmstartSection,
    *,
    seed: int,
    learn: LearnSection | None = None,
    on_start: Callable[[int], None] = lambda done: None,
    on_step: OnStep = lambda step, loss, tokens: None,
    images: ImageProcessor | None = None,
    file: Path | None = None,
) -> WarmstartSummary:
    """Train `model` in place on the tokens under the masks; the same result for the same seed.

    AdamW with linear warm-up, a constant rate, and a linear fall over the last 30 % of the steps
    to `final_learning_rate_fraction`. The loss is a mean over all trained tokens of a step,
    however they are split. With `until_loss` it ends before the last step where the loss came down
    to that, at whatever rate it had. `learn` (by default as it is by itself) has the precision,
    the tokens of a pass, and whether layers are recomputed; in the end the model has its own type
    again.

    `on_start` is told how many steps were done before. A `CancelledRollout` of `on_step` interrupts
    it: with a `file`, which is written then and about once a minute, the same call later goes on
    there, with the same result.

    Raises `LearnError` if a gradient is not finite, or `file` is damaged.
    """
    if not demonstrations:
        raise LearnError(
            "there are no demonstrations for the warm start; check warmstart.demonstrations and "
            "warmstart.recordings, or remove the warmstart section"
        )
    rows = [
        MaskedTokens(np.asarray(d.token_ids, np.int64), np.asarray(d.mask, bool), d.images)
        for d in demonstrations
    ]
    learn = learn or LearnSection()
    cache = None if images is None else EncoderCache(images)
    layout = LAYOUTS[section.layout](learn.micro_batch_tokens, cache)
    with (
        explain_out_of_memory(LearnError, "the warm start", WAY_OUT),
        restore_layers(model),
        open_masters(model.eval(), learn.precision) as masters,
    ):
        if learn.gradient_checkpointing:
            recompute_layers(model)
        check_layout(model, layout, way_out="warmstart.layout: padded")
        supervised = _Supervised(model, masters, section, layout)
        saved = before = None
        if file is not None:
            made_of = fingerprint(rows, section, learn, seed=seed, weights=supervised.weights)
            saved = WarmstartFile(path=file, fingerprint=made_of)
            before = saved.read(supervised.load_state)
        losses = [] if before is None else [*before.losses]
        trained = 0 if before is None else before.trained_tokens
        steps_before = len(losses)
        on_start(steps_before)
        for step, indices in enumerate(_choices(len(rows), section, seed=seed), start=1):
            if step <= steps_before:
                continue
            if _has_learnt(losses, section.until_loss):
                break
            with nullcontext() if cache is None else cache.batch():
                loss, tokens = supervised.step(step, [rows[i] for i in indices])
            losses.append(loss)
            trained += tokens
            interrupted = False
            try:
                on_step(step, loss, tokens)
            except CancelledRollout:
                interrupted = True
                raise
            finally:
                if saved is not None and (interrupted or saved.is_due):
                    position = WarmstartPosition(losses=losses, trained_tokens=trained)
                    saved.write(position, supervised.state())
        supervised.check_weights()
    has_target = section.until_loss is not None
    last = losses[-(UNTIL_STEPS if has_target else math.ceil(len(losses) / 10)) :]
    return WarmstartSummary(
        steps=len(losses),
        trained_tokens=trained,
        first_loss=losses[0],
        last_loss=sum(last) / len(last),
        reached=_has_learnt(losses, section.until_loss) if has_target else None,
    )


def _has_learnt(losses: Sequence[float], until_loss: float | None) -> bool:
    last = losses[-UNTIL_STEPS:]
    if until_loss is None or len(last) < UNTIL_STEPS:
        return False
    return sum(last) / UNTIL_STEPS <= until_loss


def learning_rate(step: int, section: WarmstartSection) -> float:
    """Return the rate of the `step`-th step, counted from 1."""
    rate = section.learning_rate
    if step <= section.warmup_steps:
        return rate * step / section.warmup_steps
    decay_steps = section.steps * DECAY_FRACTION
    fraction = (section.steps - step) / decay_steps
    final = section.final_learning_rate_fraction
    return rate * (final + (1 - final) * min(1.0, fraction))


class _Supervised:
    def __init__(
        self,
        model: PreTrainedModel,
        masters: Sequence[MasterWeight],
        section: WarmstartSection,
        layout: SequenceLayout,
    ) -> None:
        self._model = model
        self._section = section
        self._layout = layout
        self._head_at_positions = head_is_plain(model)
        self._masters = masters
        self.weights = [master.weight for master in masters]
        self._adamw = torch.optim.AdamW(
            self.weights,
            lr=section.learning_rate,
            betas=BETAS,
            weight_decay=section.weight_decay,
            fused=True,
        )

    def step(self, step: int, rows: Sequence[MaskedTokens]) -> tuple[float, int]:
        counts = LossDenominators.from_token_counts(int(row.mask.sum()) for row in rows)
        total = torch.zeros((), device=self._model.device)
        for indices in self._layout.plan(rows):
            loss = self._loss([rows[i] for i in indices], counts)
            loss.backward()
            total += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(self.weights, self._section.max_grad_norm)
        if not norm.isfinite():
            raise LearnError(
                f"the gradient norm of warm-start step {step} is {float(norm)}; "
                f"lower warmstart.learning_rate={self._section.learning_rate}"
            )
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate(step, self._section)
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)
        for master in self._masters:
            master.publish()
        return float(total), counts.tokens

    def state(self) -> dict[str, Tensor]:
        """Return the weights and the optimiser's state as `<kind>.<number>`; no copies."""
        tensors: dict[str, Tensor] = {}
        for number, weight in enumerate(self.weights):
            parts = {"weight": weight.detach(), **self._adamw.state[weight]}
            tensors |= {f"{kind}.{number}": tensor for kind, tensor in parts.items()}
        return tensors

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `state` returned."""
        for number, (master, weight) in enumerate(zip(self._masters, self.weights, strict=True)):
            with torch.no_grad():
                weight.copy_(tensors[f"weight.{number}"])
            master.publish()
            self._adamw.state[weight] = {
                kind: tensors[f"{kind}.{number}"].to(weight.device)
                for kind in ("step", "exp_avg", "exp_avg_sq")
            }

    def check_weights(self) -> None:
        """Raise `LearnError` if a weight is not finite: no gradient tells of the last update."""
        if not all(bool(weight.isfinite().all()) for weight in self.weights):
            raise LearnError(
                "the last update of the warm start made weights that are not finite; lower "
                f"warmstart.learning_rate={self._section.learning_rate}"
            )

    def _loss(self, rows: Sequence[MaskedTokens], counts: LossDenominators) -> Tensor:
        tokens = self._layout.tokens(rows, device=self._model.device)
        scores = score(
            self._model, tokens, temperature=1.0, head_at_positions=self._head_at_positions
        )
        return aggregate(-scores.logprobs, tokens.mask, how="token-mean", counts=counts)


def _choices(rows: int, section: WarmstartSection, *, seed: int) -> Iterator[ndarray]:
    """Yield the rows of each step: every row once before any comes again."""
    order = np.empty(0, dtype=np.int64)
    epoch = 0
    for _ in range(section.steps):
        while len(order) < min(section.batch_size, rows):
            shuffled = np.random.default_rng(derive(seed, "warmstart", epoch)).permutation(rows)
            order = np.concatenate([order, shuffled])
            epoch += 1
        take = min(section.batch_size, rows)
        yield order[:take]
        order = order[take:]
