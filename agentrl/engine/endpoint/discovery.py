"""Checks of a server, made by asking it before anything is sampled for training."""

import asyncio
import math
from typing import Any

from agentrl.engine.endpoint.completion_reader import (
    CompletionDelta,
    CompletionReader,
    build_sample_body,
    build_score_body,
)
from agentrl.engine.endpoint.dialects import find_dialect
from agentrl.engine.endpoint.settings import ServerSettings, is_greedy, is_neutral
from agentrl.errors import ConfigError, EngineError, EngineLost
from agentrl.policy import GenerateRequest, Sampling
from agentrl.runtime.http_endpoint import HttpEndpointClient

TOKENS = 4
FAR = 0.3
"""Nats: log-probs of one token, computed twice, are nearer than this, and not of its logits."""
TEMPERATURE = 0.5


async def await_server(client: HttpEndpointClient, settings: ServerSettings) -> dict[str, Any]:
    """Return the server's models by their names, as soon as it answers.

    Raises `EngineLost` where it does not in `settings.start_s`.
    """
    try:
        async with asyncio.timeout(settings.start_s):
            while True:
                try:
                    answer = await client.ask("models")
                    return {str(model["id"]): model for model in answer["data"]}
                except EngineLost:
                    continue
                except (KeyError, TypeError) as error:
                    raise ConfigError(
                        f"{settings.url}/models lists no models ({error!r}); engine.endpoint.urls "
                        "must be those of OpenAI-compatible servers, including the API version: "
                        "http://H:P/v1"
                    ) from error
    except TimeoutError as error:
        raise EngineLost(
            f"no server answered at {settings.url} within {settings.start_s:g} s; raise "
            "engine.start_s if it takes longer to start"
        ) from error


def check_model(models: dict[str, Any], settings: ServerSettings) -> None:
    """Raise `ConfigError` where the model is not there, or takes too little."""
    model = models.get(settings.model)
    if model is None:
        raise ConfigError(
            f"{settings.url} serves {sorted(models)}, but engine.endpoint.model is "
            f"{settings.model!r}; name one of them"
        )
    most = model.get("max_model_len")
    if isinstance(most, int) and most < settings.context_tokens:
        raise ConfigError(
            f"{settings.endpoint} accepts contexts of up to {most} tokens, but "
            f"engine.context_tokens is {settings.context_tokens}; start it with --max-model-len "
            f"{settings.context_tokens}"
        )


async def check_logprobs(client: HttpEndpointClient, settings: ServerSettings) -> bool:
    """Return whether log-probs are of the distribution that is sampled from, however it is shaped.

    Raises `ConfigError` where they are not those of the logits either.
    """
    drawn, scored = await _sample_and_score(client, settings)
    gap = max(abs(a - b) for a, b in zip(drawn, scored, strict=True))
    if not gap <= FAR:
        raise ConfigError(
            f"{settings.endpoint} reports log-probs {drawn} when it samples tokens but {scored} "
            "when it scores them; start it with --logprobs-mode processed_logprobs, or raw_logprobs"
        )
    two = Sampling(top_k=2)
    plain = await _sample_first(client, settings, two)
    scaled = await _sample_first(client, settings, Sampling(top_k=2, temperature=TEMPERATURE))
    if any(len(one) < 2 for one in (plain, scaled)):
        # One of them, or both, was a point: it has the whole probability, or it is not of `two`.
        return all(abs(next(iter(one.values()), math.nan)) <= FAR for one in (plain, scaled))
    whole = all(abs(sum(map(math.exp, one.values())) - 1) <= 0.01 for one in (plain, scaled))
    (a, b), odds = sorted(plain), _odds(plain)
    same = {a, b} == set(scaled) and abs(_odds(scaled) - odds / TEMPERATURE) <= FAR
    return whole and same


def check_sampling(sampling: Sampling, settings: ServerSettings, *, processed: bool) -> None:
    """Raise `ConfigError` for a distribution whose log-probs the server does not give."""
    if processed or is_neutral(sampling) or is_greedy(sampling):
        return
    raise ConfigError(
        f"{settings.endpoint} reports log-probs of the raw logits, but tokens are sampled with "
        f"temperature {sampling.temperature:g}, top_p {sampling.top_p:g} and top_k "
        f"{sampling.top_k} (sampling, evaluate.temperature); start it with --logprobs-mode "
        "processed_logprobs, or set temperature 1, top_p 1, top_k 0"
    )


def _odds(logprobs: dict[int, float]) -> float:
    a, b = sorted(logprobs)
    return logprobs[a] - logprobs[b]


def _prompt(settings: ServerSettings) -> tuple[int, ...]:
    return tuple(range(min(TOKENS, settings.vocabulary)))


async def _sample_and_score(
    client: HttpEndpointClient, settings: ServerSettings
) -> tuple[list[float], list[float]]:
    prompt = _prompt(settings)
    piece = await _sample_probe(client, settings, Sampling(), max_tokens=TOKENS)
    whole = (*prompt, *piece.tokens)
    reading = CompletionReader(str(settings.endpoint), whole, vocabulary=settings.vocabulary)
    body = build_score_body(whole, model=settings.model, top_logprobs=0)
    dialect = find_dialect(settings.api)
    answer = await client.ask(dialect.path, dialect.write_body(body))
    scores = reading.scores(dialect.open_answer(whole)(answer))
    logprobs = [row[token] for row, token in zip(scores, whole[1:], strict=True)]
    return list(piece.logprobs), logprobs[len(prompt) - 1 :]


async def _sample_first(
    client: HttpEndpointClient, settings: ServerSettings, sampling: Sampling
) -> dict[int, float]:
    piece = await _sample_probe(client, settings, sampling, max_tokens=1)
    return dict(piece.top_logprobs[0][:2])


async def _sample_probe(
    client: HttpEndpointClient, settings: ServerSettings, sampling: Sampling, *, max_tokens: int
) -> CompletionDelta:
    top = max(2, settings.top_logprobs)
    prompt = _prompt(settings)
    request = GenerateRequest(
        id="probe", prompt=prompt, max_new_tokens=max_tokens, sampling=sampling, top_logprobs=top
    )
    body = build_sample_body(request, prompt, model=settings.model, max_tokens=max_tokens)
    body = {**body, "stream": False}
    del body["stream_options"]
    dialect = find_dialect(settings.api)
    try:
        answer = await client.ask(dialect.path, dialect.write_body(body))
    except EngineLost:
        raise
    except EngineError as error:
        raise ConfigError(
            f"{error}; the request asked for {top} alternatives per token: start the server with "
            f"--max-logprobs {top}, or request fewer (rollout.branching.top_logprobs)"
            if top > 2
            else f"{error}; use a server that accepts the parameters of vLLM's"
        ) from error
    reading = CompletionReader(
        str(settings.endpoint),
        prompt,
        vocabulary=settings.vocabulary,
        sampling=sampling,
        top_logprobs=top,
    )
    piece = reading.piece(dialect.open_answer(prompt)(answer))
    if len(piece.tokens) != max_tokens:
        raise ConfigError(
            f"{settings.endpoint} sampled {len(piece.tokens)} tokens when asked for {max_tokens} "
            "without a stop condition; start it with --generation-config vllm"
        )
    return piece
