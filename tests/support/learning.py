"""What tests of the learning half share: a small real model, trees, rows, blocks, a gradient."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.config.learn import LearnSection
from agentrl.config.learning.advantage import GrpoAdvantage
from agentrl.config.run import MakePolicySection
from agentrl.config.section import ConfigSection
from agentrl.learn import advantages, corrections, losses
from agentrl.learn.advantage import AdvantageFunction
from agentrl.learn.aggregate import LossDenominators
from agentrl.learn.checkpoint import CheckpointManager
from agentrl.learn.correction import AnyCorrectionFunction, PolicyMismatch
from agentrl.learn.layouts.padded import PaddedLayout
from agentrl.learn.logprob_scorer import LogprobScorer
from agentrl.learn.loss import AnyLossFunction, PolicyTokens
from agentrl.learn.method import bind_method
from agentrl.learn.methods import LearnMethods
from agentrl.learn.micro_batch import CreditedSample, MicroBatch, micro_batch
from agentrl.learn.sample import TrainingGroup, TrainingSample, groups_of
from agentrl.learn.sequence_layout import SequenceLayout
from agentrl.learn.trainer import PolicyTrainer
from agentrl.learn.update import PolicyGradient
from agentrl.metrics.accumulator import MetricAccumulator
from agentrl.models.folders import make_model
from agentrl.task import Task
from agentrl.trajectory import Finished, Leaf, Node, Tree

CPU = torch.device("cpu")
VOCABULARY = 12
SECTION = MakePolicySection(
    hidden_size=16, layers=2, heads=2, kv_heads=1, head_dim=8, intermediate_size=32
)


def advantage_of(section: ConfigSection) -> AdvantageFunction:
    """Return the advantage function `section` names, with its knobs."""
    return bind_method(advantages.METHODS, section)


def loss_of(section: ConfigSection) -> AnyLossFunction:
    """Return the loss `section` names, with its knobs."""
    return bind_method(losses.METHODS, section)


def correction_of(section: ConfigSection) -> AnyCorrectionFunction:
    """Return the correction `section` names, with its knobs."""
    return bind_method(corrections.METHODS, section)


def model_of(seed: int = 0, *, scale: float = 6.0) -> PreTrainedModel:
    """Return a two-layer Qwen3 whose weights are large enough that tokens differ clearly."""
    model = make_model(
        SECTION, vocab_size=VOCABULARY, eos_token_id=1, pad_token_id=0, context_tokens=64, seed=seed
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter *= scale
    return model


def head_of(model: PreTrainedModel) -> Tensor:
    """Return the weight of the language-model head."""
    return cast(Tensor, cast(Any, model).lm_head.weight)


def trees_of(
    count: int = 3, *, group: int = 4, seed: int = 0, version: int = 0, gap: float = 0.0
) -> list[Tree]:
    """Return multi-turn groups of unequal lengths with random tokens and log-probs.

    Rewards rise with the sample, so that in groups of four none has an advantage of zero.
    """
    random = np.random.default_rng(seed)
    trees: list[Tree] = []
    for name in range(count):
        tree = Tree(Task(prompt="q", id=f"t{name}"))
        prompt = tree.add(Node(parent=None, source="prompt", token_ids=(2, 3 + name), turn=0))
        for sample in range(group):
            at = prompt
            for turn in range(int(random.integers(1, 4))):
                n = int(random.integers(1, 6))
                at = tree.add(
                    Node(
                        parent=at,
                        source="sampled",
                        token_ids=tuple(random.integers(2, VOCABULARY, n).tolist()),
                        turn=turn,
                        logprobs=tuple((-2.5 + gap * random.standard_normal(n)).tolist()),
                        versions=(version,) * n,
                    )
                )
                at = tree.add(Node(parent=at, source="tool", token_ids=(4, 5), turn=turn))
            tree.end(Leaf(node=at, outcome=Finished(float(sample)), sample=sample))
        trees.append(tree)
    return trees


def writable(sample: TrainingSample) -> TrainingSample:
    """Return a sample with arrays of its own, which a test may write into."""
    values = {each.name: getattr(sample, each.name) for each in fields(sample)}
    return replace(sample, **{k: v.copy() for k, v in values.items() if isinstance(v, np.ndarray)})


def rows_of(trees: Sequence[Tree]) -> list[CreditedSample]:
    """Return the rows a trainer would make of these trees."""
    groups = groups_of(trees)
    samples = [writable(sample) for group in groups for sample in group.samples]
    credit = advantage_of(GrpoAdvantage())(groups)
    return [CreditedSample(s, a) for s, a in zip(samples, credit, strict=True)]


def evidence_of(model: PreTrainedModel, *, limit_tokens: int = 8192) -> LogprobScorer:
    """Return what scores samples with a model."""
    return LogprobScorer(model, PaddedLayout(limit_tokens), temperature=1.0, head_at_positions=True)


def scored_by(
    model: PreTrainedModel, rows: Sequence[CreditedSample], *, limit_tokens: int = 8192
) -> list[CreditedSample]:
    """Return the rows with log-probs of the model as it is."""
    group = TrainingGroup("t", tuple(row.sample for row in rows))
    (scored,) = evidence_of(model, limit_tokens=limit_tokens).score_groups([group])
    pairs = zip(scored.samples, rows, strict=True)
    return [CreditedSample(writable(sample), row.advantages) for sample, row in pairs]


def micro_batches(rows: Sequence[CreditedSample], *, layout: SequenceLayout) -> list[MicroBatch]:
    """Return the rows as the micro-batches of a layout."""
    plan = layout.plan([row.sample for row in rows])
    return [micro_batch([rows[i] for i in c], layout=layout, device=CPU) for c in plan]


def gradients(
    model: PreTrainedModel,
    rows: Sequence[CreditedSample],
    config: LearnSection,
    *,
    limit_tokens: int = 8192,
    layout: SequenceLayout | None = None,
) -> Tensor:
    """Return the gradient of one optimiser step on these rows, and its loss, as one vector."""
    model.zero_grad(set_to_none=True)
    total = torch.zeros(1)
    chosen = layout or PaddedLayout(limit_tokens)
    scorer = LogprobScorer(model, chosen, 1.0, head_at_positions=True)
    policy = PolicyGradient(config, methods=LearnMethods.from_config(config), scorer=scorer)
    counts = LossDenominators.from_token_counts(row.sample.sampled_tokens for row in rows)
    step = policy.settle(rows, version=0)
    for batch in micro_batches(rows, layout=chosen):
        loss = policy.loss(
            batch, step, version=0, counts=counts, tally=MetricAccumulator(), measure_gap=True
        )
        loss.backward()
        total += loss.detach()
    return torch.cat([gradient_of(model), total])


def gradient_of(model: PreTrainedModel) -> Tensor:
    """Return the gradient the model holds, as one vector."""
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def policy_gradient(model: PreTrainedModel, rows: Sequence[CreditedSample], cap: float) -> Tensor:
    """Return the gradient of -mean(w A log pi) written out, w = min(pi / mu, cap) or 1."""
    model.zero_grad(set_to_none=True)
    total = torch.zeros(())
    for row in rows:
        ids = torch.tensor(row.sample.token_ids)
        logs = model(input_ids=ids[None]).logits[0].log_softmax(dim=-1)
        for t in np.flatnonzero(row.sample.mask):
            log = logs[t - 1, ids[t]]
            gap = log.item() - row.sample.behaviour[t]
            weight = min(math.exp(gap), cap) if math.isfinite(gap) else 1.0
            total = total - weight * row.advantages[t] * log
    (total / sum(row.sample.sampled_tokens for row in rows)).backward()
    return gradient_of(model)


def assert_close(found: Tensor, expected: Tensor) -> None:
    """Assert two gradients equal to float32's rounding of a sum."""
    assert (found - expected).norm() <= 2e-6 * expected.norm()
    assert expected.norm() > 1e-3


def block(*rows: Sequence[float]) -> Tensor:
    """Return rows of numbers as one block, padded with zeros."""
    width = max(map(len, rows))
    return torch.tensor([[*map(float, row), *[0.0] * (width - len(row))] for row in rows])


def all_of(values: Tensor) -> Tensor:
    """Return a mask of everything."""
    return torch.ones_like(values, dtype=torch.bool)


def mismatch(gaps: Tensor, mask: Tensor | None = None, **others: Tensor) -> PolicyMismatch:
    """Return what a correction sees of log(proximal / behaviour); the rest is zero."""
    mask = all_of(gaps) if mask is None else mask
    zeros, none = torch.zeros_like(gaps), torch.zeros_like(gaps, dtype=torch.int64)
    parts = {"drift": zeros, "advantages": zeros, "turns": none, "ages": none} | others
    return PolicyMismatch(gaps=torch.where(mask, gaps, 0.0), mask=mask, **parts)


def policy_tokens(
    log_ratio: Tensor, advantages: Tensor, mask: Tensor | None = None, **others: Tensor
) -> PolicyTokens:
    """Return what a loss sees: log(current / proximal) over a proximal policy of log-prob 0."""
    mask = all_of(log_ratio) if mask is None else mask
    zeros = torch.zeros_like(log_ratio)
    parts = {
        "proximal": zeros,
        "behaviour": zeros,
        "turns": torch.zeros_like(mask, dtype=torch.int64),
    } | others
    return PolicyTokens(logprobs=log_ratio, advantages=advantages, mask=mask, **parts)


def save(
    folder: Path,
    trainer: PolicyTrainer,
    *,
    keep: int = 1,
    samplers: Mapping[str, Any] | None = None,
) -> Path:
    """Write a checkpoint of the trainer's version, without a tokenizer."""
    manager = CheckpointManager(folder=folder, keep=keep, tokenizer=None)
    return manager.save(trainer, samplers=samplers or {}, files={})
