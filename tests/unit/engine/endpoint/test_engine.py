"""A server that somebody else started as the engine: what it is asked, what is believed, and when.

The server is in this event loop; tests/system/with_vllm/test_endpoint.py asks vLLM's.

Mutants seen caught: one seed for every place; a penalty left to the server; prompts not compared;
log-probs not counted; tokens of no vocabulary; greedy log-probs as told; all alternatives; tokens
after a stop string; ends that nobody asked for; tries counted over progress; a pause that holds
nothing back; raw log-probs, or logits, that pass; contexts that are not compared.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from agentrl.engine.endpoint import CompletionsEngine
from agentrl.engine.endpoint.completion_reader import CompletionDelta
from agentrl.engine.endpoint.request import EndpointRequest
from agentrl.errors import ConfigError, EngineError, EngineLost
from agentrl.policy import PolicyEngine, Sampling, ScoringEngine
from agentrl.policy import ScoreRequest as Asked
from agentrl.testing.engine import check_engine
from tests.support.completions_server import (
    CONTEXT_TOKENS,
    PROMPT,
    VOCABULARY,
    Server,
    asking,
    check_said,
    expected,
    letters,
    logprobs_after,
    request,
    served,
    settings,
    weights,
)

# --- what is asked, and what comes of it ----------------------------------------------------------


async def test_everything_that_shapes_the_distribution_is_said(tmp_path: Path) -> None:
    server = Server()
    async with asking(server, tmp_path) as engine:
        assert isinstance(engine, PolicyEngine)
        assert isinstance(engine, ScoringEngine)
        server.bodies.clear()
        done = await engine.generate(request(5, stop_token_ids=frozenset({9, 2}), top_logprobs=3))
    (body,) = server.bodies
    assert isinstance(body.pop("seed"), int)
    assert body == {
        "model": "base",
        "prompt": [3, 1, 4],
        "max_tokens": 12,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logprobs": 3,
        "ignore_eos": True,
        "stop_token_ids": [2, 9],
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "skip_special_tokens": False,
    }
    check_said(done, {0: 0.0})
    assert done.entropies == ()
    assert done.prompt_cached_tokens == 2
    for last, top in zip([4, *done.token_ids], done.top_logprobs, strict=False):
        row = logprobs_after(last)
        assert [token for token, _ in top] == np.argsort(-row)[:3].tolist()


async def test_the_promises_of_an_engine(tmp_path: Path) -> None:
    server = Server()
    async with asking(server, tmp_path) as engine:
        proven = await check_engine(
            engine,
            vocab_size=VOCABULARY,
            context_tokens=CONTEXT_TOKENS,
            weights=weights(0.5),
            is_server=True,
        )
    assert "tokens carry the version that sampled them" in proven
    assert "what was sampled is scored as it was sampled" in proven
    assert not any("interrupted" in promise for promise in proven)
    assert not (tmp_path / "adapters").exists()
    assert server.adapters == {}


async def test_what_goes_on_draws_noise_of_its_own(tmp_path: Path) -> None:
    """With the noise of the first tokens again, a repeated token would be likelier than it says."""
    server = Server()
    prompt, counts = (7,), Counter[int]()
    async with asking(server, tmp_path) as engine:
        first = int(logprobs_after(7).argmax())
        for seed in range(400):
            one = await engine.generate(request(seed, prompt=prompt, max_new_tokens=1))
            if one.token_ids == (first,):
                context = (*prompt, first)
                two = await engine.generate(request(seed, prompt=context, max_new_tokens=1))
                counts[two.token_ids[0]] += 1
    total = counts.total()
    assert total > 60
    found = np.array([counts[token] / total for token in range(VOCABULARY)])
    assert abs(found - np.exp(logprobs_after(first))).sum() / 2 < 0.25


@pytest.mark.parametrize("length", [1, 2])
async def test_a_stop_string_ends_the_stream_here(tmp_path: Path, length: int) -> None:
    server = Server()
    async with asking(server, tmp_path) as engine:
        whole = await engine.generate(request(max_new_tokens=40))
        said = letters(whole.token_ids)
        stop = said[6 : 6 + length]
        done = await engine.generate(request(max_new_tokens=40, stop_strings=("?", stop)))
        assert done.token_ids == whole.token_ids[: said.find(stop) + length]
        assert done.finish == "stop"
        assert server.hangups == 1
        other = await engine.generate(request(max_new_tokens=40, stop_strings=("?",)))
        assert other == whole


def test_what_comes_with_the_end_of_a_stop_string_and_after_it_is_dropped() -> None:
    flight = EndpointRequest(request(stop_strings=("b",)), max_tokens=12)
    piece = CompletionDelta(
        (0, 1, 2), (-0.1, -0.2, -0.3), (((0, -0.1),), ((1, -0.2),), ((2, -0.3),))
    )
    flight.take(piece, version=4, decode=letters, server="s")
    done = flight.completion(flight.finish or "aborted")
    assert (done.token_ids, done.logprobs, done.versions) == ((0, 1), (-0.1, -0.2), (4, 4))
    assert (done.finish, len(done.top_logprobs)) == ("stop", 2)


async def test_a_shaped_distribution_is_the_one_that_is_told(tmp_path: Path) -> None:
    server, shape = Server(), Sampling(temperature=0.7, top_k=3)
    async with asking(server, tmp_path, samplings=(shape,)) as engine:
        done = await engine.generate(request(sampling=shape, top_logprobs=5))
    for last, token, logprob, top in zip(
        [4, *done.token_ids], done.token_ids, done.logprobs, done.top_logprobs, strict=False
    ):
        row = logprobs_after(last, sampling=shape)
        assert logprob == pytest.approx(row[token], abs=1e-6)
        assert len(top) == 3


async def test_scores_are_those_of_the_version(tmp_path: Path) -> None:
    async with asking(Server(), tmp_path) as engine:
        await engine.load(weights(0.5), 3)
        scores = await engine.score(Asked(id="s", prompt=PROMPT, token_ids=(8, 9), top_logprobs=2))
        assert scores.version == 3
        assert scores.logprobs == pytest.approx(expected(PROMPT, (8, 9), (0.5, 0.5)), abs=1e-6)
        assert [len(top) for top in scores.top_logprobs] == [2, 2]
        assert all(a >= b for (_, a), (_, b) in scores.top_logprobs)
        plain = Asked(id="s", prompt=PROMPT, token_ids=(8,))
        for untold in (
            replace(plain, entropies=True),
            replace(plain, distribution=True),
            *(replace(plain, sampling=shaped) for shaped in HOT),
        ):
            with pytest.raises(ValueError, match="only scores tokens"):
                await engine.score(untold)
        with pytest.raises(ValueError, match="context_tokens=63"):
            await engine.score(Asked(id="s", prompt=PROMPT, token_ids=(8,) * 61))


# --- what is not believed -------------------------------------------------------------------------


def without(*names: str) -> Callable[[dict[str, Any]], Any]:
    return lambda choice: {name: value for name, value in choice.items() if name not in names}


def but(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda choice: {**choice, **changes}


WRONG = [
    (without("token_ids"), r"server\.test/v1 answers without token_ids.*vLLM 0\.10\.2"),
    (without("prompt_token_ids"), "answers without prompt_token_ids"),
    (but(prompt_token_ids=[0, 3, 1, 4]), r"4 tokens instead of 3, different from token 0 on"),
    (but(prompt_token_ids=[3, 1, 5]), "different from token 2 on"),
    (without("logprobs"), "answers without logprobs, one for each token"),
    (but(logprobs={"token_logprobs": []}), r"got '0 for \d+ tokens'"),
    (but(token_ids=[VOCABULARY]), "token 24, which is not in the policy's vocabulary of 24"),
    (but(token_ids=["x"]), "sampled token 'x'"),
    (
        but(logprobs={"token_logprobs": [0.5]}),
        r"log-prob of 0\.5 .*; start it with --logprobs-mode",
    ),
    (but(logprobs={"token_logprobs": [-9999.0]}), "log-prob of -inf"),
    (but(logprobs={"token_logprobs": [None]}), "log-prob of nan"),
    (
        but(logprobs={"token_logprobs": [-0.5], "tokens": ["token_id:23"]}),
        r"answered token \d+ with the log-prob of token_id:23, so which one it sampled",
    ),
    (but(finish_reason="content_filter"), "finish_reason 'content_filter'"),
    (
        but(finish_reason="stop"),
        r"with 'stop' after 1 of 12 tokens.*--generation-config",
    ),
    (but(finish_reason="length"), "with 'length' after 1 of 12"),
]


@pytest.mark.parametrize(("alter", "words"), WRONG)
async def test_an_answer_that_cannot_train_stops_the_run(
    tmp_path: Path, alter: Callable[[dict[str, Any]], Any], words: str
) -> None:
    server = Server()
    async with asking(server, tmp_path) as engine:
        server.alter = alter
        with pytest.raises(ConfigError, match=words):
            await engine.generate(request())
        server.alter = lambda choice: choice
        check_said(await engine.generate(request()), {0: 0.0})


async def test_alternatives_must_be_ids(tmp_path: Path) -> None:
    server = Server()

    def words(choice: dict[str, Any]) -> Any:
        return {**choice, "logprobs": {**choice["logprobs"], "top_logprobs": [{"word": -1.0}]}}

    async with asking(server, tmp_path) as engine:
        server.alter = words
        with pytest.raises(ConfigError, match="without token_id:"):
            await engine.generate(request(top_logprobs=2))
        server.alter = lambda c: {**c, "logprobs": {**c["logprobs"], "top_logprobs": []}}
        with pytest.raises(ConfigError, match="without top_logprobs"):
            await engine.generate(request(top_logprobs=2))


HOT = (Sampling(temperature=0.7),)
OPENING = [
    (served(max_model_len=63), {}, "--max-model-len 64"),
    (served(), {"model": "other"}, r"serves \['base'\], but engine\.endpoint\.model is 'other'"),
    (served(mode="raw_logits"), {}, "--logprobs-mode"),
    (served(mode="raw_logits", offset=-7.5), {}, "when it scores them.*raw_logprobs"),
    (served(mode="raw_logprobs"), {"samplings": HOT}, "temperature 0.7.*processed_logprobs"),
    (served(mode="raw_logprobs"), {"samplings": (Sampling(top_k=4),)}, "top_k 4"),
    (served(max_logprobs=5), {"top_logprobs": 9}, "--max-logprobs 9"),
    (served(alter=without("token_ids")), {}, "without token_ids"),
    (served(alter=without("prompt_logprobs")), {}, "without prompt_logprobs"),
    (served(alter=but(finish_reason="stop", token_ids=[1])), {}, "token"),
]


@pytest.mark.parametrize(("server", "changes", "words"), OPENING)
async def test_a_server_that_cannot_train_is_refused_at_once(
    tmp_path: Path, server: Server, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        async with asking(server, tmp_path, **changes):
            raise AssertionError


async def test_log_probs_of_logits_do_for_what_is_drawn_from_them(tmp_path: Path) -> None:
    neutral = (Sampling(), Sampling(temperature=0.0))
    async with asking(served(mode="raw_logprobs"), tmp_path, samplings=neutral) as engine:
        done = await engine.generate(request(sampling=neutral[1], top_logprobs=2))
        assert set(done.logprobs) == {0.0}
        assert done.top_logprobs[0] == ((done.token_ids[0], 0.0),)
        for shaped in (*HOT, Sampling(top_p=0.9), Sampling(top_k=2)):
            with pytest.raises(ConfigError, match="reports log-probs of the raw logits"):
                await engine.generate(request(sampling=shaped))


# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        *(httpx.Response(status, text="busy") for status in (408, 409, 425, 429, 500, 503)),
        httpx.ReadError("cut"),
        httpx.Response(
            200,
            headers={"content-type": "text/event-stream"},
            text='data: {"error": {"message": "engine died"}}\n\n',
        ),
        httpx.Response(200, headers={"content-type": "text/event-stream"}, text="data: {half"),
    ],
)
async def test_what_may_pass_is_asked_again(
    tmp_path: Path, fault: httpx.Response | Exception
) -> None:
    server = Server()
    async with asking(server, tmp_path) as engine:
        plain = await engine.generate(request())
        server.faults.extend([fault, fault])
        again = await engine.generate(request())
        assert again == plain
        server.faults.extend([fault] * 3)
        with pytest.raises(EngineLost, match="did not answer after 3 tries"):
            await engine.generate(request())


async def test_what_will_not_pass_is_told(tmp_path: Path) -> None:
    server = Server()
    async with asking(server, tmp_path) as engine:
        server.faults.append(httpx.Response(400, text="too long"))
        with pytest.raises(EngineError, match="400 too long"):
            await engine.generate(request())
        server.faults.append(httpx.Response(401, text="who?"))
        with pytest.raises(ConfigError, match="the key is wrong"):
            await engine.generate(request())
        server.faults.append(httpx.Response(200, json={"choices": []}))
        with pytest.raises(ConfigError, match="although streaming was requested"):
            await engine.generate(request())


async def test_a_torn_stream_goes_on_where_it_was(tmp_path: Path) -> None:
    """Tokens that came stay, and any number of tears is borne while some come in between."""
    server = Server()
    async with asking(server, tmp_path) as engine:
        server.bodies.clear()
        server.tears.extend([2, 0, 3, 1, 0, 2])
        done = await engine.generate(request(max_new_tokens=12))
        assert [len(body["prompt"]) for body in server.bodies] == [3, 5, 5, 8, 9, 9, 11]
        assert [body["max_tokens"] for body in server.bodies] == [12, 10, 10, 7, 6, 6, 4]
        assert len({body["seed"] for body in server.bodies}) == 5
        check_said(done, {0: 0.0})
        assert len(done.token_ids) == 12
        server.tears.extend([12])  # after the last token: there is nothing to ask for
        server.bodies.clear()
        assert len((await engine.generate(request())).token_ids) == 12
        assert len(server.bodies) == 1
        server.tears.extend([1, 0, 0, 0])
        with pytest.raises(EngineLost, match="RemoteProtocolError"):
            await engine.generate(request())


async def test_a_stream_that_says_nothing_is_asked_again(tmp_path: Path) -> None:
    server = Server()
    async with asking(server, tmp_path, silence_s=0.05) as engine:
        server.holds = 4
        done = await engine.generate(request(max_new_tokens=9))
        assert len(done.token_ids) == 9
        assert len(server.bodies) > 3


async def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    class Nobody(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await asyncio.sleep(0)
            raise httpx.ConnectError("refused")

    away = CompletionsEngine(settings(tmp_path, start_s=0.05), first_wait_s=0.0, transport=Nobody())
    with pytest.raises(
        EngineLost, match=r"no server answered .* within 0\.05 s; raise engine\.start_s"
    ):
        async with away:
            raise AssertionError


async def test_abort_pause_and_close_keep_what_came(tmp_path: Path) -> None:
    server = Server()
    async with asking(server, tmp_path) as engine:
        server.holds = 3
        running = [asyncio.create_task(engine.generate(request(n))) for n in range(4)]
        for _ in running:
            await server.held.acquire()
        await engine.abort("r0")
        done = await running[0]
        assert (len(done.token_ids), done.finish) == (3, "aborted")
        check_said(done, {0: 0.0})
        await engine.pause()
        assert [len((await one).token_ids) for one in running[1:3]] == [3, 3]
        held = asyncio.create_task(engine.generate(request(5)))
        await asyncio.sleep(0.01)
        assert not held.done()
        assert server.held.locked()
        await engine.abort("r5")
        assert (await held).token_ids == ()
        await engine.resume()
        last = asyncio.create_task(engine.generate(request(6)))
        await server.held.acquire()
        await engine.close()
        assert ((await last).finish, len((await last).token_ids)) == ("aborted", 3)
        assert server.hangups >= 4
        with pytest.raises(EngineError, match="closed"):
            await engine.generate(request(7))
