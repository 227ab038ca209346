"""How often a training step cuts images up and encodes them, and that it learns the same by it.

Mutants seen caught: features of a tower that trains kept where they are differentiated, or after a
block of fixed weights; features by image alone, whatever tower made them; a batch whose end drops
nothing; a limit that counts nothing.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache as cached
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from agentrl.config.learn import AdamWSection, CriticSection, KlSection, LearnSection, LoraSection
from agentrl.config.learning.advantage import GaeAdvantage
from agentrl.config.run import WarmstartSection
from agentrl.learn.trainer import PolicyTrainer
from agentrl.learn.warmstart import TokenizedDemonstration, warmstart
from agentrl.message import Image
from agentrl.models.vision.encoder_cache import EncoderCache
from agentrl.models.vision.processor import ImageProcessor
from agentrl.task import Task
from agentrl.trajectory import Finished, Leaf, Node, Tree
from tests.support.vision_models import (
    FAMILIES,
    PAD,
    CountingProcessor,
    picture,
    processor,
    prompt,
    tiny,
)

TEXT = LoraSection(rank=2, targets=("q_proj", "v_proj"))
BOTH = LoraSection(rank=2, targets=("qkv", "q_proj"))
PICTURES = 5
"""Pictures of `tree_of`: one that all trajectories show, and two in each of two."""


def tree_of(family: str, version: int = 0) -> Tree:
    """Return two trajectories of two turns. What follows a turn shows a window of images: the last
    one again, and a new one."""
    tree = Tree(Task(prompt="q", id="t"))
    tokens, spans = prompt(family, [picture(1)], words=3)
    root = tree.add(_shown(tokens, spans, parent=None, turn=0))
    for sample in range(2):
        at, last = root, picture(1)
        for turn in range(3):
            at = tree.add(
                Node(
                    parent=at,
                    source="sampled",
                    token_ids=(3 + sample, 5 + turn, 7),
                    turn=turn,
                    logprobs=(-5.5,) * 3,
                    versions=(version,) * 3,
                )
            )
            if turn == 2:
                break
            new = picture(10 + 2 * sample + turn)
            tokens, spans = prompt(family, [last, new], seed=turn, words=3)
            at = tree.add(_shown(tokens, spans, parent=at, turn=turn + 1))
            last = new
        tree.end(Leaf(node=at, outcome=Finished(float(sample)), sample=sample))
    return tree


def _shown(tokens: tuple[int, ...], spans: Sequence[Any], *, parent: int | None, turn: int) -> Node:
    return Node(
        parent=parent,
        source="prompt" if parent is None else "tool",
        turn=turn,
        token_ids=tokens,
        images=tuple(span.image for span in spans),
        image_spans=tuple((span.start, span.stop) for span in spans),
    )


def section(family: str, **changes: Any) -> LearnSection:
    """Return settings under which every trajectory is a micro-batch of its own."""
    longest = max(len(one.token_ids) for one in tree_of(family).trajectories())
    return LearnSection(
        optimizer=AdamWSection(learning_rate=0.01), micro_batch_tokens=longest, **changes
    )


@contextmanager
def encodings(model: PreTrainedModel) -> Generator[list[tuple[bool, int]]]:
    """Collect, for each call of the vision tower of a model or of a copy that is made of it in the
    block, whether gradients are on, and the number of images."""
    calls: list[tuple[bool, int]] = []
    whole: Any = model

    def note(_: Any, arguments: Any, options: dict[str, Any]) -> None:
        calls.append((torch.is_grad_enabled(), len(options["grid_thw"])))

    handle = whole.model.visual.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield calls
    finally:
        handle.remove()


def count_step(family: str, **changes: Any) -> tuple[int, int, int]:
    """Return the numbers of images that the second step of a trainer encodes for its gradient, and
    otherwise, and cuts up. Nothing of an image is kept but by its cache."""
    model, cutter = tiny(family), CountingProcessor(family)
    images = ImageProcessor(cutter, token_id=PAD, kept_bytes=0)
    with encodings(model) as calls:
        trainer = PolicyTrainer(model, section(family, **changes), seed=0, images=images)
        trainer.step([tree_of(family)])
        calls.clear()
        cutter.count = 0
        trainer.step([tree_of(family, version=1)])
    graded = sum(count for with_gradient, count in calls if with_gradient)
    return graded, sum(count for _, count in calls) - graded, cutter.count


@pytest.mark.parametrize("family", FAMILIES)
def test_a_frozen_tower_encodes_each_image_of_a_batch_once(family: str) -> None:
    """Adapters of the text half; two updates of two epochs, scored before and by a reference."""
    several: dict[str, Any] = {"minibatches": 2, "epochs": 2, "kl": KlSection()}
    assert count_step(family, lora=TEXT, **several) == (0, PICTURES, PICTURES)


def test_a_tower_that_trains_encodes_an_image_once_per_micro_batch() -> None:
    """Each of two trajectories shows three different images, in five places. With a reference and
    the scores of a batch that is trained on twice, two towers encode five images more each."""
    assert count_step("qwen2_5_vl") == (6, 0, PICTURES)
    assert count_step("qwen2_5_vl", lora=BOTH) == (6, 0, PICTURES)
    again: dict[str, Any] = {"epochs": 2, "kl": KlSection()}
    assert count_step("qwen2_5_vl", **again) == (12, 2 * PICTURES, PICTURES)
    # Without its adapters the tower is another one.
    assert count_step("qwen2_5_vl", lora=BOTH, **again) == (12, 2 * PICTURES, PICTURES)
    # A critic scores with the weights of the batch's start, too.
    critic: dict[str, Any] = {"critic": CriticSection(), "advantage": GaeAdvantage(), "epochs": 2}
    assert count_step("qwen2_5_vl", **critic) == (12, PICTURES, PICTURES)


@pytest.mark.parametrize(
    "changes",
    [{"lora": TEXT}, {"lora": BOTH}, {}],
    ids=["text adapters", "adapters of both halves", "all weights"],
)
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_steps_are_those_without_a_cache(
    family: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics, among them log-ratios to the engine and to the reference, and weights."""
    learn = section(family, epochs=2, kl=KlSection(), **changes)

    def stepped() -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
        trainer = PolicyTrainer(tiny(family), learn, seed=0, images=processor(family))
        metrics = [trainer.step([tree_of(family, version=version)]) for version in range(2)]
        return metrics, {name: p.detach() for name, p in trainer.model.named_parameters()}

    found, weights = stepped()

    def takes_nothing(_: EncoderCache, count: int) -> bool:
        return False

    monkeypatch.setattr(EncoderCache, "_take", takes_nothing)
    want, plain = stepped()
    for one, other in zip(found, want, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-6)
    for name, weight in weights.items():
        torch.testing.assert_close(weight, plain[name], rtol=1e-3, atol=1e-4)


@cached
def frozen_model() -> PreTrainedModel:
    return tiny("qwen3_vl").requires_grad_(False)


@settings(max_examples=20, deadline=None)
@given(limit=st.integers(0, 8), order=st.permutations(range(6)))
def test_what_fits_is_kept_and_the_rest_is_made_again(limit: int, order: list[int]) -> None:
    frozen: Any = frozen_model()
    shown: list[Image] = [picture(seed) for seed in range(6)]
    once = EncoderCache(processor("qwen3_vl")).encode(frozen.model, shown)
    size = max(features.nbytes for features in once)
    kept = EncoderCache(processor("qwen3_vl"), keeps_patches=False, limit_bytes=limit * size)
    with encodings(frozen) as calls, kept.batch():
        kept.encode(frozen.model, shown)
        again = kept.encode(frozen.model, [shown[index] for index in order])
    for index, features in zip(order, again, strict=True):
        torch.testing.assert_close(features.embeddings, once[index].embeddings)
        torch.testing.assert_close(features.deep, once[index].deep)
    assert sum(count for _, count in calls) == 6 + max(0, 6 - limit)
    with encodings(frozen) as calls:  # after the batch, and outside of any
        for _ in range(2):
            kept.encode(frozen.model, shown)
    assert calls == [(False, 6), (False, 6)]


def test_features_are_those_of_the_tower_that_is_asked() -> None:
    """A policy and its frozen reference are kept side by side."""
    cache, image = EncoderCache(processor("qwen3_vl")), picture(1)
    models: list[Any] = [frozen_model(), tiny("qwen3_vl", seed=1).requires_grad_(False)]
    alone = [cache.encode(model.model, [image])[0].embeddings for model in models]
    assert not torch.allclose(alone[0], alone[1])
    with cache.batch():
        for _ in range(2):
            found = [cache.encode(model.model, [image])[0].embeddings for model in models]
            torch.testing.assert_close(found, alone)


def test_a_warm_start_cuts_an_image_up_once_per_step() -> None:
    """Two demonstrations that show the same images, in micro-batches of their own."""
    family = "qwen2_5_vl"
    cutter = CountingProcessor(family)
    tokens, spans = prompt(family, [picture(1), picture(2)])
    mask = (False,) * len(tokens) + (True,)
    shown = [TokenizedDemonstration((*tokens, said), mask, spans) for said in (11, 12)]
    warmstart(
        tiny(family),
        shown,
        WarmstartSection(demonstrations=2, steps=3, batch_size=2),
        seed=0,
        learn=LearnSection(micro_batch_tokens=len(mask)),
        images=ImageProcessor(cutter, token_id=PAD, kept_bytes=0),
    )
    assert cutter.count == 3 * 2
