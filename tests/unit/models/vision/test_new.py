"""A new policy that sees begins so that it can learn to look.

What is asked for, what is seen and where it is must be of one size when they meet; with one of them
far below the others a small policy learnt to click some button, and for thousands of steps no more.

Mutants seen caught: the usual 0.02 in the text half, and the configuration's one range for patches
and places.
"""

from itertools import islice

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.config.run import MakePolicySection, MakeVisionSection
from agentrl.message import Image, ImageSpan
from agentrl.models.folders import make_images, make_model
from agentrl.models.vision.encoder_cache import EncoderCache
from agentrl.models.vision.model import SequenceImages, build_text_inputs
from agentrl.models.vision.processor import ImageProcessor
from agentrl_envs.visual import SeeButtonEnv
from agentrl_envs.visual.screen import ButtonScreen

VOCABULARY = 60
START, IMAGE, END = 50, 51, 52
FIRST, SECOND = 7, 8
"""Two words."""


def section_of(hidden: int, tower: int, patch: int) -> MakePolicySection:
    return MakePolicySection(
        hidden_size=hidden,
        layers=2,
        head_dim=16,
        intermediate_size=2 * hidden,
        vision=MakeVisionSection(
            hidden_size=tower,
            layers=1,
            intermediate_size=2 * tower,
            patch_size=patch,
            max_pixels=(6 * patch) ** 2,
        ),
    )


def new(section: MakePolicySection, seed: int = 0) -> PreTrainedModel:
    return make_model(
        section,
        vocab_size=VOCABULARY,
        eos_token_id=2,
        pad_token_id=0,
        context_tokens=64,
        seed=seed,
        image_token_ids=(START, IMAGE, END),
    )


def screens(side: int, count: int) -> list[Image]:
    env = SeeButtonEnv(width=side, height=side)
    return [
        ButtonScreen.from_plain(task.data["screen"]).picture()
        for task in islice(env.tasks("train"), count)
    ]


sizes = given(
    hidden=st.sampled_from([32, 64, 128, 256]),
    tower=st.sampled_from([32, 64, 128]),
    patch=st.sampled_from([8, 14, 16]),
    seed=st.integers(0, 1000),
)


@settings(max_examples=8)
@sizes
def test_a_patch_and_its_place_are_of_one_size(
    hidden: int, tower: int, patch: int, seed: int
) -> None:
    section = section_of(hidden, tower, patch)
    assert section.vision is not None
    images = make_images(section.vision, token_id=IMAGE)
    eye = new(section, seed).model.visual
    patches = [images.patches(image) for image in screens(6 * patch, 3)]
    with torch.no_grad():
        seen = eye.patch_embed(torch.cat([torch.from_numpy(one.values) for one in patches]))
        ratio = float(eye.pos_embed.weight.norm(dim=1).mean() / seen.norm(dim=1).mean())
    assert 0.3 < ratio < 3, "a place is lost in what is seen there, or the other way round"


def after_first_layer(
    model: PreTrainedModel, word: int, image: Image, images: ImageProcessor
) -> Tensor:
    """Return what the text half knows at the image's tokens after its first layer, (9, hidden)."""
    ids = (word, START, *[IMAGE] * 9, END)
    span = ImageSpan(image, 2, 11)
    shown = SequenceImages(0, torch.arange(len(ids)), (span,), EncoderCache(images))
    called = build_text_inputs(model, torch.tensor([ids]), [shown])
    with torch.no_grad():
        out = model.model.language_model(**called, output_hidden_states=True)
    return out.hidden_states[1][0, 2:11]


@settings(max_examples=8)
@sizes
def test_what_is_asked_for_is_felt_where_it_is_seen(
    hidden: int, tower: int, patch: int, seed: int
) -> None:
    section = section_of(hidden, tower, patch)
    assert section.vision is not None
    images = make_images(section.vision, token_id=IMAGE)
    model = new(section, seed)
    one, other = screens(6 * patch, 2)
    base = after_first_layer(model, FIRST, one, images)
    asked = after_first_layer(model, SECOND, one, images) - base
    seen = after_first_layer(model, FIRST, other, images) - base
    ratio = float(asked.norm() / seen.norm())
    assert ratio > 0.03, "another word changes next to nothing beside another image"
