"""A server that takes whole weights, in this event loop: a small Markov model, and faults.

It speaks vLLM's or SGLang's documented API. Neither of their servers is behind it: what a real vLLM
does, tests/system/with_vllm/test_server.py asks; SGLang has not been asked.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from safetensors.torch import load_file

from agentrl.engine.endpoint import ServerSettings, WeightsEngine
from agentrl.engine.endpoint.dialects import Api
from agentrl.engine.endpoint.transfer import FolderTransfer, WeightTransfer
from agentrl.policy import Sampling
from agentrl.weight_sync.check import CheckedWeights
from tests.support.completions_server import VOCABULARY, letters, logprobs_after, provable, settings

NAME = "model.amount"


def whole(amount: float) -> dict[str, torch.Tensor]:
    """Return weights of which the server makes so much of the other table."""
    return {NAME: torch.tensor([amount])}


def proven(amount: float, *, says: float | None = None) -> CheckedWeights:
    """Return weights with what they, or those of another amount, say."""
    return CheckedWeights(whole(amount), provable(amount, says=says).proof)


class WeightsServer(httpx.AsyncBaseTransport):
    """Answers requests; its attributes say what is wrong with it."""

    def __init__(self, api: Api) -> None:
        self.api: Api = api
        self.amount = 0.0
        self.version = "default"
        self.told: list[str] = []
        """Paths of control, in their order, with their queries."""
        self.paused = False
        self.kept: asyncio.Event = asyncio.Event()
        self.kept.set()
        self.started = asyncio.Semaphore(0)
        """Released by every stream after its second token."""
        self.pace = asyncio.Event()
        """Streams go beyond two tokens when it is set."""
        self.pace.set()
        self.faults: deque[tuple[str, httpx.Response]] = deque()
        """The next answers to paths of control."""
        self.stale: deque[bool] = deque()
        """Whether the next weights are taken and not used."""
        self.hangups = 0
        self.epoch = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        body = json.loads(request.content) if request.content else {}
        if path in ("/v1/models", "/models"):
            return httpx.Response(200, json={"data": [{"id": "base", "max_model_len": 1000}]})
        native = {"sglang": "/generate", "generate": "/inference/v1/generate"}
        if path == native.get(self.api, "/v1/completions"):
            return await self._answer(body)
        target = request.url.raw_path.decode()
        self.told.append(target)
        if self.faults and self.faults[0][0] == path:
            return self.faults.popleft()[1]
        return self._control(target, path, body)

    def _control(self, target: str, path: str, body: dict[str, Any]) -> httpx.Response:
        mode = body.get("mode") or ("keep" if "mode=keep" in target else "abort")
        if path in ("/pause", "/pause_generation"):
            self.paused = True
            self.kept.clear()
            if mode not in ("keep", "in_place"):
                self.epoch += 1
        elif path in ("/resume", "/continue_generation"):
            self.paused = False
            self.kept.set()
        elif path == "/collective_rpc":
            assert body["method"] == "reload_weights"
            self._load(Path(body["kwargs"]["weights_path"]))
        elif path == "/update_weights_from_disk":
            self._load(Path(body["model_path"]))
            self.version = body["weight_version"]
        elif path == "/update_weight_version":
            self.version = body["new_version"]
        elif path in ("/sleep", "/wake_up", "/flush_cache") or "memory_occupation" in path:
            pass
        elif path == "/finish_weight_update":
            self.version = body["weight_version"]
        elif path == "/get_world_size":
            return httpx.Response(200, json={"world_size": 2})
        elif path not in (
            "/reset_prefix_cache",
            "/init_weight_transfer_engine",
            "/start_weight_update",
            "/update_weights",
        ):
            return httpx.Response(404, text="not found")
        return httpx.Response(200, json={"success": True})

    def _load(self, folder: Path) -> None:
        assert self.paused, "weights change under running requests"
        (file,) = folder.glob("*.safetensors")
        amount = float(load_file(file)[NAME])
        if not (self.stale.popleft() if self.stale else False):
            self.amount = amount

    # --- tokens -----------------------------------------------------------------------------------

    async def _answer(self, body: dict[str, Any]) -> httpx.Response:
        asked = _Asked(self.api, body)
        if asked.is_score:
            return httpx.Response(200, json=self._scores(asked))
        if asked.stream:
            stream = _Stream(self._events(asked), self)
            return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=stream)
        answer = _Answer(asked)
        while not answer.done:
            answer.draw(self.amount, self.version)
        return httpx.Response(200, json=answer.event(whole=True))

    async def _events(self, asked: "_Asked") -> AsyncGenerator[bytes]:
        answer, epoch = _Answer(asked), self.epoch
        while not answer.done:
            await self.kept.wait()
            if len(answer.tokens) == 2:
                self.started.release()
                await self.pace.wait()
                await self.kept.wait()
            if self.epoch != epoch:
                answer.aborted = True
                yield _event(answer.event())
                return
            answer.draw(self.amount, self.version)
            yield _event(answer.event())
            await asyncio.sleep(0)
        yield b"data: [DONE]\n\n"

    def _scores(self, asked: "_Asked") -> dict[str, Any]:
        rows = [logprobs_after(last, amount=self.amount) for last in asked.prompt[:-1]]
        values = [float(row[t]) for row, t in zip(rows, asked.prompt[1:], strict=True)]
        if self.api == "sglang":
            meta = {
                "prompt_tokens": len(asked.prompt),
                "input_token_logprobs": [
                    [v, t, None] for v, t in zip([None, *values], asked.prompt, strict=True)
                ],
                "output_token_logprobs": [[-1.0, 0, None]],
                "finish_reason": {"type": "length"},
            }
            return {"output_ids": [0], "meta_info": meta}
        shown = [{str(t): {"logprob": v}} for v, t in zip(values, asked.prompt[1:], strict=True)]
        told = {"prompt_token_ids": asked.prompt, "prompt_logprobs": [None, *shown]}
        choice = {"index": 0, "token_ids": [0], "finish_reason": "length"}
        return (
            {"choices": [{**choice, **told}]}
            if self.api == "completions"
            else {"choices": [choice], **told}
        )


class _Asked:
    """A request in any of the forms."""

    def __init__(self, api: Api, body: dict[str, Any]) -> None:
        inner = body.get("sampling_params", body)
        self.api: Api = api
        self.prompt: list[int] = body.get("prompt") or body.get("token_ids") or body["input_ids"]
        self.most: int = inner.get("max_new_tokens") or inner["max_tokens"]
        self.stops: list[int] = inner.get("stop_token_ids") or []
        self.top: int = inner.get("logprobs") or body.get("top_logprobs_num") or 1
        self.stream: bool = body.get("stream", False)
        self.seed: int = inner.get("seed", inner.get("sampling_seed", 0))
        self.is_score = "prompt_logprobs" in inner or "logprob_start_len" in body
        top_k = inner.get("top_k", 0)
        self.sampling = Sampling(temperature=inner.get("temperature", 1.0), top_k=max(0, top_k))


class _Answer:
    """What has been drawn for a request."""

    def __init__(self, asked: _Asked) -> None:
        self.asked = asked
        self.tokens: list[int] = []
        self.rows: list[Any] = []
        self.versions: list[str] = []
        self.aborted = False
        self._draws = np.random.default_rng(asked.seed)

    @property
    def done(self) -> bool:
        asked = self.asked
        return len(self.tokens) >= asked.most or (
            bool(self.tokens) and self.tokens[-1] in asked.stops
        )

    def draw(self, amount: float, version: str) -> None:
        last = (self.asked.prompt + self.tokens)[-1]
        row = logprobs_after(last, amount=amount, sampling=self.asked.sampling)
        greedy = self.asked.sampling.temperature == 0
        token = row.argmax() if greedy else self._draws.choice(VOCABULARY, p=np.exp(row))
        self.tokens.append(int(token))
        self.rows.append(np.maximum(row, -9999.0))
        self.versions.append(version)

    def event(self, *, whole: bool = False) -> dict[str, Any]:
        asked, start = self.asked, 0 if whole else len(self.tokens) - 1
        ends = "stop" if self.tokens and self.tokens[-1] in asked.stops else "length"
        finish = "abort" if self.aborted else ends if self.done else None
        tops = [[int(t) for t in np.argsort(-row)[: asked.top]] for row in self.rows]
        if asked.api == "sglang":
            triples = [[float(r[t]), t, None] for r, t in zip(self.rows, self.tokens, strict=True)]
            meta = {
                "prompt_tokens": len(asked.prompt),
                "cached_tokens": 0,
                "finish_reason": None if finish is None else {"type": finish},
                "output_token_logprobs": triples,
                "output_top_logprobs": [
                    [[float(r[t]), t, None] for t in best]
                    for r, best in zip(self.rows, tops, strict=True)
                ],
                "weight_version": self.versions[-1] if self.versions else None,
            }
            return {"output_ids": self.tokens, "meta_info": meta}
        shown = range(0 if self.aborted else start, 0 if self.aborted else len(self.tokens))
        first = start == 0
        prompt = {"prompt_token_ids": asked.prompt} if first else {}
        choice: dict[str, Any] = {
            "index": 0,
            "token_ids": [self.tokens[n] for n in shown],
            "finish_reason": finish,
        }
        if asked.api == "completions":
            logprobs = {
                "token_logprobs": [float(self.rows[n][self.tokens[n]]) for n in shown],
                "top_logprobs": [
                    {f"token_id:{t}": float(self.rows[n][t]) for t in [self.tokens[n], *tops[n]]}
                    for n in shown
                ],
            }
            return {"choices": [{**choice, **prompt, "logprobs": logprobs}]}
        content = [
            {
                "token_id": self.tokens[n],
                "logprob": float(self.rows[n][self.tokens[n]]),
                "top_logprobs": [
                    {"token_id": t, "logprob": float(self.rows[n][t])} for t in tops[n]
                ],
            }
            for n in shown
        ]
        if finish is not None:
            choice["weight_versions"] = self._spans()
        return {"choices": [{**choice, "logprobs": {"content": content}}], **prompt}

    def _spans(self) -> list[dict[str, Any]]:
        spans: list[dict[str, Any]] = []
        for place, version in enumerate(self.versions):
            if not spans or spans[-1]["version"] != version:
                spans.append({"version": version, "start": place, "end": place})
            spans[-1]["end"] = place + 1
        return spans


class _Stream(httpx.AsyncByteStream):
    def __init__(self, events: AsyncGenerator[bytes], server: WeightsServer) -> None:
        self._events, self._server = events, server

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        async for event in self._events:
            yield event

    async def aclose(self) -> None:
        self._server.hangups += 1
        await self._events.aclose()


def engine_of(
    server: WeightsServer, folder: Path, *, transfer: WeightTransfer | None = None, **changes: Any
) -> WeightsEngine:
    """Return an engine that asks the server."""
    url = "http://server.test" if server.api == "sglang" else "http://server.test/v1"
    asked: ServerSettings = settings(folder, url=url, api=server.api, **changes)
    return WeightsEngine(
        asked,
        transfer or FolderTransfer(folder / "weights", linked=False),
        decode=letters,
        first_wait_s=0.0,
        transport=server,
    )


def _event(data: Any) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()
