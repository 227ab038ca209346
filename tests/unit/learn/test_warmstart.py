"""Warm start and where its demonstrations come from. Mutants applied by hand and seen caught:

- mask inverted or ignored; loss summed in place of averaged: masked-loss test, first-loss test
- schedule: warm-up off by one, decay from the start, final fraction dropped: golden rates
- the stop rule: the last loss in place of ten, a sum, a lower bar, fewer than ten steps, no end;
  said to be reached always, or where none is asked for; the last tenth as its loss: the tests of it
- rows drawn with replacement: epoch test; seed ignored: determinism test
- precision: not rounded, masters rounded or not published, hooks left, frozen weights rounded, the
  type of the model not given back: tests of precision
- what is left of it: layers that train or recompute, gradients; an infinite last update told of
  none: tests of what it leaves, and of the last update
- conversion: actions masked out, answers learnt, trailing answers kept: golden demonstration
- recordings: open schema, bad line without its number, minimum_reward inverted: file tests
"""

import json
import math
from codecs import BOM_UTF8
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from agentrl.authoring.gold import GoldEpisode
from agentrl.chat.format import ChatFormat
from agentrl.chat.renderer import TokenSegment
from agentrl.chat.tokenizer import conversation_text, train_tokenizer
from agentrl.config.learn import LearnSection, Precision
from agentrl.config.run import MakePolicySection, WarmstartSection
from agentrl.env import Action, Observation, ToolSchema, call, say
from agentrl.errors import ConfigError, LearnError
from agentrl.learn.demonstrate import DemonstrationTurns, demonstrations
from agentrl.learn.recording import ConversationRecording, read_recordings, write_recordings
from agentrl.learn.warmstart import (
    TokenizedDemonstration,
    WarmstartSummary,
    learning_rate,
    warmstart,
)
from agentrl.message import Message
from agentrl.models.folders import make_model
from agentrl.models.precision import round_to
from agentrl.task import Task

VOCABULARY = 16
HALF = LearnSection(precision="bfloat16")
SECTION = MakePolicySection(
    hidden_size=16, layers=1, heads=2, kv_heads=2, head_dim=8, intermediate_size=32
)


def small(seed: int = 0) -> Any:
    """Return a one-layer Qwen3 with random weights."""
    return make_model(
        SECTION, vocab_size=VOCABULARY, eos_token_id=1, pad_token_id=0, context_tokens=32, seed=seed
    )


def copying(count: int, *, seed: int = 0) -> list[TokenizedDemonstration]:
    """Return demonstrations of saying a letter again, after a separator and with an end."""
    letters = np.random.default_rng(seed).integers(4, VOCABULARY, count)
    mask = (False, False, True, True)
    return [TokenizedDemonstration((2, int(x), int(x), 1), mask) for x in letters]


def weights(model: Any) -> list[Tensor]:
    """Return a copy of the weights."""
    return [p.detach().clone() for p in model.parameters()]


def test_new_weights_are_as_wide_as_asked_for() -> None:
    section = SECTION.model_copy(update={"hidden_size": 64, "initializer_range": 0.1})
    model = make_model(
        section, vocab_size=256, eos_token_id=1, pad_token_id=0, context_tokens=32, seed=0
    )
    embedding = weights(model)[0]
    assert embedding.shape == (256, 64)
    assert float(embedding.std()) == pytest.approx(0.1, rel=0.05)


def test_a_warm_start_learns_the_demonstrations() -> None:
    model = small()
    seen: list[tuple[int, float, int]] = []

    def on_step(step: int, loss: float, tokens: int) -> None:
        seen.append((step, loss, tokens))

    section = WarmstartSection(steps=60, batch_size=16, learning_rate=1e-2, warmup_steps=5)
    summary = warmstart(model, copying(64), section, seed=0, on_step=on_step)
    assert summary.first_loss == pytest.approx(math.log(VOCABULARY), rel=0.05)
    assert summary.last_loss < 0.1
    assert summary.steps == 60
    assert summary.trained_tokens == 60 * 16 * 2
    assert [(step, tokens) for step, _, tokens in seen] == [(k, 32) for k in range(1, 61)]
    assert np.mean([loss for _, loss, _ in seen[-6:]]) == pytest.approx(summary.last_loss)
    with torch.no_grad():
        said = model(input_ids=torch.tensor([[2, 7], [2, 11]])).logits[:, -1].argmax(dim=-1)
    assert said.tolist() == [7, 11]


def told(section: WarmstartSection) -> tuple[list[float], WarmstartSummary]:
    """Return the loss of every step of a warm start, and what it says of itself."""
    losses: list[float] = []
    summary = warmstart(
        small(),
        copying(64),
        section,
        seed=0,
        on_step=lambda step, loss, tokens: losses.append(loss),
    )
    return losses, summary


def computed_in(model: Any) -> set[torch.dtype]:
    """Return a set that gets the type of each forward pass from now on."""
    types: set[torch.dtype] = set()

    def note(module: Any, arguments: Any, output: Any) -> None:
        types.add(output.last_hidden_state.dtype)

    model.get_decoder().register_forward_hook(note)
    return types


@pytest.mark.parametrize("held", ["float32", "bfloat16"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_warm_start_computes_in_its_precision_and_gives_the_model_back_in_its_own(
    held: str, precision: Precision
) -> None:
    model = small()
    round_to(model, cast("Precision", held))
    types = computed_in(model)
    section = WarmstartSection(steps=60, batch_size=16, learning_rate=1e-2, warmup_steps=5)
    summary = warmstart(
        model, copying(64), section, seed=0, learn=LearnSection(precision=precision)
    )
    assert types == {getattr(torch, precision)}
    assert summary.last_loss < 0.1
    assert {parameter.dtype for parameter in model.parameters()} == {getattr(torch, held)}
    with torch.no_grad():
        said = model(input_ids=torch.tensor([[2, 7], [2, 11]])).logits[:, -1].argmax(dim=-1)
    assert said.tolist() == [7, 11]
    model(input_ids=torch.tensor([[2, 7]])).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_updates_that_bfloat16_would_lose_are_kept_in_the_warm_start() -> None:
    section = WarmstartSection(steps=3, batch_size=8, learning_rate=1e-6, warmup_steps=0)
    moved: list[Tensor] = []
    for precision in get_args(Precision):
        model = small()
        before = weights(model)
        warmstart(model, copying(64), section, seed=0, learn=LearnSection(precision=precision))
        pairs = zip(weights(model), before, strict=True)
        moved.append(torch.cat([(after - start).flatten() for after, start in pairs]))
    exact, rounded = moved
    # Three steps of at most 1e-6, where weights of bfloat16 are 1e-4 and more from each other.
    assert float(rounded.abs().max()) < 1e-5
    assert float((exact.sign() == rounded.sign()).float().mean()) > 0.9


def test_layers_that_are_recomputed_learn_the_same() -> None:
    section = WarmstartSection(steps=3, batch_size=8, learning_rate=1e-2, warmup_steps=0)
    plain, recomputed = small(), small()
    layer: Any = recomputed.model.layers[0]
    calls: list[bool] = []

    def note(module: Any, arguments: Any, output: Any) -> None:
        calls.append(torch.is_grad_enabled())

    layer.self_attn.register_forward_hook(note)
    warmstart(plain, copying(64), section, seed=0)
    learn = LearnSection(gradient_checkpointing=True)
    warmstart(recomputed, copying(64), section, seed=0, learn=learn)
    pairs = zip(weights(plain), weights(recomputed), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert calls.count(True) == 2 * section.steps, "the backward pass calls it again"
    assert not layer.training


class Interrupted(Exception):
    """Raised between two steps."""


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_warm_start_leaves_nothing_of_itself_at_the_model(is_interrupted: bool) -> None:
    model = small()
    model(input_ids=torch.tensor([[2, 7]])).logits.sum().backward()

    def on_step(step: int, loss: float, tokens: int) -> None:
        if is_interrupted:
            raise Interrupted

    section = WarmstartSection(steps=2, batch_size=8, warmup_steps=0)
    learn = LearnSection(gradient_checkpointing=True)
    with pytest.raises(Interrupted) if is_interrupted else nullcontext():
        warmstart(model, copying(64), section, seed=0, learn=learn, on_step=on_step)
    assert not any(module.training for module in model.modules())
    assert not any(getattr(m, "gradient_checkpointing", False) for m in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_gradients_of_before_are_not_learnt() -> None:
    section = WarmstartSection(steps=1, batch_size=8, warmup_steps=0)
    fresh, used = small(), small()
    used(input_ids=torch.tensor([[2, 7]])).logits.sum().backward()
    for model in (fresh, used):
        warmstart(model, copying(64), section, seed=0)
    pairs = zip(weights(fresh), weights(used), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_gradient_that_is_not_finite_ends_the_warm_start_and_is_gone() -> None:
    model = small()
    with torch.no_grad():
        model.get_input_embeddings().weight[2] = torch.nan
    section = WarmstartSection(steps=2, batch_size=8, warmup_steps=0)
    with pytest.raises(LearnError, match="the gradient norm of warm-start step 1 is nan; lower"):
        warmstart(model, copying(64), section, seed=0)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("precision", get_args(Precision))
def test_a_last_update_that_makes_infinite_weights_is_an_error(precision: Precision) -> None:
    section = WarmstartSection(steps=1, batch_size=8, learning_rate=1e39, warmup_steps=0)
    with pytest.raises(LearnError, match=r"not finite; lower warmstart.learning_rate=1e\+39"):
        warmstart(small(), copying(64), section, seed=0, learn=LearnSection(precision=precision))


def test_frozen_weights_keep_every_digit_through_a_rounded_warm_start() -> None:
    model = small()
    embedding = model.get_input_embeddings().weight.requires_grad_(False)
    before = embedding.detach().clone()
    section = WarmstartSection(steps=2, batch_size=8, learning_rate=1e-2, warmup_steps=0)
    warmstart(model, copying(64), section, seed=0, learn=HALF)
    assert torch.equal(model.get_input_embeddings().weight, before)


FAST = WarmstartSection(steps=120, batch_size=4, learning_rate=1e-2, warmup_steps=5)


def test_a_warm_start_ends_where_ten_steps_have_the_loss_that_is_wanted() -> None:
    plain, whole = told(FAST)
    assert (whole.steps, whole.reached) == (120, None)
    means = {step: float(np.mean(plain[step - 10 : step])) for step in range(10, 121)}
    wanted = min(mean for step, mean in means.items() if step <= 40)
    first = min(step for step, mean in means.items() if mean <= wanted)
    assert min(plain[: first - 1]) < wanted, "a single step was as low before"
    losses, stopped = told(FAST.model_copy(update={"until_loss": wanted * (1 + 1e-9)}))
    # The rate falls over the last steps there could be, not over the last there were.
    assert losses == plain[:first]
    assert (stopped.steps, stopped.reached) == (first, True)
    assert stopped.last_loss == pytest.approx(wanted)
    assert stopped.first_loss == plain[0]


def test_a_warm_start_that_does_not_come_so_far_says_so() -> None:
    losses, summary = told(FAST.model_copy(update={"steps": 30, "until_loss": 1e-6}))
    assert (len(losses), summary.steps, summary.reached) == (30, 30, False)
    assert summary.last_loss == pytest.approx(np.mean(losses[-10:]))
    # From any loss ten steps are the fewest.
    losses, summary = told(FAST.model_copy(update={"until_loss": 100.0}))
    assert (len(losses), summary.reached) == (10, True)


def test_the_same_seed_gives_the_same_weights_whatever_the_global_random_state() -> None:
    section = WarmstartSection(steps=4, batch_size=8)

    def trained(seed: int, limit: int = 8192) -> list[Tensor]:
        model = small()
        torch.manual_seed(np.random.default_rng().integers(1000))
        warmstart(
            model, copying(32), section, seed=seed, learn=LearnSection(micro_batch_tokens=limit)
        )
        return weights(model)

    first = trained(0)
    assert all(map(torch.equal, first, trained(0)))
    assert not all(map(torch.equal, first, trained(1)))
    for one, other in zip(first, trained(0, limit=9), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=0)


def test_demonstrations_that_share_a_beginning_are_learnt_alike_in_any_layout() -> None:
    rows = [
        TokenizedDemonstration((2, 3, 5, 7, int(x), 9, int(x), 1), (False,) * 5 + (True,) * 3)
        for x in np.random.default_rng(0).integers(4, VOCABULARY, 32)
    ]
    trained: list[list[Tensor]] = []
    losses: list[list[float]] = []
    for layout in ("padded", "packed", "tree"):
        model, seen = small(), list[float]()
        section = WarmstartSection(steps=4, batch_size=8, warmup_steps=1, layout=layout)
        warmstart(
            model, rows, section, seed=0, on_step=lambda step, loss, n, to=seen: to.append(loss)
        )
        trained.append(weights(model))
        losses.append(seen)
    assert losses[0][0] > losses[0][-1]
    for other in losses[1:]:
        assert losses[0] == pytest.approx(other, abs=1e-4)
    for others in trained[1:]:
        for one, other in zip(trained[0], others, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=5e-4)


def test_only_what_is_under_the_mask_is_learnt() -> None:
    section = WarmstartSection(steps=1, batch_size=1, warmup_steps=0)
    model, other = small(), small()
    mask = (False, True, False, False)
    first = warmstart(model, [TokenizedDemonstration((2, 5, 6, 7), mask)], section, seed=0)
    warmstart(other, [TokenizedDemonstration((2, 5, 9, 9), mask)], section, seed=0)
    assert first.trained_tokens == 1
    assert all(map(torch.equal, weights(model), weights(other)))


def test_every_demonstration_comes_once_before_any_comes_again() -> None:
    # The loss of a demonstration tells it apart: masks of 1, 2, 4, 8 and 16 tokens.
    rows = [
        TokenizedDemonstration((2,) * (n + 1), (False,) + (True,) * n) for n in (1, 2, 4, 8, 16)
    ]
    section = WarmstartSection(steps=10, batch_size=1)
    tokens: list[int] = []
    warmstart(small(), rows, section, seed=0, on_step=lambda step, loss, n: tokens.append(n))
    assert sum(tokens[:5]) == sum(tokens[5:]) == 31
    assert tokens[:5] != tokens[5:]
    section = WarmstartSection(steps=1, batch_size=32)
    assert warmstart(small(), rows, section, seed=0).trained_tokens == 31


def test_the_schedule_golden() -> None:
    section = WarmstartSection(
        steps=100, warmup_steps=10, learning_rate=1.0, final_learning_rate_fraction=0.1
    )
    # Steps 1 to 10 rise, 71 to 100 fall from 1 to a tenth.
    found = [learning_rate(step, section) for step in (1, 5, 10, 11, 70, 85, 100)]
    assert found == pytest.approx([0.1, 0.5, 1.0, 1.0, 1.0, 0.55, 0.1])
    assert learning_rate(1, WarmstartSection(steps=10, warmup_steps=0, learning_rate=2.0)) == 2.0


def test_decay_of_weights_and_clipping_of_gradients_reach_the_optimiser() -> None:
    def trained(**knobs: float) -> list[Tensor]:
        model = small()
        section = WarmstartSection.model_validate({"steps": 3, "batch_size": 8, **knobs})
        warmstart(model, copying(8), section, seed=0)
        return weights(model)

    plain = trained()
    assert not torch.equal(plain[0], trained(weight_decay=0.5)[0])
    # AdamW forgets the scale of gradients, up to its epsilon: the clip has to be tiny to show.
    assert not torch.equal(plain[0], trained(max_grad_norm=1e-7)[0])


def test_nothing_to_learn_is_an_error() -> None:
    with pytest.raises(
        LearnError, match=r"no demonstrations for the warm start; check warmstart\.demonstrations"
    ):
        warmstart(small(), [], WarmstartSection(), seed=0)
    with pytest.raises(ValueError, match="mask has 0 tokens"):
        TokenizedDemonstration((1, 2), (False, False))
    with pytest.raises(ValueError, match="begins with the first one"):
        TokenizedDemonstration((1, 2), (True, False))
    with pytest.raises(ValueError, match="2 tokens but a mask of 1"):
        TokenizedDemonstration((1, 2), (True,))


class LetterChat:
    """A chat format of one token per letter; `<` opens what is read, `>` ends a turn."""

    stop_token_ids = frozenset({ord(">")})

    def opening(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> tuple[TokenSegment, ...]:
        names = "".join(tool["name"] for tool in tools)
        return (TokenSegment("prompt", self._read([Message("system", names), *messages])),)

    def reply(
        self,
        messages: Sequence[Message],
        *,
        ended: bool,
        tools: Sequence[ToolSchema] | None = None,
    ) -> tuple[TokenSegment, ...]:
        assert ended
        names = "".join(f"+{tool['name']}" for tool in tools or ())
        read = self._read(messages) + tuple(map(ord, names))
        return (TokenSegment("tool", read), TokenSegment("template", (ord("|"),)))

    def write(self, action: Action) -> tuple[int, ...]:
        calls = "".join(f"{c.name}{json.dumps(dict(c.arguments))}" for c in action.tool_calls)
        return tuple(map(ord, f"{action.text}{calls}>"))

    def parse(self, token_ids: Sequence[int]) -> Action:
        text = "".join(map(chr, token_ids))
        return replace(call("mul", a=2), text=text) if "{" in text else Action(text)

    def _read(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return tuple(map(ord, "".join(f"<{message.text}" for message in messages)))


def marked(demonstration: TokenizedDemonstration) -> tuple[str, str]:
    """Return the text, and the same with a dot for everything that is not learnt."""
    text = "".join(map(chr, demonstration.token_ids))
    pairs = zip(text, demonstration.mask, strict=True)
    return text, "".join(letter if learnt else "." for letter, learnt in pairs)


MUL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "mul",
        "description": "Double a number.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}

GOLD = GoldEpisode(
    task=Task(prompt="2*3?", id="t"),
    opening=Observation((Message("user", "2*3?"),), tools=({"name": "mul"},)),
    actions=(call("mul", a=2), say("6")),
    replies=(
        Observation((Message("tool", "six", tool_call_id="call_0", name="mul"),)),
        Observation((Message("user", "right"),)),
    ),
    reward=1.0,
)


def test_a_gold_episode_as_a_demonstration_golden() -> None:
    (found,) = demonstrations([DemonstrationTurns.from_gold(GOLD)], LetterChat(), context_tokens=64)
    assert marked(found) == (
        '<mul<2*3?mul{"a": 2}><six|6>',
        '.........mul{"a": 2}>.....6>',
    )


def test_a_gold_episode_may_have_no_last_answer() -> None:
    guess = GoldEpisode(
        task=GOLD.task, opening=GOLD.opening, actions=(say("5"),), replies=(), reward=0.0
    )
    (found,) = demonstrations(
        [DemonstrationTurns.from_gold(guess)], LetterChat(), context_tokens=64
    )
    assert marked(found) == ("<mul<2*3?5>", ".........5>")


def test_new_tools_are_read_where_they_are_announced() -> None:
    replies = (replace(GOLD.replies[0], tools=({"name": "add"},)), GOLD.replies[1])
    changed = DemonstrationTurns.from_gold(replace(GOLD, replies=replies))
    (found,) = demonstrations([changed], LetterChat(), context_tokens=64)
    assert marked(found)[0] == '<mul<2*3?mul{"a": 2}><six+add|6>'


def test_the_learnt_tokens_are_what_the_engine_would_have_sampled(tmp_path: Path) -> None:
    gold = DemonstrationTurns.from_gold(replace(GOLD, opening=replace(GOLD.opening, tools=(MUL,))))
    messages = (*gold.opening, *(m for a, answers in gold.turns for m in (a.message, *answers)))
    text = conversation_text(messages, gold.tools, template="hermes")
    tokenizer = train_tokenizer([text], vocab_size=400, folder=tmp_path, template="hermes")
    chat = ChatFormat(tokenizer)
    (found,) = demonstrations([gold], chat, context_tokens=1000)
    turns = "".join("x" if learnt else " " for learnt in found.mask).split()
    assert len(turns) == 2
    learnt = [t for t, own in zip(found.token_ids, found.mask, strict=True) if own]
    first = chat.parse(learnt[: len(turns[0])])
    assert (first.tool_calls[0].name, first.tool_calls[0].arguments) == ("mul", {"a": 2})
    assert chat.parse(learnt[len(turns[0]) :]).text == "6"
    assert learnt[-1] in chat.stop_token_ids
    assert found.token_ids[-1] == learnt[-1]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('<tool_call>\n{"name": "mul", "arguments": {"a": 1}}\n</tool_call>', 2),
        ("<tool_call> add", 2),
        ("<think> hm", 0),
    ],
)
def test_a_text_that_is_read_as_a_call_is_an_error(text: str, count: int, tmp_path: Path) -> None:
    """As the name of an element on a hostile page may be."""
    action = replace(GOLD.actions[0], text=text)
    hostile = DemonstrationTurns.from_gold(replace(GOLD, actions=(action, GOLD.actions[1])))
    tokenizer = train_tokenizer([text], vocab_size=400, folder=tmp_path, template="hermes")
    says = f"turn 1 of .*'t' has 1 calls, but is read as {count}.*got '{text[:5]}"
    with pytest.raises(ConfigError, match=says):
        demonstrations([hostile], ChatFormat(tokenizer), context_tokens=1000)


def test_a_conversation_longer_than_the_context_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"task 't' has 28 tokens.*context_tokens=27"):
        demonstrations([DemonstrationTurns.from_gold(GOLD)], LetterChat(), context_tokens=27)


LINE: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "2*3?"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "call_0", "name": "mul", "arguments": {"a": 2}}],
        },
        {"role": "tool", "tool_call_id": "call_0", "name": "mul", "content": "six"},
        {"role": "assistant", "content": "6"},
        {"role": "user", "content": "right"},
    ],
    "tools": [{"name": "mul"}],
    "reward": 1.0,
}


def test_a_recording_is_the_same_demonstration_as_the_gold_episode() -> None:
    recorded = DemonstrationTurns.from_recording(
        ConversationRecording.model_validate(LINE), "recording 1"
    )
    chat = LetterChat()
    assert demonstrations([recorded], chat, context_tokens=64) == demonstrations(
        [DemonstrationTurns.from_gold(GOLD)], chat, context_tokens=64
    )


def test_recordings_survive_a_file(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    recordings = [
        ConversationRecording.model_validate(LINE | {"reward": r}) for r in (None, 0.2, 0.9)
    ]
    write_recordings(path, recordings)
    path.write_text(path.read_text() + "\n\n")
    assert list(read_recordings(path)) == recordings
    assert list(read_recordings(path, minimum_reward=0.5)) == recordings[2:]


def calling(argument: Any) -> dict[str, Any]:
    """Return messages with a call that has such an argument."""
    call = {"id": "c", "name": "multiply", "arguments": {"a": argument}}
    answer = {"role": "tool", "tool_call_id": "c", "name": "multiply", "content": "1"}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    return {"messages": [{"role": "user", "content": "q"}, said, answer]}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"extra": 1}, "line 2: extra: Extra inputs"),
        ({"reward": "much"}, "line 2: reward: "),
        ({"messages": [{"role": "user", "content": "hi"}]}, "no assistant message"),
        ({"messages": LINE["messages"][1:]}, "starts with an assistant message"),
        ({"messages": LINE["messages"][:2] + LINE["messages"][3:]}, "messages 1 and 2 are both"),
        ({"messages": [{"role": "robot", "content": ""}]}, r"messages\.0: .*'robot'"),
        ({"messages": [{"role": "user", "content": "", "name": "x"}]}, r"messages\.0\.user\.name"),
        (
            calling(math.nan),
            r"messages\.1\.assistant\.tool_calls\.0\.arguments: a number .* finite",
        ),
    ],
)
def test_what_is_no_recording_names_file_line_and_key(
    tmp_path: Path, change: dict[str, Any], complaint: str
) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps(LINE) + "\n" + json.dumps(LINE | change) + "\n")
    with pytest.raises(ConfigError, match=complaint) as caught:
        read_recordings(path)
    assert str(path) in str(caught.value)


def test_a_broken_line_and_a_missing_file_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    with pytest.raises(ConfigError, match="is not a file"):
        read_recordings(path)
    path.write_text('{"messages": ')
    with pytest.raises(ConfigError, match="line 1: Invalid JSON"):
        read_recordings(path)


def test_a_recording_that_is_not_utf_8_names_its_line_and_a_mark_before_it_is_none(
    tmp_path: Path,
) -> None:
    path = tmp_path / "own.jsonl"
    line = json.dumps(LINE, ensure_ascii=False).encode()
    path.write_bytes(BOM_UTF8 + line + b"\n")
    assert [*read_recordings(path)] == [ConversationRecording.model_validate(LINE)]
    path.write_bytes(line + b"\n" + line.replace(b"reward", b"rew\xe9rd") + b"\n")
    with pytest.raises(ConfigError, match=r"own\.jsonl, line 2: Invalid JSON"):
        read_recordings(path)


def test_a_turn_with_many_answers_is_read_in_one_go() -> None:
    """Copied for each of them, they took minutes."""
    entries = [*LINE["messages"], *({"role": "user", "content": "no"} for _ in range(100_000))]
    recording = ConversationRecording.model_validate(LINE | {"messages": entries})
    turns = DemonstrationTurns.from_recording(recording, "long").turns
    assert len(turns[-1][1]) == 100_001
