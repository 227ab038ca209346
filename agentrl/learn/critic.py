"""The critic: what a context is worth, read off the policy's last hidden states by a small head."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentrl.config.learn import AdamWSection, CriticSection, LearnSection
from agentrl.errors import ConfigError, LearnError
from agentrl.learn import advantages
from agentrl.learn.advantages.gae import ReturnsFunction, returns_of
from agentrl.learn.aggregate import LossDenominators, aggregate
from agentrl.learn.contexts import score_by_context
from agentrl.learn.method import find_needs
from agentrl.learn.micro_batch import MicroBatch, unshift
from agentrl.learn.optimizer import AdamW
from agentrl.learn.ranks import ALONE, TrainerRanks
from agentrl.learn.sample import TrainingGroup, TrainingSample
from agentrl.learn.sequence_layout import MaskedTokens, ModelInputs, SequenceLayout
from agentrl.learn.token_logprobs import decoder, hidden_states
from agentrl.metrics.accumulator import MetricAccumulator
from agentrl.models.devices import computing_device


def critic_of(
    model: PreTrainedModel, config: LearnSection, *, seed: int, ranks: TrainerRanks | None = None
) -> "ValueHead | None":
    """Return the critic of a config, if it has one.

    Raises `ConfigError` if the advantage is made of values and there is none, or the reverse.
    """
    name = config.advantage.name
    needs_values = "values" in find_needs(advantages.METHODS, config.advantage)
    if config.critic is None:
        if needs_values:
            raise ConfigError(
                f"learn.advantage {name} needs the values of a critic, but learn.critic is null; "
                "set learn.critic, for example to {} for its defaults, or choose an advantage "
                "without values"
            )
        return None
    if not needs_values:
        raise ConfigError(
            f"learn.critic is set, but learn.advantage {name} uses no values; remove learn.critic, "
            "or choose gae"
        )
    return ValueHead(
        model, config.critic, returns=returns_of(config.advantage), seed=seed, ranks=ranks
    )


class ValueHead:
    """Owns the head's weights and their optimiser. At first every context is worth 0."""

    def __init__(
        self,
        model: PreTrainedModel,
        section: CriticSection,
        *,
        returns: ReturnsFunction,
        seed: int,
        ranks: TrainerRanks | None = None,
    ) -> None:
        size = model.config.get_text_config().hidden_size
        self._head = _head(size, section.hidden_size, seed=seed).to(computing_device(model))
        self.model = model
        self._ranks = ranks or ALONE
        self._returns = returns
        self._clip = section.clip
        self._coefficient = section.coefficient if section.shared else None
        self.optimizer = AdamW(
            self._head,
            AdamWSection(learning_rate=section.learning_rate, max_grad_norm=section.max_grad_norm),
        )

    def values(
        self, hidden: Float[Tensor, "lines length width"], tokens: ModelInputs
    ) -> Float[Tensor, "rows width2"]:
        """Return the value of the context before every token of the mask, 0 off it."""
        if self._coefficient is None:
            hidden = hidden.detach()
        states = hidden.flatten(0, 1)[tokens.predictions].float()
        values = self._head(states)[:, 0][tokens.entries]
        block = torch.zeros(tokens.mask.shape, device=values.device)
        return block.masked_scatter(tokens.mask, values)

    def loss(
        self,
        hidden: Float[Tensor, "lines length width"],
        batch: MicroBatch,
        *,
        counts: LossDenominators,
        tally: MetricAccumulator,
    ) -> Float[Tensor, ""]:
        """Return this micro-batch's share of the value loss, a mean over tokens.

        Not shared, its gradient reaches the head only, and then it has no coefficient.
        """
        if batch.values is None or batch.returns is None:
            raise LearnError("a batch without values cannot train a critic; see `add_values`")
        losses = value_loss(
            self.values(hidden, batch.tokens), batch.values, batch.returns, clip=self._clip
        )
        tally.mean("critic/loss", losses, where=batch.mask)
        loss = aggregate(losses, batch.mask, how="token-mean", counts=counts)
        return loss if self._coefficient is None else self._coefficient * loss

    def add_values(
        self, groups: Sequence[TrainingGroup], layout: SequenceLayout, *, limit_tokens: int
    ) -> tuple[TrainingGroup, ...]:
        """Return the groups, each sample with its values and with what they should have been.

        Values stand on the mask, and at the end of what a limit of ours ended. One forward pass
        without the language-model head. A context longer than `limit_tokens` is
        worth what its first so many tokens are.
        """
        samples = [sample for group in groups for sample in group.samples]
        results = score_by_context(
            samples, lambda each: self._value_contexts(each, layout, limit_tokens=limit_tokens)
        )
        valued = _regroup(groups, results)
        pairs = zip((s for g in valued for s in g.samples), self._returns(valued), strict=True)
        return _regroup(groups, [replace(s, returns=returns) for s, returns in pairs])

    def _value_contexts(
        self, samples: Sequence[TrainingSample], layout: SequenceLayout, *, limit_tokens: int
    ) -> list[TrainingSample]:
        results = [replace(s, values=np.zeros(len(s.token_ids))) for s in samples]
        live = [i for i, sample in enumerate(samples) if sample.sampled_tokens or sample.truncated]
        sequences = [_append_end(samples[i], limit_tokens) for i in live]
        value_rows: dict[int, Tensor] = {}
        for indices, tokens in self._ranks.passes(
            layout, sequences, device=computing_device(self.model)
        ):
            with torch.no_grad():
                values = self.values(hidden_states(self.model, tokens), tokens)
            value_rows |= dict(zip(indices, values, strict=True))
        for j, row in self._ranks.together(value_rows).items():
            sample = samples[live[j]]
            final = float(row[len(sequences[j].token_ids) - 2]) if sample.truncated else 0.0
            results[live[j]] = replace(sample, values=unshift(row, sample), final_value=final)
        return results

    def update(self) -> None:
        """Move the head by the gradients of all ranks. A collective."""
        self._ranks.add_gradients(self._head)
        self.optimizer.update()

    def state(self) -> dict[str, Tensor]:
        """Return the head's weights and its optimiser's state, by name; no copies."""
        head = {f"head.{name}": value for name, value in self._head.state_dict().items()}
        updates = {"updates": torch.tensor(self.optimizer.updates)}
        return head | self.optimizer.state() | updates

    def check_state(self, state: Mapping[str, Tensor]) -> None:
        """Raise `ConfigError` for the state of a head of another shape."""
        shapes, other = _shapes(self._head.state_dict()), _shapes(_head_of(state))
        if shapes != other:
            raise ConfigError(
                f"the critic's head has {shapes}, but the saved one has {other}; resume with the "
                "run's original learn.critic.hidden_size"
            )

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` returned."""
        self._head.load_state_dict(_head_of(state))
        self.optimizer.load_state(state, updates=int(state["updates"]))


@contextmanager
def watch_hidden_states(critic: ValueHead | None) -> Generator[list[Tensor]]:
    """Collect the last hidden states of the policy's forward passes in the block, for a critic."""
    if critic is None:
        yield []
        return
    states: list[Tensor] = []

    def note(module: nn.Module, arguments: Any, output: Any) -> None:
        states.append(output.last_hidden_state)

    handle = decoder(critic.model).register_forward_hook(note)
    try:
        yield states
    finally:
        handle.remove()


def value_loss(
    values: Float[Tensor, "rows width"],
    old: Float[Tensor, "rows width"],
    returns: Float[Tensor, "rows width"],
    *,
    clip: float | None,
) -> Float[Tensor, "rows width"]:
    """Return max((V - R)^2, (V_cut - R)^2) / 2 per token, V_cut within +-clip of the old value.

    Source: Schulman et al. 2017 (PPO's implementation); the half as in verl.
    """
    plain = (values - returns) ** 2
    if clip is None:
        return plain / 2
    cut = old + (values - old).clamp(-clip, clip)
    return torch.maximum(plain, (cut - returns) ** 2) / 2


def explained_variance(groups: Sequence[TrainingGroup]) -> float:
    """Return 1 - var(returns - values) / var(returns) over all tokens that train.

    1 is a perfect critic, 0 no better than a constant; 0 too where all returns are equal.
    """
    samples = [s for group in groups for s in group.samples if s.sampled_tokens]
    pairs = [
        (s.values[s.mask], s.returns[s.mask])
        for s in samples
        if s.values is not None and s.returns is not None
    ]
    if not pairs:
        return 0.0
    values, returns = (np.concatenate(each) for each in zip(*pairs, strict=True))
    spread = float(returns.var())
    return 1.0 - float((returns - values).var()) / spread if spread else 0.0


def _append_end(sample: TrainingSample, limit_tokens: int) -> MaskedTokens:
    """Return the tokens of a sample; a truncated one has one more, which stands for its end."""
    if not sample.truncated:
        return MaskedTokens(sample.token_ids, sample.mask, sample.images)
    n = min(len(sample.token_ids), limit_tokens)
    token_ids, mask = np.append(sample.token_ids[:n], 0), np.append(sample.mask[:n], True)
    return MaskedTokens(token_ids, mask, tuple(i for i in sample.images if i.stop <= n))


def _head(size: int, hidden_size: int, *, seed: int) -> nn.Sequential:
    """Return a head whose last layer is zero; the global random states stay as they are."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        last = nn.Linear(hidden_size or size, 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        before = [nn.Linear(size, hidden_size), nn.GELU()] if hidden_size else []
        return nn.Sequential(*before, last)


def _head_of(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix("head."): v for k, v in state.items() if k.startswith("head.")}


def _shapes(state: Mapping[str, Tensor]) -> dict[str, list[int]]:
    return {name: list(value.shape) for name, value in sorted(state.items())}


def _regroup(
    groups: Sequence[TrainingGroup], samples: Sequence[TrainingSample]
) -> tuple[TrainingGroup, ...]:
    rest = iter(samples)
    return tuple(replace(g, samples=tuple(next(rest) for _ in g.samples)) for g in groups)
