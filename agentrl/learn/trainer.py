"""Step 8 of the flow: a batch of trees becomes new weights, and the version goes up by one."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.config.learn import LearnSection, Precision
from agentrl.errors import ConfigError, LearnError
from agentrl.learn import advantages
from agentrl.learn.advantage import read_credit
from agentrl.learn.aggregate import LossDenominators
from agentrl.learn.batch import TrainingBatch
from agentrl.learn.context_parallel import check_heads
from agentrl.learn.contexts import rows_of
from agentrl.learn.critic import critic_of, explained_variance, watch_hidden_states
from agentrl.learn.dtensor import alike, local
from agentrl.learn.ewma import WeightEma
from agentrl.learn.group_reward import reward_groups
from agentrl.learn.hint import apply_hints, make_unhinted_rows
from agentrl.learn.layouts import LAYOUTS
from agentrl.learn.layouts.probe import check_layout
from agentrl.learn.logprob_gap import GapAlarm, gap_metrics
from agentrl.learn.logprob_scorer import LogprobScorer, freeze
from agentrl.learn.lora import (
    adapters_of,
    base_of,
    identity,
    is_adapted,
    load_adapter,
    save_adapter,
)
from agentrl.learn.method import find_needs
from agentrl.learn.methods import LearnMethods
from agentrl.learn.micro_batch import CreditedSample, micro_batch
from agentrl.learn.optimizer import AdamW
from agentrl.learn.proximal import ELSEWHERE
from agentrl.learn.proximals import anchor_of
from agentrl.learn.randomness import random_state, set_random_state
from agentrl.learn.ranks import ALONE, TrainerRanks
from agentrl.learn.reference import ReferencePolicy
from agentrl.learn.report import (
    batch_metrics,
    group_reward_metrics,
    selection_metrics,
    shaping_metrics,
)
from agentrl.learn.sample import (
    Trainable,
    TrainingGroup,
    TrainingSample,
    TurnWeights,
    spans_of,
)
from agentrl.learn.selection import SelectionContext, read_selection
from agentrl.learn.shaping import shape_rewards
from agentrl.learn.swap import swap_weights
from agentrl.learn.token_credit import TokenCreditCollector
from agentrl.learn.token_logprobs import head_is_plain
from agentrl.learn.update import PolicyGradient, StepMethods
from agentrl.learn.value_probe import explain_rewards, probe_of
from agentrl.metrics.accumulator import MetricAccumulator
from agentrl.models.devices import computing_device
from agentrl.models.folders import load_model, prepare, prepare_shards, recompute_layers
from agentrl.models.out_of_memory import explain_out_of_memory
from agentrl.models.quiet import no_bars
from agentrl.models.vision import model as vision
from agentrl.models.vision.encoder_cache import BATCH_BYTES, EncoderCache
from agentrl.models.vision.processor import ImageProcessor
from agentrl.runtime.seeds import derive
from agentrl.store.token_credit import TokenCredit
from agentrl.trajectory import Tree
from agentrl.weight_sync.adapters import AdapterWeights, BaseWeights, LoraAdapter

PASS_WAY_OUT = (
    "Lower learn.micro_batch_tokens or learn.head_chunk_tokens, set learn.gradient_checkpointing "
    "or learn.lora, or give the engine less memory (engine.slots, engine.vllm.memory_fraction)."
)
"""Keys that lower what a forward and a backward pass need."""
STATE_WAY_OUT = (
    "Set learn.lora, learn.offload or learn.optimizer.moments: 8bit, shard the trainer over GPUs "
    "(learn.devices.count), or give the engine less memory (engine.slots, "
    "engine.vllm.memory_fraction)."
)
"""Keys that lower what weights, gradients and moments take."""
_NO_IDENTITY = {"_name_or_path", "transformers_version", "architectures", "dtype"}
"""Config keys that differ between loading a model and making it; tensors name their own types."""

if TYPE_CHECKING:
    from agentrl.config.run import RunConfig

TrainerT = TypeVar("TrainerT", bound="PolicyTrainer")
ItemT = TypeVar("ItemT")


class PolicyTrainer:
    """Owns the model's weights, their optimiser and their version.

    The model is made ready in place, see `prepare`; an engine is made of it before. `temperature`
    is the one the engine samples at; log-probs and entropies are those of logits / temperature.
    Where a method needs a reference policy, it is the model as it is given: the run's first policy,
    also in a run that is resumed, because checkpoints are loaded later; or the one of the last
    reset. What is scheduled, a learning rate or a selection, goes over `steps`. `images` cuts up
    the images that a policy which sees was shown; what it and the vision tower make of a batch's
    images is kept up to `image_bytes`, in the host's memory.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        config: LearnSection,
        *,
        seed: int,
        temperature: float = 1.0,
        steps: int | None = None,
        images: ImageProcessor | None = None,
        image_bytes: int = BATCH_BYTES,
        ranks: TrainerRanks | None = None,
    ) -> None:
        if temperature <= 0:
            raise ConfigError(
                f"sampling.temperature is {temperature}: a greedy policy has no log-probs to "
                "train on; set it above 0 for training"
            )
        self.model = model
        self.ranks = ranks or ALONE
        self.version = 0
        """Version of the weights: the number of steps taken."""
        self.temperature = temperature
        """Temperature of the sampling, under which log-probs are taken."""
        self.keeps_credit = False
        """True if a step leaves a record of its effect on each token in `credits`."""
        self.credits: Sequence[TokenCredit] = ()
        """Credit records of the latest step; `owner` is the tree's place in the batch."""
        self._seed = seed
        self._steps = steps or 0
        self._methods = LearnMethods.from_config(config)
        self._credit_needs = find_needs(advantages.METHODS, config.advantage)
        self._types: dict[str, torch.dtype] = {}
        """Types of weights that are float32 here and rounded when they are collected."""
        self._identity: Mapping[str, Any] = {}
        needs_reference = "reference logprobs" in self._methods.needs
        frozen = self._prepare(config, needs_reference=needs_reference)
        self.critic = critic_of(model, config, seed=derive(seed, "critic"), ranks=self.ranks)
        self.probe = probe_of(model, config)
        self._device = computing_device(model)
        self._limit_tokens = config.micro_batch_tokens
        self._minibatches = config.minibatches
        self._epochs = config.epochs
        context = self.ranks.context
        self._images = None
        if images is not None:
            self._images = EncoderCache(
                images, keeps_patches=vision.trains_vision(model), limit_bytes=image_bytes
            )
        self._layout = LAYOUTS[config.layout](config.micro_batch_tokens, self._images, context)
        self._precision: Precision = config.precision
        way_out = "learn.layout: padded" if context is None else "learn.devices.context_parallel: 1"
        check_layout(model, self._layout, way_out=way_out, dtype=getattr(torch, config.precision))
        self._evidence = LogprobScorer(
            model,
            self._layout,
            temperature,
            head_is_plain(model),
            config.head_chunk_tokens,
            self.ranks,
        )
        self._reference = None
        if needs_reference:
            every = None if config.kl is None else config.kl.reset_every
            self._reference = ReferencePolicy(self._evidence, frozen=frozen, reset_every=every)
        self._base: BaseWeights | None = None
        """Below the adapters, once somebody has asked; whole."""
        self.optimizer = AdamW(model, config.optimizer, steps=steps, on_host=config.offload)
        self.rounds = bool(self._types) and config.precision != "float32"
        """True if a checkpoint's policy is rounded, and its weights are kept apart."""
        self.ema = None
        if config.ema is not None:
            self.ema = WeightEma(self.optimizer.weights(), decay=config.ema.decay)
        self._check_anchor(config)
        self.anchor = anchor_of(config.proximal, self._evidence, self._methods.needs)
        """Other weights than the trainer's, if the clip is anchored to any."""
        self._gap_alarm = GapAlarm(config.gap_alarm)
        self._gradient = PolicyGradient(config, methods=self._methods, scorer=self._evidence)

    @classmethod
    def from_config(
        cls: type[TrainerT],
        model: PreTrainedModel,
        config: "RunConfig",
        *,
        images: ImageProcessor | None = None,
        **options: Any,
    ) -> TrainerT:
        """Return the trainer of a run's config, the same on every rank."""
        subject = "the trainer, with its weights, their float32 masters and a reference,"
        with explain_out_of_memory(ConfigError, subject, STATE_WAY_OUT):
            return cls(
                model,
                config.learn,
                seed=derive(config.run.seed, "trainer"),
                temperature=config.sampling.temperature,
                steps=config.run.steps,
                images=images,
                **options,
            )

    def _prepare(self, config: LearnSection, *, needs_reference: bool) -> PreTrainedModel | None:
        """Make the model ready, and cut it up where there are several ranks; return a frozen copy
        that was cut up with it, where a reference needs one."""
        model, seed = self.model, derive(self._seed, "adapters")
        if self.ranks.size == 1:
            prepare(model, config, seed=seed)
            return None
        if context := self.ranks.context:
            check_heads(model.config, context.size)
        prepare_shards(model, config, seed=seed, device=self.ranks.device or model.device)
        types = {name: value.dtype for name, value in model.state_dict().items()}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            trains_beside = config.lora is not None and parameter.requires_grad
            if parameter.is_floating_point() and not trains_beside:
                types[name] = getattr(torch, config.precision)
        if config.lora is None:
            self._types = types
        if self.ranks.rank == 0:
            self._identity = identity_of(model, types)
        frozen = None
        if needs_reference and not is_adapted(model):
            frozen = freeze(model, shares_weights=True)
            self.ranks.shard(frozen, precision=config.precision, offload=config.offload)
        self.ranks.shard(model, precision=config.precision, offload=config.offload)
        if config.gradient_checkpointing:
            recompute_layers(model)
        return frozen

    def _check_anchor(self, config: LearnSection) -> None:
        if self.ranks.size > 1 and self._methods.needs & ELSEWHERE:
            raise ConfigError(
                f"learn.proximal is {config.proximal.name}, which supports only one device, but "
                f"there are {self.ranks.size}; choose recompute, or set learn.devices.count to 1"
            )
        if self.ranks.size > 1 and config.kl is not None and config.kl.reset_every is not None:
            raise ConfigError(
                "learn.kl.reset_every is set, which supports only one device, but there are "
                f"{self.ranks.size}; set it to null, or learn.devices.count to 1"
            )

    def step(
        self,
        trees: Sequence[Tree],
        trainable: Trainable | None = None,
        weights: Sequence[TurnWeights] | None = None,
    ) -> dict[str, float]:
        """Train on a batch of groups once, and return what there is to know about it.

        `trainable` may hold back tokens that are too old. `weights`, one per tree, multiply the
        losses of tokens; what the losses are divided by stays as it is.

        An optimiser step whose advantages are all zero leaves weights and moments alone; the
        version goes up all the same. Raises `LearnError` for a batch without trainable tokens, a
        reward or gradient that is not finite, and tokens from a version that does not exist yet.
        """
        return self.learn(TrainingBatch.from_trees(trees, trainable, weights))

    def learn(self, batch: TrainingBatch) -> dict[str, float]:
        """Do what `step` does. All ranks are given the same batch. A collective."""
        with nullcontext() if self._images is None else self._images.batch():
            return self._learn(batch)

    def _learn(self, batch: TrainingBatch) -> dict[str, float]:
        if self._methods.hint is not None:
            batch = replace(batch, groups=apply_hints(batch.groups, self._methods.hint))
        with explain_out_of_memory(LearnError, "scoring the batch of a step", PASS_WAY_OUT):
            batch, groups, faults = self._score(batch)
        raw = batch.groups
        credited = self._assign_credit(groups)
        rows = self._select_rows(credited)
        self._check(rows, batch)
        self.ranks.check_same(partial(digest_decisions, rows, batch), "the credit of a batch")
        metrics = batch_metrics(raw, credited, rows, failed=batch.failed, version=self.version)
        if self._methods.shapings or self._methods.group_reward:
            metrics |= shaping_metrics(groups)
        if self._methods.group_reward:
            metrics |= group_reward_metrics(raw, groups, failed=faults)
        if self._methods.selections:
            metrics |= selection_metrics(credited, rows)
        tally = MetricAccumulator()
        taught = TokenCreditCollector(batch, credited) if self.keeps_credit else None
        if self.critic is not None:
            tally.mean("critic/explained_variance", explained_variance(groups))
        if self.probe is not None:
            tally.mean("value_probe/explained_variance", explain_rewards(groups))
        unhinted = [make_unhinted_rows(row) for row in rows if row.sample.hint_coefficient]
        rows = [part for row in rows for part in rows_of(row)]
        with explain_out_of_memory(LearnError, "scoring the batch of a step", PASS_WAY_OUT):
            rows = self.anchor.score_batch(rows, version=self.version)
        # Each part of the rows goes with as large a part of the second losses.
        parts = zip(self._parts(rows), self._parts(unhinted, len(rows)), strict=True)
        for number, (part, second) in enumerate(parts):
            self._update(number, part, second, tally, taught)
        self.credits = () if taught is None else taught.credits(self.ranks)
        if self.probe is not None:
            self.probe.fit()
        self.version += 1
        if self._reference is not None:
            self._reference.on_step(version=self.version)
        metrics |= gap_metrics(tally)
        metrics |= self.anchor.on_step(active_fraction=metrics["ratio/active_fraction"])
        return metrics | {"optimizer/updates": float(self.optimizer.updates)}

    def forget(self, *, before: int) -> None:
        """Drop what is kept for the sake of tokens of versions before this one: none will come."""
        self.anchor.forget(before=before)

    def weights(self) -> Mapping[str, Tensor]:
        """Return the current weights by their Hugging Face names, detached and not copied.

        Those of a model with adapters are an `AdapterWeights`: engines are sent its base once. The
        next step changes them in place: whoever keeps them longer copies them.
        """
        if not is_adapted(self.model):
            return self._gather_weights(base_of(self.model))
        if self._base is None:
            self._base = BaseWeights(self._gather_weights(base_of(self.model)))
        return AdapterWeights(self._base, self._adapters())

    def evaluation_weights(self) -> Mapping[str, Tensor]:
        """Return the weights to evaluate, as `weights` does: the average, if there is one."""
        with swap_weights(self.model, self.ema.state() if self.ema else {}):
            return self.weights()

    def logprobs(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """Return the log-prob of every token but the first after those before it, in nats, at
        temperature 1, with the current weights. A collective.
        """
        count = len(token_ids)
        mask = np.arange(count) > 0
        sample = TrainingSample(
            task_id="",
            sample=0,
            reward=0.0,
            token_ids=np.asarray(token_ids, dtype=np.int64),
            mask=mask,
            behaviour=np.zeros(count),
            spans=spans_of(mask),
        )
        (scored,) = replace(self._evidence, temperature=1.0).score_proximal([sample])
        assert scored.proximal is not None
        return tuple(float(logprob) for logprob in scored.proximal[1:])

    def write_state(self, folder: Path) -> None:
        """Write all but the policy and the counters. A collective; all ranks see `folder`."""
        if self.ranks.rank:
            # Before the collectives: after the last of them the first rank renames the folder.
            (folder / _random_file(self.ranks)).write_text(
                json.dumps(random_state()), encoding="utf-8"
            )
        if is_adapted(self.model):
            save_adapter(self.model, folder / "adapter" if self.ranks.rank == 0 else None)
        if self.ema is not None:
            self.ranks.write(folder, "ema", self.ema.state())
        self.ranks.write(folder, "optimizer", self.optimizer.state(masters=self.rounds))
        if self.ranks.rank:
            return
        if self.critic is not None:
            ALONE.write(folder, "critic", self.critic.state())
        if self.probe is not None:
            ALONE.write(folder, self.probe.name, self.probe.state())
        if anchor := self.anchor.state():
            ALONE.write(folder, self.anchor.name, anchor)
        if self._reference is not None and (reference := self._reference.state()):
            ALONE.write(folder, self._reference.name, reference)

    def read_state(self, checkpoint: Path) -> None:
        """Take over a checkpoint whose files and model were found to be right. A collective.

        Everything is read before anything is changed. Raises `ConfigError` for what the config asks
        for and the checkpoint has not.
        """
        state = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
        weights = self.optimizer.weights()
        anchor_file = checkpoint / f"{self.anchor.name}.safetensors"
        anchor = load_file(anchor_file) if anchor_file.is_file() else {}
        moments = self.ranks.read(
            checkpoint, "optimizer", {n: weights[n.partition(".")[2]] for n in _kinds(weights)}
        )
        critic = dict[str, Tensor]()
        if self.critic is not None:
            _check_there(checkpoint, "critic", "learn.critic")
            critic = load_file(checkpoint / "critic.safetensors")
            self.critic.check_state(critic)
        probe = dict[str, Tensor]()
        if self.probe is not None:
            _check_there(checkpoint, self.probe.name, "learn.advantage.name: poise")
            probe = load_file(checkpoint / f"{self.probe.name}.safetensors")
            self.probe.check_state(probe)
        reference = dict[str, Tensor]()
        if self._reference is not None and self._reference.is_in(state["version"]):
            _check_there(checkpoint, self._reference.name, "learn.kl.reset_every")
            reference = load_file(checkpoint / f"{self._reference.name}.safetensors")
        average = dict[str, Tensor]()
        if self.ema is not None:
            _check_there(checkpoint, "ema", "learn.ema")
            average = self.ranks.read(checkpoint, "ema", weights)
        if is_adapted(self.model):
            load_adapter(self.model, checkpoint / "adapter")
        else:
            self._load_weights(checkpoint)
        if self.ema is not None:
            self.ema.load_state(average)
        self.optimizer.load_state(moments, updates=state["updates"])
        if self.critic is not None:
            self.critic.load_state(critic)
        if self.probe is not None:
            self.probe.load_state(probe)
        self.anchor.load_state(anchor)
        if self._reference is not None and reference:
            self._reference.load_state(reference)
        self.version = state["version"]
        random_file = checkpoint / _random_file(self.ranks)
        if self.ranks.rank == 0:
            set_random_state(state["random"])
        elif random_file.is_file():
            set_random_state(json.loads(random_file.read_text(encoding="utf-8")))
        else:  # it was written by fewer ranks
            torch.manual_seed(derive(self.version, "rank", self.ranks.rank))

    def _load_weights(self, checkpoint: Path) -> None:
        model = self.model
        if self.ranks.size == 1:
            with no_bars():
                loaded = type(model).from_pretrained(checkpoint, dtype=model.dtype)
            model.load_state_dict(loaded.state_dict())
            return
        # In the type it was written in: it stays in its file but for the rows that are this rank's.
        weights = load_model(checkpoint, dtype=self._precision, device="cpu").state_dict()
        with torch.no_grad():
            for name, value in model.state_dict().items():
                local(value).copy_(local(alike(weights[name], value)))

    @property
    def identity(self) -> Mapping[str, Any]:
        """Properties that a model must share with this one to take its checkpoints."""
        return self._identity or identity_of(self.model)

    def close(self) -> None:
        """Release what training took besides memory. Idempotent."""

    def _gather_weights(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return weights as they are on one device; else whole, in the types the model computes in,
        on the first rank. Tied ones are collected once."""
        if self.ranks.size == 1:
            return weights
        names: dict[int, str] = {}
        tied: dict[str, str] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            first = names.setdefault(id(parameter), name)
            if first != name and {first, name} <= weights.keys():
                tied[name] = first
        once = {name: value for name, value in weights.items() if name not in tied}
        return self.ranks.gather_weights(once, self._types, tied=tied)

    def _adapters(self) -> dict[str, LoraAdapter]:
        """Return the adapters, whole, on the first rank; on others none."""
        adapters = adapters_of(self.model)
        if self.ranks.size == 1:
            return adapters
        halves = {f"{n}.A": one.a for n, one in adapters.items()}
        halves |= {f"{n}.B": one.b for n, one in adapters.items()}
        tensors = self.ranks.gather_weights(halves)
        return {
            # In memory of their own: how far products are alike may depend on alignment.
            name: replace(one, a=tensors[f"{name}.A"].clone(), b=tensors[f"{name}.B"].clone())
            for name, one in adapters.items()
            if f"{name}.A" in tensors
        }

    def _score(self, batch: TrainingBatch) -> tuple[TrainingBatch, Sequence[TrainingGroup], int]:
        """Return the groups with their rewards and with what their credit and loss need to know of
        the weights at batch start and of the reference; also the batch without those whose group
        reward failed, and their number."""
        groups: Sequence[TrainingGroup] = batch.groups
        failed = 0
        with self._fixed_weights():
            if self._needs_evidence:
                groups = self._evidence.score_groups(groups)
            if self._methods.group_reward is not None:
                rewarded = reward_groups(groups, self._methods.group_reward)
                batch, groups = batch.keep_groups(rewarded.places), rewarded.groups
                failed = len(rewarded.faults)
            groups = shape_rewards(groups, self._methods.shapings)
            if self.critic is not None:
                groups = self.critic.add_values(
                    groups, self._layout, limit_tokens=self._limit_tokens
                )
            if self.probe is not None:
                groups = self.probe.add_baselines(groups, self._layout)
        if self._reference is not None:
            with self._fixed_weights():
                groups = self._reference.score_groups(groups)
        return batch, groups, failed

    def _fixed_weights(self) -> AbstractContextManager[None]:
        """Encode images once in the block, in which no weight changes."""
        return nullcontext() if self._images is None else self._images.fixed_weights()

    def _assign_credit(self, groups: Sequence[TrainingGroup]) -> list[CreditedSample]:
        samples = [(sample, at) for at, group in enumerate(groups) for sample in group.samples]
        credit = read_credit([sample for sample, _ in samples], self._methods.advantage(groups))
        return [CreditedSample(s, a, at) for (s, at), a in zip(samples, credit, strict=True)]

    def _select_rows(self, rows: Sequence[CreditedSample]) -> list[CreditedSample]:
        for index, select in enumerate(self._methods.selections):
            seed = derive(self._seed, "selection", self.version, index)
            context = SelectionContext(step=self.version, steps=self._steps, seed=seed)
            rows = read_selection(rows, select(rows, context))
        return [row for row in rows if row.sample.sampled_tokens]

    def _check(self, rows: Sequence[CreditedSample], batch: TrainingBatch) -> None:
        if not rows:
            raise LearnError(
                f"no token of this batch can train: {batch.trees} groups, {batch.trajectories} "
                f"trajectories, {batch.failed} of them failed, and the others have no sampled "
                "token; see the recorded errors, and check that the engine is used at all"
            )
        # Hardly ever is any token newer, so those that train are picked out only then.
        newer = [r.sample for r in rows if r.sample.spans["version"].max() > self.version]
        newest = max((int(one.versions[one.mask].max()) for one in newer), default=-1)
        if newest > self.version:
            raise LearnError(
                f"a token was sampled by version {newest}, but the trainer is at {self.version}; "
                "load the engine with the trainer's weights() and version before rollouts"
            )

    @property
    def _needs_evidence(self) -> bool:
        """True if samples have to be scored with the weights at batch start.

        In a single optimiser step the current weights are those at batch start, so the forward
        pass of the step itself gives the same log-probs and nothing is computed twice.
        """
        several = self._minibatches * self._epochs > 1
        needs = self._methods.needs
        first = "entropies" in needs or "proximal logprobs" in self._credit_needs
        return first or (several and "proximal logprobs" in needs)

    def _parts(self, items: Sequence[ItemT], rows: int | None = None) -> Iterator[list[ItemT]]:
        """Yield the items of each optimiser step, of as many as `rows` are split into."""
        for epoch in range(self._epochs):
            order = np.arange(len(items))
            if self._minibatches > 1:
                seed = derive(self._seed, "minibatches", self.version, epoch)
                order = np.random.default_rng(seed).permutation(len(items))
            count = len(items) if rows is None else rows
            for part in np.array_split(order, min(self._minibatches, count)):
                yield [items[i] for i in part]

    def _update(
        self,
        number: int,
        rows: Sequence[CreditedSample],
        unhinted: Sequence[Sequence[CreditedSample]],
        tally: MetricAccumulator,
        taught: TokenCreditCollector | None,
    ) -> None:
        with explain_out_of_memory(LearnError, "scoring the batch of a step", PASS_WAY_OUT):
            rows = self.anchor.score_update(rows)
        counts = LossDenominators.from_token_counts(
            (row.sample.sampled_tokens for row in rows), (row.share for row in rows)
        )
        live, idle = self._split_idle(rows)
        second = [row for trajectory in unhinted for row in trajectory]
        trains = bool(live or second)
        with self._fixed_weights():
            step = self._gradient.settle(rows, version=self.version)
        for name, value in step.figures.items():
            tally.mean(name, value)
        local_metrics = MetricAccumulator()
        task = _Update(number, step, counts, local_metrics, taught)
        total = torch.zeros((), device=self._device)
        self.optimizer.zero_grad()
        passes = "the forward and backward passes of a training step"
        with explain_out_of_memory(LearnError, passes, PASS_WAY_OUT):
            for subset in (live, idle):
                for indices in self.ranks.plan(self._layout, subset):
                    total += self._pass([subset[i] for i in indices], task, trains=subset is live)
            for indices in self.ranks.plan(self._layout, second):
                part = [second[i] for i in indices]
                total += self._pass_unhinted(part, len(unhinted), local_metrics)
        tally.take(self.ranks.merge_tally(local_metrics))
        if number == 0:
            self._gap_alarm.look(tally)
        tally.mean("loss", self.ranks.total(total))
        tally.mean("learning_rate", self.optimizer.learning_rate(step=self.version))
        norm: Tensor | float = 0.0
        with explain_out_of_memory(LearnError, "the optimizer's update", STATE_WAY_OUT):
            if trains:
                norm = self.optimizer.update(step=self.version)
            if trains and self.critic is not None:
                self.critic.update()
            if trains and self.ema is not None:
                self.ema.update(self.optimizer.weights())
        if trains:
            self.anchor.on_update()
        tally.mean("grad/norm", norm)
        tally.mean("optimizer/skipped", float(not trains))

    def _pass(self, rows: Sequence[CreditedSample], task: "_Update", *, trains: bool) -> Tensor:
        """Run a forward pass over rows, a backward pass if it trains; return the loss."""
        if not rows:
            with torch.set_grad_enabled(trains):
                loss = self._gradient.compute_empty_loss()
            if trains:
                loss.backward()
            return loss.detach()
        batch = micro_batch(rows, layout=self._layout, device=self._device)
        look = None
        if task.taught is not None:
            look = partial(task.taught.look, task.number, rows)
        with torch.set_grad_enabled(trains), watch_hidden_states(self.critic) as states:
            loss = self._gradient.loss(
                batch,
                task.methods,
                version=self.version,
                counts=task.counts,
                tally=task.tally,
                measure_gap=task.number == 0,
                look=look,
            )
        if trains:
            value_loss = 0.0
            if self.critic is not None:
                value_loss = self.critic.loss(
                    states[0], batch, counts=task.counts, tally=task.tally
                )
            (loss + value_loss).backward()
        return loss.detach()

    def _pass_unhinted(
        self, rows: Sequence[CreditedSample], trajectories: int, tally: MetricAccumulator
    ) -> Tensor:
        """Run a forward and a backward pass over rows of the second loss; return the loss."""
        if rows:
            batch = micro_batch(rows, layout=self._layout, device=self._device)
            loss = self._gradient.unhinted_loss(batch, trajectories=trajectories, tally=tally)
        else:
            loss = self._gradient.compute_empty_loss()
        loss.backward()
        return loss.detach()

    def _split_idle(
        self, rows: Sequence[CreditedSample]
    ) -> tuple[list[CreditedSample], list[CreditedSample]]:
        """Return the rows that train, and those that are only looked at."""
        # A row without credit may still teach the critic.
        if self.critic is not None or "idle rows" in self._methods.needs:
            return list(rows), []
        live: list[CreditedSample] = []
        idle: list[CreditedSample] = []
        for row in rows:
            (idle if row.is_idle else live).append(row)
        return live, idle


@dataclass(frozen=True, slots=True)
class _Update:
    number: int
    methods: StepMethods
    counts: LossDenominators
    tally: MetricAccumulator
    taught: TokenCreditCollector | None


def digest_decisions(rows: Sequence[CreditedSample], batch: TrainingBatch) -> str:
    """Return the SHA-256 of what a rank has decided of a batch that all were given: which rows
    train, on which tokens, with what credit and weight."""
    # What shapes and selects replaces samples and leaves the token ids as they are.
    samples = (sample for group in batch.groups for sample in group.samples)
    places = {id(sample.token_ids): place for place, sample in enumerate(samples)}
    digest = hashlib.sha256()
    for row in rows:
        place = places.get(id(row.token_ids))
        digest.update(row.token_ids.tobytes() if place is None else b"%d" % place)
        digest.update(np.packbits(row.mask).tobytes())
        digest.update(b"%d %a" % (row.sample.other_prompt, row.sample.hint_coefficient))
        for values in (row.advantages, row.sample.weights):
            if values is not None:
                digest.update(_drop_repeats(np.asarray(values, np.float64)[row.mask]).tobytes())
    return digest.hexdigest()


def _drop_repeats(values: Float[ndarray, " _"]) -> Float[ndarray, " _"]:
    """Return the values, or one of them where all are the same."""
    return values[:1] if len(values) and (values == values[0]).all() else values


def _kinds(weights: Mapping[str, Tensor]) -> list[str]:
    kinds = ("exp_avg", "exp_avg_sq", "exp_avg_codes", "exp_avg_sq_codes", "master")
    return [f"{kind}.{name}" for name in weights for kind in kinds]


def _check_there(checkpoint: Path, name: str, key: str) -> None:
    if not any((checkpoint / f"{name}{end}").exists() for end in (".safetensors", ".shards")):
        raise ConfigError(
            f"{checkpoint} was written without {name}, but the config has {key}; resume with the "
            "run's original config, or start a new run"
        )


def _random_file(ranks: TrainerRanks) -> str:
    return f"random-{ranks.rank:05d}.json"


def identity_of(
    model: PreTrainedModel, types: Mapping[str, torch.dtype] | None = None
) -> dict[str, Any]:
    """Return config, tensors and adapters of a model in no shards, as plain JSON: those of another
    must be the same for it to take a checkpoint of this one. `types` are those that its tensors are
    going to have, by name."""
    types = types or {}
    config = {k: v for k, v in model.config.to_dict().items() if k not in _NO_IDENTITY}
    tensors = {
        name: f"{str(types.get(name, value.dtype)).removeprefix('torch.')} {list(value.shape)}"
        for name, value in model.state_dict().items()
    }
    parts = {"config": config, "tensors": tensors, "adapter": identity(model, types)}
    return json.loads(json.dumps(parts, default=str))
