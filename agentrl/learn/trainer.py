"""Step 8 of the flow: a batch of trees becomes new weights, and the version goes up by one."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.config.learn import LearnSection
from agentrl.errors import ConfigError, LearnError
from agentrl.learn.aggregate import Counts
from agentrl.learn.batch import (
    Group,
    Row,
    Sample,
    Trainable,
    TurnWeights,
    groups_of,
    micro_batch,
    plan,
    sampled,
)
from agentrl.learn.forward import head_is_plain, score
from agentrl.learn.gap import gap_metrics
from agentrl.learn.methods import advantage_of, needs_of
from agentrl.learn.optimizer import AdamW
from agentrl.learn.report import batch_metrics
from agentrl.learn.tally import Tally
from agentrl.learn.update import PolicyGradient
from agentrl.seeds import derive
from agentrl.trajectory import Tree


class Trainer:
    """Owns the model's weights, their optimiser and their version.

    The model is put into evaluation mode, and stays there: with dropout the current policy would
    not be the one that sampled. `temperature` is the one the engine samples at; log-probs and
    entropies are those of logits / temperature.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        config: LearnSection,
        *,
        seed: int,
        temperature: float = 1.0,
    ) -> None:
        if temperature <= 0:
            raise ConfigError(
                f"sampling.temperature is {temperature}: a greedy policy has no log-probs to "
                "train on; set it above 0 for training"
            )
        self.model = model.eval()
        self.version = 0
        """Of the weights: the number of steps taken."""
        self.optimizer = AdamW(model, config.optimizer)
        self._seed = seed
        self._temperature = temperature
        self._advantages = advantage_of(config.advantage)
        self._needs = needs_of(config)
        self._minibatches = config.minibatches
        self._epochs = config.epochs
        self._limit_tokens = config.micro_batch_tokens
        self._head_at_positions = head_is_plain(model)
        self._gradient = PolicyGradient(
            model, config, temperature=temperature, head_at_positions=self._head_at_positions
        )

    def step(
        self,
        trees: Sequence[Tree],
        trainable: Trainable = sampled,
        weights: Sequence[TurnWeights] | None = None,
    ) -> dict[str, float]:
        """Train on a batch of groups once, and return what there is to know about it.

        `trainable` may hold back tokens that are too old. `weights`, one per tree, multiply the
        losses of tokens; what the losses are divided by stays as it is.

        An optimiser step whose advantages are all zero leaves weights and moments alone; the
        version goes up all the same. Raises `LearnError` for a batch without trainable tokens, a
        reward or gradient that is not finite, and tokens from a version that does not exist yet.
        """
        groups = groups_of(trees, trainable, weights)
        rows = self._rows(groups)
        self._check(rows, trees)
        metrics = batch_metrics(groups, rows, trees=trees, version=self.version)
        tally = Tally()
        for part, is_first in self._parts(self._with_proximal(rows)):
            self._update(part, tally, measure_gap=is_first)
        self.version += 1
        return metrics | gap_metrics(tally) | {"optimizer/updates": float(self.optimizer.updates)}

    def weights(self) -> dict[str, Tensor]:
        """Return the current weights by their Hugging Face names, detached and not copied.

        The next step changes them in place: whoever keeps them longer copies them.
        """
        return {name: value.detach() for name, value in self.model.state_dict().items()}

    def _rows(self, groups: Sequence[Group]) -> list[Row]:
        samples = [sample for group in groups for sample in group.samples]
        credit = self._advantages(groups)
        rows = [Row(s, a) for s, a in zip(samples, credit, strict=True)]
        return [row for row in rows if row.sample.sampled_tokens]

    def _check(self, rows: Sequence[Row], trees: Sequence[Tree]) -> None:
        if not rows:
            leaves = [leaf for tree in trees for leaf in tree.leaves]
            raise LearnError(
                f"no token of this batch can train: {len(trees)} groups, {len(leaves)} "
                f"trajectories, {_failed(trees)} of them failed, and the others hold no sampled "
                "token; look at the recorded errors, and check that the engine is asked at all"
            )
        newest = max(int(row.sample.versions[row.sample.mask].max()) for row in rows)
        if newest > self.version:
            raise LearnError(
                f"a token was sampled by version {newest}, and the trainer is at {self.version}; "
                "load the engine with Trainer.weights() and Trainer.version before rollouts"
            )

    def _with_proximal(self, rows: list[Row]) -> list[Row]:
        """Return the rows with log-probs under the weights at batch start, where they are needed.

        In a single optimiser step the current weights are those at batch start, so the forward
        pass of the step itself gives the same numbers and nothing is computed twice.
        """
        if self._minibatches * self._epochs == 1 or "proximal logprobs" not in self._needs:
            return rows
        return with_proximal(
            self.model,
            rows,
            temperature=self._temperature,
            limit_tokens=self._limit_tokens,
            head_at_positions=self._head_at_positions,
        )

    def _parts(self, rows: list[Row]) -> Iterator[tuple[list[Row], bool]]:
        """Yield the rows of each optimiser step, and whether it is the first of the batch."""
        for epoch in range(self._epochs):
            order = np.arange(len(rows))
            if self._minibatches > 1:
                seed = derive(self._seed, "minibatches", self.version, epoch)
                order = np.random.default_rng(seed).permutation(len(rows))
            parts = np.array_split(order, min(self._minibatches, len(rows)))
            for index, part in enumerate(parts):
                yield [rows[i] for i in part], epoch == index == 0

    def _update(self, rows: Sequence[Row], tally: Tally, *, measure_gap: bool) -> None:
        counts = Counts.of(row.sample.sampled_tokens for row in rows)
        live = [row for row in rows if not row.is_idle]
        idle = [row for row in rows if row.is_idle]
        total = torch.zeros((), device=self.model.device)
        self.optimizer.zero_grad()
        for chosen in (live, idle):
            widths = [row.forward_tokens for row in chosen]
            for indices in plan(widths, limit_tokens=self._limit_tokens):
                batch = micro_batch([chosen[i] for i in indices], device=self.model.device)
                with torch.set_grad_enabled(chosen is live):
                    loss = self._gradient.loss(
                        batch, counts=counts, tally=tally, measure_gap=measure_gap
                    )
                if chosen is live:
                    loss.backward()
                total += loss.detach()
        tally.mean("loss", total)
        tally.mean("learning_rate", self.optimizer.learning_rate)
        norm = self.optimizer.update() if live else 0.0
        tally.mean("grad/norm", norm)
        tally.mean("optimizer/skipped", float(not live))


def with_proximal(
    model: PreTrainedModel,
    rows: Sequence[Row],
    *,
    temperature: float,
    limit_tokens: int,
    head_at_positions: bool,
) -> list[Row]:
    """Return the rows with the log-probs of the model's weights as they are now."""
    scored: dict[int, Row] = {}
    for indices in plan([row.forward_tokens for row in rows], limit_tokens=limit_tokens):
        batch = micro_batch([rows[i] for i in indices], device=model.device)
        with torch.no_grad():
            scores = score(
                model, batch.tokens, temperature=temperature, head_at_positions=head_at_positions
            )
        for index, values in zip(indices, scores.logprobs.cpu().numpy(), strict=True):
            scored[index] = replace(rows[index], proximal=_unshift(values, rows[index].sample))
    return [scored[i] for i in range(len(rows))]


def _unshift(values: np.ndarray, sample: Sample) -> np.ndarray:
    """Return predictions, which stand one place early, at the places of their tokens."""
    tokens = len(sample.token_ids)
    placed = np.zeros(tokens, dtype=values.dtype)
    width = min(len(values), tokens - 1)
    placed[1 : width + 1] = values[:width]
    return placed


def _failed(trees: Sequence[Tree]) -> int:
    samples = sum(len(group.samples) for group in groups_of(trees))
    return sum(len(tree.leaves) for tree in trees) - samples
