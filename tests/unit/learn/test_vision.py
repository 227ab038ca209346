"""Training on what was seen: every way to split a batch gives the loss and gradient of one by one.

Mutants seen caught: positions of text alone, and two images for one in a tree.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.config.learn import AdamWSection, LayoutName, LearnSection, LoraSection
from agentrl.config.run import WarmstartSection
from agentrl.engine.local import LocalEngine
from agentrl.errors import ConfigError
from agentrl.learn.checkpoint import CheckpointManager, load
from agentrl.learn.layouts import LAYOUTS
from agentrl.learn.layouts.padded import PaddedLayout
from agentrl.learn.sample import TrainingSample, groups_of
from agentrl.learn.token_logprobs import score
from agentrl.learn.trainer import PolicyTrainer
from agentrl.learn.warmstart import TokenizedDemonstration, warmstart
from agentrl.message import Image
from agentrl.models.folders import load_images, load_model
from agentrl.models.vision.encoder_cache import EncoderCache
from agentrl.policy import GenerateRequest
from agentrl.task import Task
from agentrl.trajectory import Finished, Leaf, Node, Source, Tree
from tests.support.learning import model_of
from tests.support.vision_models import (
    FAMILIES,
    PAD,
    logits_of,
    picture,
    processor,
    prompt,
    shared,
    tiny,
)

CPU = torch.device("cpu")


def shown(family: str, images: Sequence[Image], seed: int, source: Source, **rest: Any) -> Node:
    """Return a node of words and images."""
    tokens, spans = prompt(family, images, seed=seed, words=3)
    return Node(
        source=source,
        token_ids=tokens,
        images=tuple(images),
        image_spans=tuple((span.start, span.stop) for span in spans),
        **rest,
    )


def tree_of(
    family: str, *, seed: int = 0, group: int = 3, version: int = 0, first: int | None = None
) -> Tree:
    """Return trajectories of one to three turns, with none to two images in what comes before each.

    One of them says the placeholder's id. `first` is another picture in the first one's place.
    """
    tree = Tree(Task(prompt="q", id=f"t{seed}"))
    opening = [picture(seed if first is None else first)] if seed % 3 else []
    root = tree.add(shown(family, opening, seed, "prompt", parent=None, turn=0))
    for sample in range(group):
        at = root
        for turn in range(1 + (seed + sample) % 3):
            said = (3 + sample, 5 + turn, PAD if sample == 1 else 9, 7)[: 2 + (sample + turn) % 3]
            at = tree.add(
                Node(
                    parent=at,
                    source="sampled",
                    token_ids=said,
                    turn=turn,
                    logprobs=(-5.5,) * len(said),
                    versions=(version,) * len(said),
                )
            )
            images = [picture(20 + turn), picture(30 + sample, 60, 90)][: (sample + turn) % 3]
            at = tree.add(shown(family, images, turn, "tool", parent=at, turn=turn + 1))
        tree.end(Leaf(node=at, outcome=Finished(float(sample)), sample=sample))
    return tree


def samples_of(trees: Sequence[Tree]) -> list[TrainingSample]:
    return [sample for group in groups_of(trees) for sample in group.samples]


def scored(
    family: str,
    model: PreTrainedModel,
    samples: Sequence[TrainingSample],
    *,
    limit_tokens: int,
    layout: LayoutName = "padded",
) -> list[Tensor]:
    """Return the log-probs of each sample's tokens that train, in their order."""
    laid = LAYOUTS[layout](limit_tokens, EncoderCache(processor(family)))
    found: dict[int, Tensor] = {}
    for chosen in laid.plan(samples):
        tokens = laid.tokens([samples[i] for i in chosen], device=CPU)
        logprobs = score(model, tokens, temperature=1.0, head_at_positions=True).logprobs
        for row, index in enumerate(chosen):
            found[index] = logprobs[row][tokens.mask[row]]
    return [found[index] for index in range(len(samples))]


def section(**changes: Any) -> LearnSection:
    return LearnSection(optimizer=AdamWSection(learning_rate=0.01), **changes)


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_are_those_of_a_plain_forward_pass(family: str) -> None:
    """Of each trajectory alone, given to transformers as its processor would."""
    samples = samples_of([tree_of(family, seed=seed) for seed in range(3)])
    plain = [s for s in samples if not (s.token_ids[s.sampled] == PAD).any()]
    assert {len(s.images) for s in plain} >= {0, 2, 3, 4}
    found = scored(family, shared(family), plain, limit_tokens=512)
    for sample, ours in zip(plain, found, strict=True):
        images = [span.image for span in sample.images]
        logits = logits_of(shared(family), family, sample.token_ids.tolist(), images)
        places = sample.mask.nonzero()[0]
        theirs = logits.log_softmax(-1)[places - 1, sample.token_ids[places]]
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_log_probs_do_not_depend_on_the_layout(family: str, layout: LayoutName) -> None:
    """Nor on how much goes into a pass. Two trees differ in one picture, and in no token."""
    trees = [tree_of(family, seed=seed, first=first) for seed in (1, 2) for first in (None, 8)]
    samples = samples_of(trees)
    alone = scored(family, shared(family), samples, limit_tokens=120)
    together = scored(family, tiny(family), samples, limit_tokens=4096, layout=layout)
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


def test_a_tree_computes_what_is_shared_once_and_an_image_is_shared_only_with_itself() -> None:
    family = "qwen2_5_vl"
    layout = LAYOUTS["tree"](4096, EncoderCache(processor(family)))
    same = samples_of([tree_of(family, seed=1, group=2), tree_of(family, seed=1, group=2)])
    other = samples_of(
        [tree_of(family, seed=1, group=2), tree_of(family, seed=1, first=8, group=2)]
    )
    once = layout.tokens(same[:2], device=CPU).inputs.numel()
    assert layout.tokens(same, device=CPU).inputs.numel() == once
    start = other[0].images[0].start
    assert layout.tokens(other, device=CPU).inputs.numel() == 2 * once - start


def gradient(
    family: str,
    model: PreTrainedModel,
    samples: Sequence[TrainingSample],
    layout: LayoutName = "padded",
) -> Tensor:
    """Return the gradient of the summed log-probs, all weights in one vector."""
    model.zero_grad()
    found = scored(family, model, samples, limit_tokens=4096, layout=layout)
    torch.cat(found).sum().backward()
    return torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()]
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_do_not_depend_on_what_shares_a_pass(family: str, layout: LayoutName) -> None:
    """The vision tower's too, whose images several trajectories share."""
    model = tiny(family)
    samples = samples_of([tree_of(family, seed=seed, group=2) for seed in range(2)])
    alone = torch.stack([gradient(family, model, [sample]) for sample in samples]).sum(0)
    together = gradient(family, model, samples, layout)
    torch.testing.assert_close(together, alone, atol=5e-4, rtol=1e-3)
    tower = [p for n, p in model.named_parameters() if "visual" in n]
    assert sum(float(p.grad.abs().sum()) for p in tower if p.grad is not None) > 0.1


@settings(max_examples=4, deadline=None)
@given(
    limit=st.integers(120, 1000),
    minibatches=st.integers(1, 2),
    layout=st.sampled_from(["padded", "packed", "tree"]),
)
def test_a_step_does_not_depend_on_micro_batches(
    limit: int, minibatches: int, layout: LayoutName
) -> None:
    family = "qwen2_5_vl"
    trees = [tree_of(family, seed=seed) for seed in range(2)]
    want = _stepped(family, trees, minibatches=minibatches, layout="padded")
    found = _stepped(
        family, trees, micro_batch_tokens=limit, minibatches=minibatches, layout=layout
    )
    for name in ("loss", "grad/norm", "entropy"):
        assert found[name] == pytest.approx(want[name], rel=2e-3, abs=1e-5)


def _stepped(family: str, trees: Sequence[Tree], **changes: Any) -> dict[str, float]:
    trainer = PolicyTrainer(tiny(family), section(**changes), seed=0, images=processor(family))
    return trainer.step(trees)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("targets", [("q_proj", "v_proj"), ("qkv", "q_proj"), None])
async def test_the_engine_samples_from_what_was_trained(
    family: str, targets: tuple[str, ...] | None
) -> None:
    """Two steps, of all weights, or of adapters in the text half or in both halves; then the
    engine's log-probs are those of the trainer's model, and of transformers' forward pass."""
    model = tiny(family)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    engine = LocalEngine(
        model, slots=2, context_tokens=256, prefill_tokens=32, images=processor(family)
    )
    lora = None if targets is None else LoraSection(rank=2, targets=targets)
    trainer = PolicyTrainer(model, section(lora=lora), seed=0, images=processor(family))
    for version in range(2):
        trainer.step([tree_of(family, seed=seed, version=version) for seed in range(2)])
    weights = trainer.weights()
    changed = {name for name, value in weights.items() if not torch.equal(value, before[name])}
    trains_vision = any(name.startswith("model.visual") for name in changed)
    assert trains_vision == (targets is None or "qkv" in targets)
    assert any(name.startswith("model.language_model") for name in changed)
    tokens, spans = prompt(family, [picture(1), picture(2)])
    async with engine:
        await engine.load(weights, trainer.version)
        request = GenerateRequest(id="a", prompt=tokens, max_new_tokens=10, images=spans)
        done = await engine.generate(request)
    plain = tiny(family, seed=9)
    plain.load_state_dict(weights)
    for judge in (model, plain):
        logits = logits_of(judge, family, (*tokens, *done.token_ids), [s.image for s in spans])
        logprobs = logits.log_softmax(-1)
        wanted = [float(logprobs[len(tokens) - 1 + i, t]) for i, t in enumerate(done.token_ids)]
        assert done.logprobs == pytest.approx(wanted, abs=1e-4)


class _Tokenizer:
    def save_pretrained(self, save_directory: Path) -> None:
        (save_directory / "tokenizer.json").write_text("{}")


@pytest.mark.parametrize("family", FAMILIES)
def test_checkpoints_go_on_where_they_were_and_are_model_folders(
    family: str, tmp_path: Path
) -> None:
    def trees(version: int) -> list[Tree]:
        return [tree_of(family, seed=seed, version=version) for seed in range(2)]

    made = PolicyTrainer(tiny(family), section(), seed=0, images=processor(family))
    made.step(trees(0))
    manager = CheckpointManager(
        folder=tmp_path, keep=1, tokenizer=_Tokenizer(), images=processor(family)
    )
    folder = manager.save(made, samplers={}, files={})
    again = PolicyTrainer(tiny(family, seed=5), section(), seed=0, images=processor(family))
    load(folder, again)
    assert made.step(trees(1)) == again.step(trees(1))
    for name, value in made.weights().items():
        assert torch.equal(value, again.weights()[name])
    model = load_model(folder, dtype="float32", device="cpu")
    images = load_images(folder, model)
    assert type(model) is type(made.model)
    assert images is not None
    assert images.token_id == PAD
    theirs, ours = (p.patches(picture(3)) for p in (images, processor(family)))
    assert theirs.grid == ours.grid
    assert (theirs.values == ours.values).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing_changes_nothing(family: str) -> None:
    trees = [tree_of(family, seed=seed) for seed in range(2)]
    want = _stepped(family, trees)
    found = _stepped(family, trees, gradient_checkpointing=True)
    assert found["grad/norm"] == pytest.approx(want["grad/norm"], rel=1e-4)


def test_a_warm_start_learns_what_only_the_image_tells() -> None:
    """Two pictures under the same words, two answers: without eyes the loss stays at log 2."""
    family = "qwen2_5_vl"
    dark, light = picture(1), picture(6)
    shown: list[TokenizedDemonstration] = []
    for image, answer in ((dark, 11), (light, 12)):
        tokens, spans = prompt(family, [image])
        mask = (False,) * len(tokens) + (True,)
        shown.append(TokenizedDemonstration((*tokens, answer), mask, spans))
    warm = WarmstartSection(demonstrations=2, steps=60, batch_size=2, learning_rate=3e-3)
    found = warmstart(tiny(family), shown, warm, seed=0, images=processor(family))
    assert found.last_loss < 0.1


def test_images_nobody_can_read_are_refused() -> None:
    family = "qwen3_vl"
    trees = [tree_of(family, seed=1)]
    with pytest.raises(ConfigError, match=r"no image processor"):
        PolicyTrainer(tiny(family), section(), seed=0).step(trees)
    tokens = PaddedLayout(4096, EncoderCache(processor(family))).tokens(
        samples_of(trees), device=CPU
    )
    with pytest.raises(ConfigError, match=r"supports images only for models of qwen2_vl"):
        score(model_of(), tokens, temperature=1.0, head_at_positions=True)
