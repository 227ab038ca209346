"""Images in episodes and in runs: windows of screenshots, and a new policy that sees.

Mutants seen caught: images of a context not moved with it, a new context that withdraws nothing,
images not moved behind a note, what the template writes behind an image left beside the note.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

import agentrl
from agentrl.chat.dialects import DIALECTS
from agentrl.chat.format import NOTE, ChatFormat
from agentrl.chat.tokenizer import train_tokenizer
from agentrl.engine.local import LocalEngine
from agentrl.errors import ConfigError
from agentrl.learn.contexts import contexts
from agentrl.learn.sample import sample_of
from agentrl.message import Message
from agentrl.models.folders import make_images, make_model
from agentrl.models.vision.processor import ImageProcessor
from agentrl.policy import Completion, GenerateRequest
from agentrl.rollout.episode import EpisodeLimits, EpisodeRunner
from agentrl.task import Task
from agentrl.trajectory import Tree, Truncated
from agentrl_envs.visual import SeeButtonEnv
from tests.support.tiny_run import SEEING_POLICY, VISION, seeing_changes
from tests.support.vision_models import picture


def tokenizer_of(folder: Path) -> PreTrainedTokenizerFast:
    return train_tokenizer(["Missed. 1 2"], vocab_size=300, folder=folder, sees=True)


def parts(folder: Path) -> tuple[Any, ChatFormat, ImageProcessor]:
    """Return a model that sees, how it speaks, and what cuts up its images."""
    tokenizer = tokenizer_of(folder)
    names = DIALECTS["hermes"].image_tokens
    assert names is not None
    start, image, end = (tokenizer.added_tokens_encoder[name] for name in names)
    images = make_images(VISION, token_id=image)
    model = make_model(
        SEEING_POLICY,
        vocab_size=len(tokenizer),
        eos_token_id=2,
        pad_token_id=0,
        context_tokens=512,
        seed=0,
        image_token_ids=(start, image, end),
    )
    return model, ChatFormat(tokenizer, images=images), images


class Watched(LocalEngine):
    """An engine that keeps what it was asked."""

    asked: tuple[GenerateRequest, ...] = ()

    async def generate(self, request: GenerateRequest) -> Completion:
        self.asked = (*self.asked, request)
        return await super().generate(request)


async def played(
    folder: Path, keep: int | None, turns: int = 5
) -> tuple[Tree, Sequence[GenerateRequest]]:
    """Return an episode that misses every time and is shown its screen again."""
    model, chat, images = parts(folder)
    env = SeeButtonEnv(clicks=99)
    task = next(iter(env.tasks("train")))
    tree = Tree(task)
    engine = Watched(model, slots=2, context_tokens=512, images=images)
    async with engine:
        episode = EpisodeRunner(
            env,
            engine,
            chat,
            tree,
            sample=0,
            seed=0,
            limits=EpisodeLimits(
                max_turns=turns, max_turn_tokens=6, context_tokens=512, images=keep
            ),
        )
        leaf = await episode.run()
        tree.end(leaf)
        assert isinstance(leaf.outcome, Truncated), leaf.outcome
        return tree, engine.asked


@pytest.mark.parametrize("keep", [1, 2, 3])
async def test_a_window_keeps_the_last_images_and_notes_the_others(
    tmp_path: Path, keep: int
) -> None:
    tree, asked = await played(tmp_path, keep)
    _, chat, images = parts(tmp_path / "again")
    note = chat.encode(NOTE)
    _, everything = await played(tmp_path / "whole", None)
    assert len(asked) == len(everything) == 5
    for turn, (request, full) in enumerate(zip(asked, everything, strict=True)):
        assert len(full.images) == turn + 1
        assert len(request.images) == min(keep, turn + 1)
        dropped = turn + 1 - len(request.images)
        shown = [request.prompt[span.start : span.stop] for span in request.images]
        assert all({*tokens} == {images.token_id} for tokens in shown)
        text = request.prompt
        assert sum(text[i : i + len(note)] == note for i in range(len(text))) == dropped
        # A policy this young says the placeholder too: then it is a word of its own.
        said = [n for n in tree.nodes if n.source == "sampled" and n.turn < turn]
        words = sum(node.token_ids.count(images.token_id) for node in said)
        assert text.count(images.token_id) == sum(map(len, shown)) + words
        # A note stands in the place of the image and of what the template wraps it in.
        span = full.images[0].stop - full.images[0].start
        turns_alike = turn < keep
        if turns_alike:
            assert text == full.prompt
        else:
            starts = text.index(note[0])
            assert text[:starts] == full.prompt[: full.images[0].start - 1]
            after, behind = starts + len(note), full.images[0].stop + 1
            assert text[after : after + 4] == full.prompt[behind : behind + 4]
        assert span > 1


@pytest.mark.parametrize("keep", [1, 2, None])
async def test_every_sampled_token_trains_once_in_the_context_it_was_sampled_in(
    tmp_path: Path, keep: int | None
) -> None:
    tree, asked = await played(tmp_path, keep)
    sample = sample_of(tree, tree.leaves[0])
    assert sample is not None
    cut = contexts(sample)
    assert len(cut) == (1 if keep is None else 6 - keep)
    trained: Counter[int] = Counter()
    for context in cut:
        own = context.sample
        trained.update(context.places[own.mask].tolist())
        for turn in np.unique(own.turns[own.mask]):
            request = asked[int(turn)]
            first = int(np.flatnonzero(own.mask & (own.turns == turn))[0])
            assert tuple(own.token_ids[:first]) == request.prompt
            seen = tuple(span for span in own.images if span.stop <= first)
            assert seen == request.images
    assert trained == Counter(np.flatnonzero(sample.sampled).tolist())


async def test_a_chat_format_without_a_note_is_refused(tmp_path: Path) -> None:
    chat = ChatFormat(tokenizer_of(tmp_path))
    with pytest.raises(ConfigError, match=r"remove rollout.images"):
        _ = chat.image_note


def test_a_new_policy_that_sees_trains_and_goes_on(tmp_path: Path) -> None:
    """A run of two steps whose folder opens as a policy; then one more from its checkpoint."""
    changes = seeing_changes(tmp_path)
    first = agentrl.train("configs/see_button.yaml", changes)
    assert first.steps == 2
    names = {file.name for file in (first.folder / "policy").iterdir()}
    assert {"preprocessor_config.json", "model.safetensors", "tokenizer.json"} <= names
    more = agentrl.train("configs/see_button.yaml", {**changes, "run.steps": 3}, resume=True)
    assert more.steps == 3
    objects = [f for f in (first.folder / "store" / "objects").rglob("*") if f.is_file()]
    pictures = [f for f in objects if f.read_bytes().startswith(b"\x89PNG")]
    assert pictures, "the record holds what was shown"


def test_a_text_policy_plays_the_same_environment_in_words(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["red square"], vocab_size=300, folder=tmp_path)
    chat = ChatFormat(tokenizer)
    seen: Sequence[Message] = (Message("user", (picture(1), "Click.")),)
    with pytest.raises(ConfigError, match=r"supports no images"):
        chat.opening(seen)
    task = Task(prompt="Click.")
    assert chat.opening(task.messages)[0].images == ()


KILLED = """
import os, sys
import agentrl
from agentrl.engine.local import LocalEngine

own, asked = LocalEngine.generate, 0


async def generate(self, request):
    global asked
    if request.images and "/1/" in request.id[-4:]:
        asked += 1
        if asked == 6:
            os.kill(os.getpid(), 9)
    return await own(self, request)


LocalEngine.generate = generate
agentrl.train("configs/see_button.yaml", eval(sys.argv[1]))
"""


def test_a_run_killed_between_turns_goes_on_with_what_was_shown(tmp_path: Path) -> None:
    """Second turns are in flight when the process dies; they go on from their first turns, with the
    images read back from the store."""
    changes = seeing_changes(tmp_path) | {"run.steps": 1}
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    died = subprocess.run(
        [sys.executable, "-c", KILLED, repr(changes)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert died.returncode == -9, died.stderr
    result = agentrl.train("configs/see_button.yaml", changes, resume=True)
    assert result.steps == 1
    resumed = json.loads((result.folder / "summary.json").read_text())["resumed"]
    assert resumed["restored_turns"] > 0
