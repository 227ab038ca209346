"""Requests and answers as frames: numbers by the thousand as arrays, the rest as JSON.

Log-probs and entropies travel as 8-byte floats, so what arrives is what was sampled, bit for bit.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from agentrl.engine.remote.frames import EngineFrame
from agentrl.message import Image, ImageSpan
from agentrl.policy import Completion, GenerateRequest, Sampling, ScoreRequest, Scores

IDS, NUMBERS, RAW = "<i8", "<f8", "|u1"
Top = tuple[tuple[tuple[int, float], ...], ...]


class FrameWriter:
    """Arrays on their way into a frame."""

    def __init__(self) -> None:
        self._arrays: list[tuple[str, str, int]] = []
        self._parts: list[bytes] = []

    def add(self, name: str, kind: str, values: Sequence[int] | Sequence[float] | bytes) -> None:
        """Append an array under a name."""
        raw = isinstance(values, bytes)
        self._arrays.append((name, kind, len(values)))
        self._parts.append(values if raw else np.asarray(values, dtype=kind).tobytes())

    def add_top(self, top: Top) -> None:
        """Append alternatives per token, which differ in number."""
        flat = [pair for one in top for pair in one]
        self.add("top_counts", IDS, [len(one) for one in top])
        self.add("top_ids", IDS, [token for token, _ in flat])
        self.add("top_logprobs", NUMBERS, [logprob for _, logprob in flat])

    def frame(self, head: dict[str, Any]) -> EngineFrame:
        """Return the frame that says `head` and holds the arrays."""
        return EngineFrame({**head, "arrays": self._arrays}, b"".join(self._parts))


class FrameReader:
    """Arrays of a frame. Raises `ValueError` or `KeyError` for one that does not hold them."""

    def __init__(self, frame: EngineFrame) -> None:
        self._raw: dict[str, bytes] = {}
        self._kinds: dict[str, str] = {}
        at = 0
        for name, kind, count in frame.head["arrays"]:
            if kind not in (IDS, NUMBERS, RAW):
                raise ValueError(f"an array of {kind!r}")
            end = at + int(count) * np.dtype(kind).itemsize
            if count < 0 or end > len(frame.body):
                raise ValueError(f"{name} ends at {end} of {len(frame.body)} bytes")
            self._raw[name], self._kinds[name] = frame.body[at:end], kind
            at = end

    def raw(self, name: str) -> bytes:
        """Return the bytes of an array."""
        return self._raw[name]

    def get(self, name: str) -> tuple[Any, ...]:
        """Return an array as Python's own numbers."""
        return tuple(np.frombuffer(self._raw[name], dtype=self._kinds[name]).tolist())

    def top(self) -> Top:
        """Return alternatives per token."""
        pairs = iter(zip(self.get("top_ids"), self.get("top_logprobs"), strict=True))
        return tuple(tuple(next(pairs) for _ in range(count)) for count in self.get("top_counts"))


def request_frame(request: GenerateRequest) -> EngineFrame:
    """Return the frame of a request for one turn."""
    packing = FrameWriter()
    packing.add("prompt", IDS, request.prompt)
    images = _add_images(packing, request.images)
    return packing.frame(
        {
            "call": "generate",
            "id": request.id,
            "max_new_tokens": request.max_new_tokens,
            "sampling": _sampling(request.sampling),
            "stop_token_ids": sorted(request.stop_token_ids),
            "stop_strings": request.stop_strings,
            "begun_tokens": request.begun_tokens,
            "top_logprobs": request.top_logprobs,
            "entropies": request.entropies,
            "seed": request.seed,
            "images": images,
        }
    )


def read_request(frame: EngineFrame, id: str) -> GenerateRequest:
    """Return the request in a frame, under the id that the engine shall know it by."""
    head, arrays = frame.head, FrameReader(frame)
    return GenerateRequest(
        id=id,
        prompt=arrays.get("prompt"),
        max_new_tokens=head["max_new_tokens"],
        sampling=Sampling(**head["sampling"]),
        stop_token_ids=frozenset(head["stop_token_ids"]),
        stop_strings=tuple(head["stop_strings"]),
        begun_tokens=head["begun_tokens"],
        top_logprobs=head["top_logprobs"],
        entropies=head["entropies"],
        seed=head["seed"],
        images=_images(arrays, head["images"]),
    )


def _add_images(packing: FrameWriter, images: Sequence[ImageSpan]) -> list[tuple[str, int, int]]:
    """Add the bytes of images, and return what there is to know of each beside them."""
    for number, span in enumerate(images):
        packing.add(f"image {number}", RAW, span.image.data)
    return [(span.image.media_type, span.start, span.stop) for span in images]


def _images(arrays: FrameReader, told: Sequence[Any]) -> tuple[ImageSpan, ...]:
    return tuple(
        ImageSpan(Image(arrays.raw(f"image {number}"), kind), start, stop)
        for number, (kind, start, stop) in enumerate(told)
    )


def completion_frame(completion: Completion) -> EngineFrame:
    """Return the frame that answers a request."""
    packing = FrameWriter()
    packing.add("token_ids", IDS, completion.token_ids)
    packing.add("logprobs", NUMBERS, completion.logprobs)
    packing.add("versions", IDS, completion.versions)
    packing.add("entropies", NUMBERS, completion.entropies)
    packing.add_top(completion.top_logprobs)
    cached = completion.prompt_cached_tokens
    return packing.frame({"finish": completion.finish, "prompt_cached_tokens": cached})


def read_completion(frame: EngineFrame) -> Completion:
    """Return the answer to a request."""
    arrays = FrameReader(frame)
    return Completion(
        token_ids=arrays.get("token_ids"),
        logprobs=arrays.get("logprobs"),
        versions=arrays.get("versions"),
        finish=frame.head["finish"],
        top_logprobs=arrays.top(),
        entropies=arrays.get("entropies"),
        prompt_cached_tokens=frame.head["prompt_cached_tokens"],
    )


def score_frame(request: ScoreRequest) -> EngineFrame:
    """Return the frame of a request for scores."""
    packing = FrameWriter()
    packing.add("prompt", IDS, request.prompt)
    packing.add("token_ids", IDS, request.token_ids)
    images = _add_images(packing, request.images)
    return packing.frame(
        {
            "call": "score",
            "id": request.id,
            "sampling": _sampling(request.sampling),
            "top_logprobs": request.top_logprobs,
            "entropies": request.entropies,
            "distribution": request.distribution,
            "images": images,
        }
    )


def read_score(frame: EngineFrame, id: str) -> ScoreRequest:
    """Return the score request in a frame, under the id that the engine shall know it by."""
    head, arrays = frame.head, FrameReader(frame)
    return ScoreRequest(
        id=id,
        prompt=arrays.get("prompt"),
        token_ids=arrays.get("token_ids"),
        sampling=Sampling(**head["sampling"]),
        top_logprobs=head["top_logprobs"],
        entropies=head["entropies"],
        distribution=head["distribution"],
        images=_images(arrays, head["images"]),
    )


def scores_frame(scores: Scores) -> EngineFrame:
    """Return the frame that answers a request for scores."""
    packing = FrameWriter()
    packing.add("logprobs", NUMBERS, scores.logprobs)
    packing.add("entropies", NUMBERS, scores.entropies)
    packing.add("distribution", NUMBERS, scores.distribution)
    packing.add_top(scores.top_logprobs)
    return packing.frame({"scored_by": scores.version})


def read_scores(frame: EngineFrame) -> Scores:
    """Return the answer to a request for scores."""
    arrays = FrameReader(frame)
    return Scores(
        logprobs=arrays.get("logprobs"),
        version=frame.head["scored_by"],
        top_logprobs=arrays.top(),
        entropies=arrays.get("entropies"),
        distribution=arrays.get("distribution"),
    )


def _sampling(sampling: Sampling) -> dict[str, float]:
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
    }
