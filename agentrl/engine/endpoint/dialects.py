"""Dialects of servers: each says what a request for a completion is there, and what an answer is.

The words are those of vLLM's completions, and every other dialect is translated from and into them:
`CompletionReader` reads one form, and checks it for all.

    completions   vLLM's `/v1/completions`
    generate      vLLM's `/inference/v1/generate`, which says the weight version of each token
    sglang        SGLang's `/generate`
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

from agentrl.errors import ConfigError

Api = Literal["completions", "generate", "sglang"]
"""Name of a dialect."""
Translation = Callable[[Any], Any]
"""Function from the events of one answer, in their order, to those of completions."""
MARK = "token_id:"
"""Prefix of a token that a server writes as its id, where it is asked for that."""


class ServerDialect(ABC):
    """Path and forms of requests and answers."""

    path: str
    """Path from the version of the API (`/v1/`) on."""

    @abstractmethod
    def write_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body of a request from that of a completion."""

    @abstractmethod
    def open_answer(self, prompt: Sequence[int]) -> Translation:
        """Return the translation of one answer to a prompt."""


class CompletionsDialect(ServerDialect):
    """vLLM's completions, as they are."""

    path = "completions"

    def write_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return dict(body)

    def open_answer(self, prompt: Sequence[int]) -> Translation:
        return lambda event: event


class GenerateDialect(ServerDialect):
    """vLLM's generation from ids. Its sampling parameters are those of `SamplingParams`."""

    path = "/inference/v1/generate"

    def write_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        rest = {**body, "detokenize": False}
        prompt, model = rest.pop("prompt"), rest.pop("model")
        outer = {
            name: rest.pop(name)
            for name in ("stream", "stream_options", "return_token_ids")
            if name in rest
        }
        rest.pop("return_tokens_as_token_ids", None)
        return {**outer, "model": model, "token_ids": prompt, "sampling_params": rest}

    def open_answer(self, prompt: Sequence[int]) -> Translation:
        def translate(event: Any) -> Any:
            chunk = _mapping(event)
            choices = [_mapping(choice) for choice in _list(chunk.get("choices"))]
            # What is of the whole answer there is of a choice here.
            shared = {k: chunk[k] for k in ("prompt_token_ids", "prompt_logprobs") if k in chunk}
            return {
                **chunk,
                "choices": [
                    {**choice, **shared, "logprobs": _read_content(choice.get("logprobs"))}
                    for choice in choices
                ],
            }

        return translate


class SglangDialect(ServerDialect):
    """SGLang's native API. Its events repeat what came before."""

    path = "/generate"

    def write_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        sampling: dict[str, Any] = {"max_new_tokens": body["max_tokens"]}
        shaping = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty")
        for name in (*shaping, "frequency_penalty", "stop_token_ids", "ignore_eos"):
            if name in body:
                sampling[name] = body[name]
        if "top_k" in body:
            sampling["top_k"] = body["top_k"] or -1
        if "seed" in body:
            sampling["sampling_seed"] = body["seed"] % 2**31
        sampling["skip_special_tokens"] = False
        request_body: dict[str, Any] = {
            "input_ids": body["prompt"],
            "sampling_params": sampling,
            "return_logprob": True,
            "stream": body.get("stream", False),
        }
        if "prompt_logprobs" in body:
            # From the first token on; without it only sampled ones are scored.
            request_body |= {"logprob_start_len": 0, "top_logprobs_num": body["prompt_logprobs"]}
        elif body.get("logprobs", 0):
            request_body["top_logprobs_num"] = body["logprobs"]
        return request_body

    def open_answer(self, prompt: Sequence[int]) -> Translation:
        seen = 0

        def translate(event: Any) -> Any:
            nonlocal seen
            chunk = _mapping(event)
            meta = _mapping(chunk.get("meta_info"))
            output = _list(chunk.get("output_ids"))
            rows = _list(meta.get("output_token_logprobs"))
            tops = _list(meta.get("output_top_logprobs"))
            counted = meta.get("completion_tokens")
            if seen and output and counted == seen + len(output):
                raise ConfigError(
                    f"an event of SGLang's has {len(output)} of {counted} tokens, but all so far "
                    "are read from each; start the server without --stream-output and "
                    "--incremental-streaming-output"
                )
            fresh = slice(seen, len(output))
            is_first, seen = seen == 0, len(output)
            finish = _mapping(meta.get("finish_reason")).get("type")
            choice: dict[str, Any] = {
                "token_ids": output[fresh],
                "finish_reason": finish,
                "logprobs": {
                    "token_logprobs": [_entry(row)[0] for row in rows[fresh]],
                    "top_logprobs": [
                        {f"{MARK}{_entry(row)[1]}": _entry(row)[0] for row in _list(each)}
                        for each in tops[fresh]
                    ],
                },
            }
            # Ids of sampled tokens are said twice; the prompt is only counted.
            if [_entry(row)[1] for row in rows[fresh]] != output[fresh]:
                choice["token_ids"] = None
            if is_first and meta.get("prompt_tokens") == len(prompt):
                choice["prompt_token_ids"] = list(prompt)
            if "input_token_logprobs" in meta:
                choice["prompt_logprobs"] = _read_scores(meta)
            usage = {"prompt_tokens_details": {"cached_tokens": meta.get("cached_tokens")}}
            return {"choices": [choice], "usage": usage}

        return translate


_DIALECTS: Mapping[str, ServerDialect] = {
    "completions": CompletionsDialect(),
    "generate": GenerateDialect(),
    "sglang": SglangDialect(),
}


def find_dialect(api: Api) -> ServerDialect:
    """Return the dialect of a name."""
    return _DIALECTS[api]


def _read_content(logprobs: Any) -> dict[str, Any]:
    """Return log-probs by token ids as completions have them."""
    rows = [_mapping(row) for row in _list(_mapping(logprobs).get("content"))]
    return {
        "token_logprobs": [row.get("logprob") for row in rows],
        "top_logprobs": [
            {
                f"{MARK}{_mapping(top).get('token_id')}": _mapping(top).get("logprob")
                for top in _list(row.get("top_logprobs"))
            }
            for row in rows
        ],
    }


def _read_scores(meta: Mapping[str, Any]) -> list[dict[str, Any] | None]:
    """Return the log-probs of a prompt; the first token has none."""
    rows = _list(meta.get("input_token_logprobs"))
    tops = _list(meta.get("input_top_logprobs"))
    scores: list[dict[str, Any] | None] = []
    for place, row in enumerate(rows):
        own = _entry(row)
        rest = [_entry(top) for top in _list(tops[place] if place < len(tops) else None)]
        scores.append({str(token): {"logprob": value} for value, token in (*rest, own)})
    if scores:
        scores[0] = None
    return scores


def _entry(row: Any) -> tuple[Any, Any]:
    """Return log-prob and id of SGLang's triples of log-prob, id and text."""
    values = _list(row)
    return (values[0], values[1]) if len(values) >= 2 else (None, None)


def _mapping(found: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}


def _list(found: Any) -> list[Any]:
    return cast("list[Any]", found) if isinstance(found, list) else []
