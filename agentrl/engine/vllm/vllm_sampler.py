"""Samples and scores by vLLM's own sampler and prompt log-probs, its public interface."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from agentrl.engine.in_process import AnyFlight
from agentrl.engine.inflight_scores import InflightScoreRequest
from agentrl.engine.noise import stream
from agentrl.engine.sampling import SampledToken, check_logprobs
from agentrl.engine.vllm.settings import VllmSettings
from agentrl.errors import ConfigError
from agentrl.policy import GenerateRequest, Sampling, ScoreRequest
from agentrl.runtime.vllm_release import TEMPERATURES

Alternatives = tuple[tuple[int, float], ...]


@runtime_checkable
class VllmLogprob(Protocol):
    """vLLM's `VllmLogprob`."""

    logprob: float


@dataclass(frozen=True, slots=True)
class SampledStep:
    """One token of one request."""

    request_id: str
    pick: SampledToken
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class ScoredRequest:
    """A request whose every token is scored."""

    request_id: str


class VllmSampler:
    """Has vLLM draw tokens with its own sampler, and score them as parts of a prompt."""

    extra_tokens = 1
    """vLLM samples so many tokens after a prompt that is scored, and has no way to sample none."""

    version = 0
    """Version of the weights of the step under way."""

    def check(self, request: GenerateRequest | ScoreRequest) -> None:
        """Raise `ValueError` for what vLLM's own sampler does not tell, or not as it is asked."""
        if isinstance(request, ScoreRequest):
            untold = request.entropies or request.distribution or request.sampling != Sampling()
            if untold:
                raise ValueError(
                    f"request {request.id!r} asks for entropies, a full distribution, or a "
                    "distribution other than the softmax of the logits, but vLLM's own sampler "
                    "only scores tokens; set engine.vllm.sampler: agentrl"
                )
            return
        if request.entropies:
            raise ValueError(
                f"request {request.id!r} asks for entropies, which vLLM's own sampler does not "
                "report; set engine.vllm.sampler: agentrl"
            )
        temperature, (least, most) = request.sampling.temperature, TEMPERATURES
        if temperature and not least <= temperature <= most:
            raise ValueError(
                f"request {request.id!r} asks for temperature {temperature:g}, but vLLM's own "
                f"sampler accepts only 0 and {least:g} to {most:g}; set engine.vllm.sampler: "
                "agentrl"
            )

    def engine_arguments(self, settings: VllmSettings, *, cpu: bool) -> dict[str, Any]:
        """Return the arguments of `EngineArgs`: log-probs of the distribution drawn from.

        Raises `ConfigError` for steps that would split a prompt on a CPU, where vLLM's sampler
        cannot take back the noise of a request whose prompt goes on.
        """
        arguments: dict[str, Any] = {"logprobs_mode": "processed_logprobs", "max_logprobs": -1}
        if not cpu:
            return arguments
        tokens, context_tokens = settings.prefill_tokens, settings.context_tokens
        if tokens is not None and tokens < context_tokens:
            raise ConfigError(
                f"engine.vllm.prefill_tokens is {tokens} and engine.context_tokens is "
                f"{context_tokens}: on a CPU, vLLM's own sampler only processes whole prompts; "
                "remove prefill_tokens, or set engine.vllm.sampler: agentrl"
            )
        whole = {"enable_chunked_prefill": False}
        return {**arguments, **whole, "max_num_batched_tokens": tokens or max(context_tokens, 2048)}

    def attach(self, engine: Any) -> None:
        """Take a started `LLMEngine`, of which nothing more is needed."""

    def prompt_of(self, flight: AnyFlight) -> list[int]:
        """Return the token ids that vLLM is given: all of those that are scored among them."""
        if isinstance(flight, InflightScoreRequest):
            return [*flight.context, flight.request.token_ids[-1]]
        return [*flight.context]

    def request_arguments(self, name: str, flight: AnyFlight) -> dict[str, Any]:
        """Return the arguments of `SamplingParams` that go on from the context of a request.

        Its seed is one for each length of the context: with one for all of them a request that
        goes on would draw with the noise that its first tokens were drawn with.
        """
        from vllm.sampling_params import (  # pyright: ignore[reportMissingImports]
            RequestOutputKind,
        )

        if isinstance(flight, InflightScoreRequest):
            most = flight.request.top_logprobs
            return {"temperature": 0.0, "max_tokens": 1, "prompt_logprobs": most}
        request = flight.request
        return {
            "temperature": request.sampling.temperature,
            "top_p": request.sampling.top_p,
            "top_k": request.sampling.top_k,
            "seed": stream(stream(request.seed) + len(flight.context)) >> 1,
            "logprobs": request.top_logprobs,
            "max_tokens": flight.max_tokens,
            "output_kind": RequestOutputKind.DELTA,
        }

    def read(self, flight: AnyFlight, output: Any) -> Iterator[SampledStep | ScoredRequest]:
        """Yield what a `RequestOutput` tells. Raises `EngineError` for what is no log-prob."""
        if isinstance(flight, InflightScoreRequest):
            if output.prompt_logprobs and not flight.is_done:
                scores = read_scores(output.prompt_logprobs, flight.request)
                flight.take_logprobs(*scores, version=self.version)
            if flight.is_done:
                yield ScoredRequest(output.request_id)
            return
        for completion in output.outputs:
            for pick in read_picks(completion, flight.request):
                yield SampledStep(output.request_id, pick, output.num_cached_tokens or 0)

    def drop(self, name: str) -> None:
        """Forget a request, of which nothing is kept here."""


def read_picks(completion: Any, request: GenerateRequest) -> list[SampledToken]:
    """Return the tokens of a `CompletionOutput`, with log-probs of the distribution drawn from.

    Raises `EngineError` for a log-prob that is not finite.
    """
    tokens: Sequence[int] = completion.token_ids
    if request.sampling.temperature == 0:  # a point, whose log-prob is 0
        return [SampledToken(t, 0.0, ((t, 0.0),) if request.top_logprobs else ()) for t in tokens]
    rows: Sequence[Mapping[int, VllmLogprob]] = completion.logprobs
    logprobs = [row[token].logprob for token, row in zip(tokens, rows, strict=True)]
    check_logprobs(logprobs)
    return [
        SampledToken(token, min(0.0, logprob), most_likely(row, request.top_logprobs))
        for token, logprob, row in zip(tokens, logprobs, rows, strict=True)
    ]


def read_scores(
    rows: Sequence[Mapping[int, VllmLogprob] | None], request: ScoreRequest
) -> tuple[list[float], list[Alternatives]]:
    """Return log-probs and alternatives of a request's tokens, from those of a whole prompt.

    Raises `EngineError` for a log-prob that is not finite.
    """
    token_rows = [row or {} for row in rows[len(request.prompt) :]]
    logprobs = [
        row[token].logprob for row, token in zip(token_rows, request.token_ids, strict=True)
    ]
    check_logprobs(logprobs)
    most = request.top_logprobs
    tops = [most_likely(row, most) for row in token_rows] if most else []
    return [min(0.0, logprob) for logprob in logprobs], tops


def most_likely(row: Mapping[int, VllmLogprob], most: int) -> Alternatives:
    """Return the alternatives of a token, most likely first, without those that are never drawn.

    vLLM adds the token itself where it is none of them.
    """
    pairs = sorted(((t, p.logprob) for t, p in row.items()), key=lambda pair: -pair[1])[:most]
    return tuple((token, min(0.0, logprob)) for token, logprob in pairs if logprob > float("-inf"))
