"""A server of completions in this event loop: a small Markov model with adapters, and with faults.

It answers as vLLM's does, in its fields and its order. Its distribution after a token is a row of a
table, to which an adapter adds another table as often as the sum of its matrices says.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file

from agentrl.engine.endpoint import CompletionsEngine, ServerSettings
from agentrl.policy import Completion, GenerateRequest, Sampling
from agentrl.weight_sync.adapters import AdapterWeights, BaseWeights, LoraAdapter
from agentrl.weight_sync.check import CheckedWeights, WeightCheck

VOCABULARY = 24
CONTEXT_TOKENS = 64
TABLES: npt.NDArray[np.float64] = np.random.default_rng(5).normal(
    size=(2, VOCABULARY, VOCABULARY), scale=1.5
)
PROMPT = (3, 1, 4)
BASE = BaseWeights({"model.layer.q_proj.weight": torch.zeros(3, 3)})


def weights(amount: float) -> AdapterWeights:
    """Return weights of which the server makes the base and so much of the other table."""
    b = torch.tensor([[amount], [0.0], [0.0]])
    adapter = LoraAdapter(torch.tensor([[1.0, 0.0, 0.0]]), b, 2.0)
    return AdapterWeights(BASE, {"model.layer.q_proj.weight": adapter})


def logprobs_after(
    token: int, *, amount: float = 0.0, sampling: Sampling | None = None
) -> npt.NDArray[np.float64]:
    """Return the log-probs of all tokens after one."""
    sampling = sampling or Sampling()
    logits = TABLES[0, token] + amount * TABLES[1, token]
    if sampling.temperature not in (0, 1):
        logits = logits / sampling.temperature
    if sampling.top_k:
        logits = np.where(logits < np.sort(logits)[-sampling.top_k], -np.inf, logits)
    return logits - np.log(np.exp(logits).sum())


def expected(
    context: Sequence[int], tokens: Sequence[int], amounts: Sequence[float]
) -> list[float]:
    """Return the log-prob of each token, under its own amount."""
    before = [*context, *tokens][len(context) - 1 : -1]
    return [
        float(logprobs_after(last, amount=amount)[token])
        for last, token, amount in zip(before, tokens, amounts, strict=True)
    ]


def provable(
    amount: float, *, says: float | None = None, deadline_s: float = 60.0
) -> CheckedWeights:
    """Return weights with what they say, or with what another amount would."""
    tokens = (3, 1, 4, 1, 5, 9, 2, 6)
    at = amount if says is None else says
    said = [float(logprobs_after(a, amount=at)[b]) for a, b in pairwise(tokens)]
    proof = WeightCheck(token_ids=tokens, logprobs=tuple(said), max_gap=0.01, deadline_s=deadline_s)
    return CheckedWeights(weights(amount), proof)


class Stream(httpx.AsyncByteStream):
    """Events as bytes; it tells its server when somebody hangs up."""

    def __init__(self, events: AsyncGenerator[bytes], server: "Server") -> None:
        self._events = events
        self._server = server

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        async for event in self._events:
            yield event

    async def aclose(self) -> None:
        await self._events.aclose()


class Server(httpx.AsyncBaseTransport):
    """Answers requests; its attributes say what is wrong with it."""

    def __init__(self) -> None:
        self.base = 0.0
        """How much of the other table the base has; another base has some."""
        self.adapters: dict[str, float] = {}
        self.bodies: list[dict[str, Any]] = []
        """Of completions, in their order."""
        self.told: list[tuple[str, dict[str, Any]]] = []
        """What was loaded and unloaded."""
        self.mode = "processed_logprobs"
        self.offset = 7.5
        """Of logits from log-probs."""
        self.max_logprobs = 20
        self.max_model_len: int | None = 1000
        self.faults: deque[httpx.Response | Exception] = deque()
        """What completions are answered with first."""
        self.loads = asyncio.Event()
        """Adapters are loaded when it is set, as it is at first."""
        self.loads.set()
        self.load_faults: deque[httpx.Response] = deque()
        self.stale: deque[bool] = deque()
        """Whether the next adapters are taken and not used."""
        self.alter: Callable[[dict[str, Any]], Any] = lambda choice: choice
        """Changes the choice of every answer, or its events."""
        self.tears: deque[int] = deque()
        """After how many tokens the next streams break."""
        self.holds = 0
        """A stream waits after so many tokens, if not 0, until it is hung up on or `go` is set."""
        self.held = asyncio.Semaphore(0)
        """Released by every stream that begins to wait."""
        self.go = asyncio.Event()
        self.hangups = 0
        self.unknown = asyncio.Semaphore(0)
        """Released by every request for a model that is not there."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/v1/")
        if path == "models":
            about = {"id": "base", "max_model_len": self.max_model_len}
            return httpx.Response(200, json={"data": [about]})
        body = json.loads(request.content)
        if path == "completions":
            return self._complete(body, request)
        self.told.append((path, body))
        if path == "unload_lora_adapter":
            known = self.adapters.pop(body["lora_name"], None)
            return httpx.Response(404 if known is None else 200, text="done")
        await self.loads.wait()
        return self.load(body)

    def load(self, body: dict[str, Any]) -> httpx.Response:
        """Take an adapter from its folder."""
        if self.load_faults:
            return self.load_faults.popleft()
        if body["lora_name"] in self.adapters:
            return httpx.Response(400, json={"error": {"message": "has already been loaded"}})
        folder = Path(body["lora_path"])
        told = json.loads((folder / "adapter_config.json").read_text())
        tensors = load_file(folder / "adapter_model.safetensors")
        name = "base_model.model.model.layer.q_proj"
        a, b = tensors[f"{name}.lora_A.weight"], tensors[f"{name}.lora_B.weight"]
        assert (told["r"], told["lora_alpha"], told["target_modules"]) == (1, 2.0, ["q_proj"])
        amount = float((b @ a).sum())
        is_stale = self.stale.popleft() if self.stale else False
        self.adapters[body["lora_name"]] = 0.0 if is_stale else amount
        return httpx.Response(200, text="Success")

    def _complete(self, body: dict[str, Any], request: httpx.Request) -> httpx.Response:
        self.bodies.append(body)
        if self.faults:
            fault = self.faults.popleft()
            if isinstance(fault, Exception):
                raise fault
            return fault
        if body["model"] != "base" and body["model"] not in self.adapters:
            self.unknown.release()
            return httpx.Response(404, json={"error": {"message": "does not exist"}})
        if body.get("logprobs", 0) > self.max_logprobs:
            return httpx.Response(400, json={"error": {"message": "logprobs: too many"}})
        if body.get("stream"):
            timeout_s = request.extensions["timeout"]["read"]
            events = Stream(self._events(body, timeout_s), self)
            headers = {"content-type": "text/event-stream; charset=utf-8"}
            return httpx.Response(200, headers=headers, stream=events)
        return httpx.Response(200, json={"choices": [self._whole(body)]})

    def _amount(self, body: dict[str, Any]) -> float:
        return self.base + self.adapters.get(body["model"], 0.0)

    def _whole(self, body: dict[str, Any]) -> Any:
        prompt, tokens = body["prompt"], self._sampled(body)
        choice: dict[str, Any] = {"token_ids": tokens, "prompt_token_ids": prompt}
        if "logprobs" in body:
            choice["logprobs"] = self._logprobs(body, tokens)
        if "prompt_logprobs" in body:
            choice["prompt_logprobs"] = [None, *self._prompt_logprobs(body)]
        return self.alter({**choice, "index": 0, "text": "", "finish_reason": "length"})

    def _prompt_logprobs(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for last, token in zip(body["prompt"], body["prompt"][1:], strict=False):
            row = logprobs_after(last, amount=self._amount(body))
            best = np.argsort(-row)[: body["prompt_logprobs"]]
            rows.append({str(t): {"logprob": float(row[t])} for t in {token, *best.tolist()}})
        return rows

    def _sampled(self, body: dict[str, Any]) -> list[int]:
        draws, tokens = np.random.default_rng(body.get("seed", 0)), list[int]()
        while len(tokens) < body["max_tokens"]:
            last = (body["prompt"] + tokens)[-1]
            row = logprobs_after(last, amount=self._amount(body), sampling=_sampling(body))
            greedy = body.get("temperature") == 0
            tokens.append(int(row.argmax() if greedy else draws.choice(VOCABULARY, p=np.exp(row))))
            if tokens[-1] in body.get("stop_token_ids", ()):
                break
        return tokens

    def _logprobs(self, body: dict[str, Any], tokens: list[int], start: int = 0) -> dict[str, Any]:
        """Return what is said of the tokens from a place on."""
        shown: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": []}
        context = body["prompt"] + tokens
        for place, token in enumerate(tokens[start:], len(body["prompt"]) + start):
            shaped = _sampling(body) if self.mode == "processed_logprobs" else Sampling()
            row = logprobs_after(context[place - 1], amount=self._amount(body), sampling=shaped)
            if self.mode == "raw_logits":
                row = row + self.offset
            row = np.maximum(row, -9999.0)
            asked = np.argsort(-row)[: body["logprobs"]].tolist()
            shown["tokens"].append(f"token_id:{token}")
            shown["token_logprobs"].append(float(row[token]))
            shown["top_logprobs"].append({f"token_id:{t}": float(row[t]) for t in [token, *asked]})
        return shown

    async def _events(self, body: dict[str, Any], timeout_s: float) -> AsyncGenerator[bytes]:
        tokens, tear = self._sampled(body), self.tears.popleft() if self.tears else -1
        try:
            for place, token in enumerate(tokens):
                if place == tear:
                    raise httpx.RemoteProtocolError("peer closed connection")
                if self.holds and place == self.holds and not self.go.is_set():
                    self.held.release()
                    await self._wait(timeout_s)
                is_last = place + 1 == len(tokens)
                ends = "stop" if token in body["stop_token_ids"] else "length"
                choice = {
                    "token_ids": [token],
                    "prompt_token_ids": body["prompt"] if place == 0 else None,
                    "logprobs": self._logprobs(body, tokens[: place + 1], place),
                    "finish_reason": ends if is_last else None,
                }
                yield _event({"choices": [self.alter(choice)]})
                await asyncio.sleep(0)
        except GeneratorExit:
            self.hangups += 1
            raise
        if tear == len(tokens):
            return
        cached = {"cached_tokens": len(body["prompt"]) - 1}
        yield _event({"choices": [], "usage": {"prompt_tokens_details": cached}})
        yield b"data: [DONE]\n\n"

    async def _wait(self, timeout_s: float) -> None:
        try:
            await asyncio.wait_for(self.go.wait(), timeout_s)
        except TimeoutError as error:
            raise httpx.ReadTimeout("nothing came") from error
        except asyncio.CancelledError:
            self.hangups += 1
            raise


def settings(folder: Path, **changes: Any) -> ServerSettings:
    given: dict[str, Any] = {
        "url": "http://server.test/v1",
        "model": "base",
        "adapters": folder / "adapters",
        "vocabulary": VOCABULARY,
        "context_tokens": CONTEXT_TOKENS,
        "retries": 2,
        "start_s": 60.0,
    }
    return ServerSettings(**{**given, **changes})


def asking(server: Server, folder: Path, **changes: Any) -> CompletionsEngine:
    return CompletionsEngine(
        settings(folder, **changes), decode=letters, first_wait_s=0.0, transport=server
    )


def letters(tokens: Any) -> str:
    return "".join(chr(ord("a") + token) for token in tokens)


def request(number: int = 0, **changes: Any) -> GenerateRequest:
    given: dict[str, Any] = {
        "id": f"r{number}",
        "prompt": PROMPT,
        "max_new_tokens": 12,
        "seed": number,
    }
    return GenerateRequest(**{**given, **changes})


def check_said(
    done: Completion, amounts: dict[int, float], prompt: tuple[int, ...] = PROMPT
) -> None:
    """Every token has the log-prob of the version that it names."""
    said = expected(PROMPT, done.token_ids, [amounts[version] for version in done.versions])
    assert done.logprobs == pytest.approx(said, abs=1e-6)


def served(**attributes: Any) -> Server:
    server = Server()
    for name, value in attributes.items():
        setattr(server, name, value)
    return server


def _sampling(body: dict[str, Any]) -> Sampling:
    return Sampling(temperature=body.get("temperature", 1.0), top_k=body.get("top_k", 0))


def _event(data: Any) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()
