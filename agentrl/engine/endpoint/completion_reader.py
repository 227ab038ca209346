"""Requests to a server, and its answers; nothing in an answer is taken on trust.

Tokens are ids in both directions. Text is never read: what it would be as tokens is not what was
sampled.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from agentrl.engine.endpoint.dialects import MARK
from agentrl.engine.endpoint.settings import is_greedy
from agentrl.engine.noise import stream
from agentrl.engine.stopping import TopLogprobs
from agentrl.errors import ConfigError
from agentrl.policy import GenerateRequest, Sampling
from agentrl.runtime.http_endpoint import EndpointUnavailableError

LEAST = -9000.0
"""Servers write less than this for what cannot be drawn: JSON has no infinity."""
DIGITS = 19
"""Fewer digits than these are a number that a token, or a version, has."""
ROUNDING = 1e-4
"""Largest excess of a log-prob over 0 that counts as rounding."""


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Tokens of an answer that were sampled with one version of the weights."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class CompletionDelta:
    """A part of what was sampled: any number of tokens, none among them."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[TopLogprobs, ...] = ()
    finish: Literal["stop", "length"] | None = None
    cached_tokens: int | None = None
    """Cached tokens of the prompt; None where this part does not say."""
    spans: tuple[VersionSpan, ...] = ()
    """Versions of the whole answer's tokens, where its last part says them."""


def build_sample_body(
    request: GenerateRequest, context: Sequence[int], *, model: str, max_tokens: int
) -> dict[str, Any]:
    """Return the request body to go on from a context, which begins with the request's prompt.

    Everything that shapes the distribution is said: servers take what is not from the model's
    `generation_config.json`. The seed is one for each place in a context: with one for all of them
    a request that goes on would draw with the noise that its first tokens were drawn with.
    """
    return {
        "model": model,
        "prompt": list(context),
        "max_tokens": max_tokens,
        **_sampling(request.sampling),
        "logprobs": max(1, request.top_logprobs),
        "seed": stream(stream(request.seed) + len(context)) >> 1,
        "ignore_eos": True,
        "stop_token_ids": sorted(request.stop_token_ids),
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "skip_special_tokens": False,
    }


def build_score_body(prompt: Sequence[int], *, model: str, top_logprobs: int) -> dict[str, Any]:
    """Return the request body to score all prompt tokens but the first, as logits have them."""
    return {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": 1,
        "prompt_logprobs": top_logprobs,
        "return_token_ids": True,
    }


def _sampling(sampling: Sampling) -> dict[str, Any]:
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }


class CompletionReader:
    """Reads the answers of one server to one request."""

    def __init__(
        self,
        server: str,
        prompt: Sequence[int],
        *,
        vocabulary: int,
        sampling: Sampling | None = None,
        top_logprobs: int = 0,
    ) -> None:
        self._server = server
        self._prompt = list(prompt)
        self._vocabulary = vocabulary
        self._is_greedy = sampling is not None and is_greedy(sampling)
        self._top = top_logprobs
        self._saw_prompt = False

    def piece(self, event: Any) -> CompletionDelta:
        """Return the sampled part in an event of a stream, or in a whole answer.

        Raises `ConfigError` for what no server that can be trained from says,
        `EndpointUnavailableError` where the server gives up.
        """
        chunk = _mapping(event)
        usage = _mapping(_mapping(chunk.get("usage")).get("prompt_tokens_details"))
        cached = usage.get("cached_tokens") if type(usage.get("cached_tokens")) is int else None
        choices = _list(chunk.get("choices"))
        if not choices:
            return CompletionDelta(cached_tokens=cached)
        choice = _mapping(choices[0])
        self._see_prompt(choice)
        tokens = self._tokens(choice)
        logprobs, tops = self._logprobs(choice, tokens)
        finish = choice.get("finish_reason")
        if finish in ("abort", "error"):
            raise EndpointUnavailableError(f"the server ended it with finish_reason {finish!r}")
        if finish not in (None, "stop", "length"):
            raise ConfigError(
                f"{self._server} ends a completion with finish_reason {finish!r}, but only a stop "
                "token or the token budget may end one; disable other stop conditions and "
                "rewriting on the server"
            )
        return CompletionDelta(tokens, logprobs, tops, finish, cached, self._read_spans(choice))

    def scores(self, answer: Any) -> list[dict[int, float]]:
        """Return the log-probs by token of every token of the prompt but the first."""
        choices = _list(_mapping(answer).get("choices")) or [{}]
        choice = _mapping(choices[0])
        self._see_prompt(choice)
        rows = _list(choice.get("prompt_logprobs"))
        if len(rows) != len(self._prompt):
            raise self._lacks("prompt_logprobs", "which scores the tokens of a prompt", rows)
        scores: list[dict[int, float]] = []
        for token, row in zip(self._prompt[1:], rows[1:], strict=True):
            values = {
                self._read_token(t, row): _read(_mapping(v).get("logprob"))
                for t, v in _mapping(row).items()
            }
            if not math.isfinite(values.get(token, math.nan)):
                raise self._lacks("prompt_logprobs", f"with one of token {token}", row)
            scores.append(values)
        return scores

    def _see_prompt(self, choice: Mapping[str, Any]) -> None:
        """Raise `ConfigError` where the first answer is not to the tokens that were sent."""
        prompt = choice.get("prompt_token_ids")
        if self._saw_prompt and prompt is None:
            return
        if not isinstance(prompt, list):
            raise self._lacks("prompt_token_ids", "with return_token_ids", prompt)
        if prompt != self._prompt:
            place = _first_difference(prompt, self._prompt)
            raise ConfigError(
                f"{self._server} answered a different prompt than it was sent: {len(prompt)} "
                f"tokens instead of {len(self._prompt)}, different from token {place} on; disable "
                "prompt rewriting on the server"
            )
        self._saw_prompt = True

    def _tokens(self, choice: Mapping[str, Any]) -> tuple[int, ...]:
        token_ids: Any = choice.get("token_ids")
        if not isinstance(token_ids, list):
            raise self._lacks("token_ids", "with return_token_ids", token_ids)
        tokens = tuple(cast("list[Any]", token_ids))
        for token in tokens:
            if type(token) is int and 0 <= token < self._vocabulary:
                continue
            raise ConfigError(
                f"{self._server} sampled token {token!r}, which is not in the policy's vocabulary "
                f"of {self._vocabulary}; serve the base model of the policy"
            )
        return tokens

    def _logprobs(
        self, choice: Mapping[str, Any], tokens: Sequence[int]
    ) -> tuple[tuple[float, ...], tuple[TopLogprobs, ...]]:
        payload = _mapping(choice.get("logprobs"))
        values = _list(payload.get("token_logprobs"))
        if len(values) != len(tokens):
            what = f"{len(values)} for {len(tokens)} tokens"
            raise self._lacks("logprobs", "one for each token", what)
        for name, token in zip(_list(payload.get("tokens")), tokens, strict=False):
            if str(name).startswith(MARK) and name != f"{MARK}{token}":
                raise ConfigError(
                    f"{self._server} answered token {token} with the log-prob of {name}, so which "
                    "one it sampled is not known; use another release of the server"
                )
        if self._is_greedy:
            tops = tuple(((token, 0.0),) for token in tokens) if self._top else ()
            return (0.0,) * len(tokens), tops
        logprobs = tuple(_read(value) for value in values)
        for token, logprob in zip(tokens, logprobs, strict=True):
            if not -math.inf < logprob <= ROUNDING:
                raise ConfigError(
                    f"{self._server} reports a log-prob of {logprob} for the sampled token "
                    f"{token}; start it with --logprobs-mode processed_logprobs"
                )
        return tuple(min(0.0, logprob) for logprob in logprobs), self._tops(payload, len(tokens))

    def _read_spans(self, choice: Mapping[str, Any]) -> tuple[VersionSpan, ...]:
        """Return the versions of an answer's tokens; none where it names others than numbers, as a
        server does that was never told one."""
        rows = _list(choice.get("weight_versions"))
        spans: list[VersionSpan] = []
        for row in map(_mapping, rows):
            version, start, end = row.get("version"), row.get("start"), row.get("end")
            if not (isinstance(version, str) and version.isdecimal() and len(version) < DIGITS):
                return ()
            if not (type(start) is int and type(end) is int and 0 <= start <= end):
                raise self._lacks("weight_versions", "spans of an answer's tokens", rows)
            spans.append(VersionSpan(int(version), start, end))
        return tuple(spans)

    def _tops(self, told: Mapping[str, Any], count: int) -> tuple[TopLogprobs, ...]:
        if not self._top or not count:
            return ()
        rows = _list(told.get("top_logprobs"))
        if len(rows) != count:
            raise self._lacks("top_logprobs", "one list for each token", f"{len(rows)} for {count}")
        return tuple(self._most_likely(_mapping(row)) for row in rows)

    def _most_likely(self, row: Mapping[str, Any]) -> TopLogprobs:
        """Return the alternatives; a server adds the token it sampled where that is none."""
        values: list[tuple[int, float]] = []
        for name, value in row.items():
            if not name.startswith(MARK):
                raise self._lacks(MARK, "with return_tokens_as_token_ids", name)
            token = self._read_token(name.removeprefix(MARK), row)
            if not math.isnan(logprob := _read(value)):
                values.append((token, min(0.0, logprob)))
        ordered = sorted(values, key=lambda pair: (-pair[1], pair[0]))[: self._top]
        return tuple(pair for pair in ordered if pair[1] > -math.inf)

    def _read_token(self, name: str, row: Any) -> int:
        """Return the token that a key names; raise `ConfigError` for one that is none."""
        token = int(name) if name.isascii() and name.isdecimal() and len(name) < DIGITS else -1
        if not 0 <= token < self._vocabulary:
            raise self._lacks("alternatives", "named by tokens of the policy", row)
        return token

    def _lacks(self, field: str, how: str, told: object) -> ConfigError:
        return ConfigError(
            f"{self._server} answers without {field}, {how} (got {told!r:.100}), but training "
            "needs tokens and log-probs exactly as sampled; use a server that returns them: vLLM "
            "0.10.2 or later"
        )


def _mapping(found: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}


def _list(found: Any) -> list[Any]:
    return cast("list[Any]", found) if isinstance(found, list) else []


def _read(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    if isinstance(value, float) and math.isnan(value):
        return math.nan
    # A whole number may be larger than any float.
    return float(min(value, sys.float_info.max)) if value > LEAST else -math.inf


def _first_difference(one: Sequence[Any], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
