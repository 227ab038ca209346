"""Weights that are proven: what is compared, what is decided, engines that lie, hang and break.

Mutants seen caught: a gap that is no number passes; the version is not compared; a gap counts on
one side only; one try more; a broken engine tries again; it does not go back before it tries again.
"""

import asyncio
import math
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor

from agentrl.chat.tokenizer import train_tokenizer
from agentrl.config.check import RULES
from agentrl.config.learn import LearnSection
from agentrl.config.run import ProbeSection, RunConfig
from agentrl.engine.local import LocalEngine
from agentrl.engine.remote import AddressEngine, EngineReplica, EngineServer, ProcessEngine
from agentrl.engine.remote.shared_weights import SharedWeights, path_of
from agentrl.engine.spec import EngineSpec
from agentrl.errors import EngineError, EngineLost, LearnError, WeightsUnproven
from agentrl.learn.trainer import PolicyTrainer
from agentrl.learn.weight_check import add_proof, probe_tokens
from agentrl.policy import GenerateRequest, ScoreRequest, Scores
from agentrl.weight_sync.check import CheckedWeights, WeightCheck, complaint, next_move
from tests.support.engine_models import VOCABULARY, tiny
from tests.support.learning import model_of, trees_of

DEADLINE_S = 200.0
PROOF = WeightCheck(token_ids=(3, 4, 5), logprobs=(-1.0, -2.0), max_gap=0.1, deadline_s=60.0)


def scores(*logprobs: float, version: int = 7) -> Scores:
    return Scores(logprobs=logprobs, version=version)


# --- what is compared -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (scores(-1.0, -2.0), None),
        (scores(-1.09, -2.09), None),
        (
            scores(-1.0, -2.2),
            r"token 2 .* of -2\.2, but the trainer gives -2; .* 0\.2 nats, and at most 0\.1",
        ),
        (scores(-0.8, -2.4), r"token 1 .* of -0\.8, .* the largest gap is 0\.4 nats"),
        (scores(-1.0, math.nan), "token 2 .* nan"),
        (scores(-math.inf, -2.0), "token 1 .* -inf"),
        (scores(-1.0), "1 of 2 tokens"),
        (scores(), "0 of 2 tokens"),
        (scores(-1.0, -2.0, version=6), "version 6 after it was given version 7"),
    ],
)
def test_what_is_wrong_with_scores(found: Scores, words: str | None) -> None:
    said = complaint(PROOF, found, version=7)
    if words is None:
        assert said is None
    else:
        assert said is not None
        assert re.search(words, said)


@given(st.lists(st.floats(-9, 9), min_size=2, max_size=2))
def test_a_gap_counts_on_either_side_and_at_every_token(shifts: Sequence[float]) -> None:
    found = scores(*(a + b for a, b in zip(PROOF.logprobs, shifts, strict=True)))
    gaps = [abs(a - b) for a, b in zip(found.logprobs, PROOF.logprobs, strict=True)]
    assert (complaint(PROOF, found, version=7) is None) == (max(gaps) <= 0.1)


def test_what_is_decided() -> None:
    assert [next_move("proven", tries=n) for n in (1, 2)] == ["keep", "keep"]
    assert [next_move("wrong", tries=n) for n in (1, 2, 3)] == ["try again", "replace", "replace"]
    assert [next_move("broken", tries=n) for n in (1, 2)] == ["replace", "replace"]


def test_a_proof_has_a_log_prob_for_every_token_but_the_first() -> None:
    for tokens, logprobs in (((1, 2), (-1.0, -2.0)), ((1,), ()), ((1, 2, 3), (-1.0,))):
        with pytest.raises(ValueError, match="each token except the first"):
            replace(PROOF, token_ids=tokens, logprobs=logprobs)


# --- engines that lie, hang and break -------------------------------------------------------------


Fault = str
"""Of one load: `fine`, `stale` (nothing is loaded), `lies`, `hangs`, `mute` (scoring hangs),
`fails`, `sick` (scoring fails), `dies`."""


class Double:
    """Serves an engine whose log-probs are its one weight, and whose loads go as they are told."""

    def __init__(self, number: int, faults: "deque[Fault]") -> None:
        self.name = f"double {number}"
        self.engine: Any = self
        self.is_open = True
        self.closed = False
        self._faults = faults
        self.loads: list[tuple[int, Fault]] = []
        self.value = 0.0
        self.version = 0
        self._now = "fine"

    async def load(self, weights: Path | SharedWeights, version: int) -> None:
        self._now = self._faults.popleft() if self._faults else "fine"
        self.loads.append((version, self._now))
        match self._now:
            case "hangs":
                await asyncio.Event().wait()
            case "fails":
                raise EngineError("the engine is broken")
            case "dies":
                self.is_open = False
                raise EngineLost("the double is gone")
            case _:
                pass
        self.version = version
        if self._now != "stale":
            self.value = float(load_file(path_of(weights))["w"][0])

    async def score(self, request: ScoreRequest) -> Scores:
        match self._now:
            case "mute":
                await asyncio.Event().wait()
            case "sick":
                raise EngineError("not finite")
            case _:
                pass
        value = self.value + (5.0 if self._now == "lies" else 0.0)
        return Scores(logprobs=(value,) * len(request.token_ids), version=self.version)

    async def pause(self) -> None: ...

    async def read_output(self) -> str:
        return "nothing"

    async def close(self) -> None:
        self.closed, self.is_open = True, False


class Doubles(EngineReplica):
    """Serves doubles, one after the other; `faults` are those of every load there will be."""

    def __init__(self, *faults: Fault, max_restarts: int = 3) -> None:
        super().__init__(max_restarts=max_restarts)
        self.faults = deque(faults)
        self.doubles: list[Double] = []

    async def start(self) -> Any:
        self.doubles.append(Double(len(self.doubles), self.faults))
        return self.doubles[-1]

    @property
    def loads(self) -> list[list[tuple[int, Fault]]]:
        return [double.loads for double in self.doubles]


def weights(value: float, *, deadline_s: float = 60.0) -> CheckedWeights:
    proof = replace(PROOF, logprobs=(value, value), deadline_s=deadline_s)
    return CheckedWeights({"w": torch.tensor([value])}, proof)


async def loaded(engine: Doubles, *, new: CheckedWeights | None = None) -> Doubles:
    """Load good weights as version 1, then others as version 2."""
    await engine.load(weights(-1.0), 1)
    await engine.load(new or weights(-2.0), 2)
    return engine


async def test_what_is_proven_is_kept_and_nothing_else_happens() -> None:
    engine = await loaded(Doubles())
    assert engine.loads == [[(1, "fine"), (2, "fine")]]
    assert (engine.version, engine.went_back) == (2, 0)


@pytest.mark.parametrize("fault", ["stale", "lies"])
async def test_an_engine_that_disproves_goes_back_and_tries_once_more(fault: Fault) -> None:
    engine = await loaded(Doubles("fine", fault))
    assert engine.loads == [[(1, "fine"), (2, fault), (1, "fine"), (2, "fine")]]
    assert (engine.version, engine.went_back) == (2, 1)
    assert engine.doubles[0].value == -2.0


@pytest.mark.parametrize(
    ("faults", "first"),
    [
        (("lies", "fine", "stale"), [(2, "lies"), (1, "fine"), (2, "stale")]),
        (("lies", "lies"), [(2, "lies"), (1, "lies")]),
        (("lies", "fails"), [(2, "lies"), (1, "fails")]),
        (("fails",), [(2, "fails")]),
        (("sick",), [(2, "sick")]),
        (("dies",), [(2, "dies")]),
    ],
)
async def test_one_that_is_beyond_help_is_replaced(
    faults: Sequence[Fault], first: list[tuple[int, Fault]]
) -> None:
    engine = await loaded(Doubles("fine", *faults))
    assert engine.loads == [[(1, "fine"), *first], [(2, "fine")]]
    assert engine.doubles[0].closed
    assert engine.served is engine.doubles[1]
    assert engine.version == 2


@pytest.mark.parametrize("fault", ["hangs", "mute"])
async def test_one_that_is_late_is_replaced_at_once(fault: Fault) -> None:
    async with asyncio.timeout(DEADLINE_S):
        engine = await loaded(Doubles("fine", fault), new=weights(-2.0, deadline_s=0.05))
    assert engine.loads == [[(1, "fine"), (2, fault)], [(2, "fine")]]
    assert engine.doubles[0].closed


async def test_weights_that_no_engine_proves_are_an_error_and_the_last_good_are_next() -> None:
    engine = Doubles("fine", "lies", "fine", "lies", "lies", "lies")
    with pytest.raises(
        WeightsUnproven, match=r"double 1 did not load version 2 .*after 2 tries: .*3"
    ):
        await loaded(engine)
    assert engine.version == 1
    assert all(double.closed for double in engine.doubles)
    assert (await engine.score(PROOF.request("a"))).logprobs == (-1.0, -1.0)
    assert engine.loads[2] == [(1, "fine")]


async def test_with_no_replacement_left_the_error_says_what_was_wrong() -> None:
    engine = Doubles("fine", "lies", "fine", "lies", max_restarts=0)
    with pytest.raises(WeightsUnproven, match=r"double 0 .* the largest gap is 5 nats"):
        await loaded(engine)
    with pytest.raises(EngineError, match=r"failed to load its weights.*not restarted any more"):
        await engine.score(PROOF.request("a"))


async def test_first_weights_have_nothing_to_go_back_to() -> None:
    engine = Doubles("lies")
    await engine.load(weights(-1.0), 1)
    assert engine.loads == [[(1, "lies"), (1, "fine")]]
    assert engine.went_back == 0


async def test_a_replacement_is_held_to_its_weights_too() -> None:
    engine = await loaded(Doubles())
    engine.doubles[0].is_open = False
    engine.faults.extend(["stale", "fine"])
    assert (await engine.score(PROOF.request("a"))).logprobs == (-2.0, -2.0)
    assert engine.loads[1] == [(2, "stale"), (2, "fine")]


async def test_weights_without_a_proof_and_engines_that_are_paused_are_believed() -> None:
    engine = Doubles("lies")
    await engine.load({"w": torch.tensor([-1.0])}, 1)
    assert engine.loads == [[(1, "lies")]]
    engine = Doubles()
    await engine.load(weights(-1.0), 1)
    engine.faults.append("mute")
    await engine.pause()
    async with asyncio.timeout(DEADLINE_S):
        await engine.load(weights(-2.0), 2)
    assert engine.loads == [[(1, "fine"), (2, "mute")]]


async def test_an_address_that_disproves_is_not_taken_for_one_that_is_away() -> None:
    local = LocalEngine(tiny("qwen3"), slots=2, context_tokens=64)
    wrong = CheckedWeights(
        tiny("qwen3", 1).state_dict(), replace(PROOF, logprobs=(-100.0, -100.0), max_gap=1.0)
    )
    async with asyncio.timeout(DEADLINE_S), local, EngineServer(local, key=b"k" * 16) as server:
        port = await server.listen("127.0.0.1", 0)
        async with AddressEngine(f"127.0.0.1:{port}", key=b"k" * 16) as engine:
            with pytest.raises(WeightsUnproven, match="connection to"):
                await engine.load(wrong, 3)
            assert engine.version == 0


# --- the trainer, and a real engine ---------------------------------------------------------------


def trainer_of(*, temperature: float = 1.0, **learn: Any) -> PolicyTrainer:
    section = LearnSection.model_validate({"micro_batch_tokens": 64, **learn})
    return PolicyTrainer(model_of(), section, seed=3, temperature=temperature)


SECTION = ProbeSection(tokens=12)


@pytest.mark.parametrize(
    ("temperature", "learn"),
    [
        (1.0, {}),
        (0.7, {"layout": "packed"}),
        (1.3, {"layout": "padded"}),
        (1.0, {"lora": {"rank": 2}}),
    ],
)
async def test_an_engine_proves_the_trainers_weights_after_a_step_and_no_others(
    temperature: float, learn: dict[str, Any]
) -> None:
    engine = LocalEngine(model_of(), slots=2, context_tokens=64)
    trainer = trainer_of(
        temperature=temperature, **learn, optimizer={"learning_rate": 0.02, "warmup_steps": 0}
    )
    for _ in range(2):
        trainer.step(trees_of(version=trainer.version))
    sent = add_proof(trainer, SECTION, max_gap=1e-3)
    assert isinstance(sent, CheckedWeights)
    assert sent.keys() == trainer.weights().keys()
    async with asyncio.timeout(DEADLINE_S), engine:
        await engine.load(trainer.weights(), 2)
        said = await engine.score(sent.proof.request("a"))
        assert complaint(sent.proof, said, version=2) is None
        await engine.load(model_of().state_dict(), 2)
        said = await engine.score(sent.proof.request("b"))
        assert "the largest gap is" in (complaint(sent.proof, said, version=2) or "")


def test_weights_that_are_not_finite_are_the_trainers_fault() -> None:
    trainer = trainer_of()
    with torch.no_grad():
        next(trainer.model.parameters()).fill_(math.nan)
    with pytest.raises(LearnError, match="not all finite; the policy has diverged"):
        add_proof(trainer, SECTION, max_gap=1e-3)


def test_the_probes_tokens_are_fixed_and_of_the_vocabulary() -> None:
    assert probe_tokens(40, vocabulary=12) == probe_tokens(40, vocabulary=12)
    assert set(probe_tokens(400, vocabulary=12)) == set(range(12))


async def test_a_process_is_replaced_over_weights_that_are_not_what_they_say(
    tmp_path: Path,
) -> None:
    train_tokenizer(["some words"], vocab_size=VOCABULARY, folder=tmp_path)
    tiny("qwen3").save_pretrained(tmp_path)
    recipe = EngineSpec(kind="local", folder=str(tmp_path), slots=4, context_tokens=128, threads=1)
    good, other = tiny("qwen3", 1), tiny("qwen3", 2)
    tokens = probe_tokens(9, vocabulary=VOCABULARY)
    proof = WeightCheck(
        token_ids=tokens,
        logprobs=logprobs_of(good.eval(), tokens),
        max_gap=1e-3,
        deadline_s=DEADLINE_S,
    )
    asked = GenerateRequest(id="a/0/0", prompt=(1, 2, 3), max_new_tokens=6, seed=4)
    async with asyncio.timeout(DEADLINE_S), ProcessEngine(recipe, max_restarts=2) as engine:
        first = engine.pid
        await engine.load(CheckedWeights(good.state_dict(), proof), 1)
        told = await engine.generate(asked)
        assert engine.pid == first
        with pytest.raises(WeightsUnproven, match=r"process \d+ did not load version 2"):
            await engine.load(CheckedWeights(other.state_dict(), proof), 2)
        assert engine.went_back == 1
        assert await engine.generate(asked) == told
        assert engine.pid != first


def logprobs_of(model: Callable[..., Any], tokens: Sequence[int]) -> tuple[float, ...]:
    with torch.no_grad():
        logits: Tensor = model(input_ids=torch.tensor([tokens])).logits[0, :-1]
    chosen = logits.log_softmax(-1).gather(-1, torch.tensor(tokens[1:]).unsqueeze(-1))
    return tuple(chosen.squeeze(-1).tolist())


# --- the config -----------------------------------------------------------------------------------


def config_of(**engine: Any) -> RunConfig:
    return RunConfig.model_validate({"env": {"id": "grid/Treasure-v0"}, "engine": engine})


def problems(**engine: Any) -> list[str]:
    found = [said for rule in RULES for said in rule(config_of(**engine))]
    return [said for said in found if said.startswith("engine.probe")]


def test_a_probe_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValidationError):
        ProbeSection(max_gap=0.0)
    (said,) = problems(probe={})
    assert said.startswith("engine.probe is set, but the engine runs in this process")
    (said,) = problems(probe={"tokens": 64}, context_tokens=64, processes=1)
    assert said.startswith("engine.probe.tokens is 64")
    assert problems(probe={}, processes=1) == []
