"""What samples for us, each behind the same three calls: take these weights, sample these jobs."""

import asyncio
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from agentrl.chat.tokenizer import train_tokenizer
from agentrl.engine.local import LocalEngine
from agentrl.engine.remote.process import ProcessEngine
from agentrl.engine.spec import EngineSpec
from agentrl.policy import GenerateRequest
from benchmarks.llama_server import LlamaServer, write_gguf

SLOTS = 32
VOCABULARY = 4096
WAIT_S = 600.0
StateDict = Mapping[str, torch.Tensor]
Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class Job:
    """One request: its prompt, and how many tokens to sample."""

    prompt: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a sampler made of a job."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model, and the sizes of what is asked of it."""

    model: str | None = None
    """Folder of the model; None for a tiny one with random weights."""
    vocabulary: int = VOCABULARY
    prompt_tokens: int = 64
    group_size: int = 1
    """Requests with the same prompt."""
    mean: int = 128
    longest: int = 1024
    dtype: Dtype = "float32"
    """Of the weights, and of everybody's arithmetic."""

    @property
    def context_tokens(self) -> int:
        """Return the tokens of the longest request."""
        return self.prompt_tokens + self.longest

    def policy(self, seed: int = 0) -> PreTrainedModel:
        """Return the model of a seed, the same in every process."""
        torch.manual_seed(seed)
        if self.model is None:
            return round_weights(make_policy(), self.dtype)
        policy: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            self.model, dtype=torch.float32
        )
        if seed:
            with torch.no_grad():
                for parameter in policy.parameters():
                    parameter.mul_(1 + 0.01 * torch.randn_like(parameter))
        # Everybody samples as many tokens as a request asks for.
        policy.generation_config = GenerationConfig(eos_token_id=None, pad_token_id=0)
        return round_weights(policy.eval(), self.dtype)


def round_weights(policy: PreTrainedModel, dtype: Dtype) -> PreTrainedModel:
    """Return the model with weights of a type; frequencies of rotations stay in float32."""
    for parameter in policy.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype))
    return policy


def make_policy() -> PreTrainedModel:
    """Return a tiny model with random weights."""
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Qwen3ForCausalLM(config).eval()


def save_policy(workload: Workload, folder: Path) -> None:
    """Write the model of seed 0 and a tokenizer, which engines in other processes read."""
    workload.policy().save_pretrained(folder)
    train_tokenizer(["nobody reads what is sampled here"], vocab_size=300, folder=folder)


class Sampler(ABC):
    """Samples, and takes new weights. Ends with its process at the latest."""

    @abstractmethod
    def sample(self, work: Sequence[Job]) -> list[Sampled]:
        """Sample a workload, all of it asked for at once."""

    @abstractmethod
    def load(self, weights: StateDict) -> None:
        """Sample with these weights from now on."""

    @abstractmethod
    def close(self) -> None:
        """Release what it has."""


class Ours(Sampler):
    """An engine of agentrl."""

    def __init__(self, engine: LocalEngine | ProcessEngine) -> None:
        self._engine = engine
        self._runner = asyncio.Runner()
        self._asked = 0
        self._version = 0

    def sample(self, work: Sequence[Job]) -> list[Sampled]:
        """Sample a workload."""
        return self._runner.run(self._sample(work))

    def load(self, weights: StateDict) -> None:
        """Take weights: through memory that the processes share, where there are two."""
        self._version += 1
        self._runner.run(self._engine.load(weights, self._version))

    def close(self) -> None:
        """End the engine, and its process where it has one."""
        self._runner.run(self._engine.close())
        self._runner.close()

    async def _sample(self, work: Sequence[Job]) -> list[Sampled]:
        first = self._asked
        self._asked += len(work)
        requests = [
            GenerateRequest(id=str(i), prompt=job.prompt, max_new_tokens=job.tokens, seed=i)
            for i, job in enumerate(work, first)
        ]
        replies = await asyncio.gather(*map(self._engine.generate, requests))
        return [Sampled(reply.token_ids, reply.logprobs) for reply in replies]


class Continuous(Sampler):
    """Transformers' continuous batching, with the settings that suit a CPU.

    Its defaults are made for GPUs: page size, number of blocks and batch size are set as measured
    best on this workload.
    """

    def __init__(self, workload: Workload) -> None:
        self._model: Any = workload.policy()
        self._context_tokens = workload.context_tokens
        self._asked = 0
        self._start()

    def sample(self, work: Sequence[Job]) -> list[Sampled]:
        """Sample a workload."""
        names = [f"job-{self._asked + index}" for index in range(len(work))]
        self._asked += len(work)
        for name, job in zip(names, work, strict=True):
            self._manager.add_request(list(job.prompt), request_id=name, max_new_tokens=job.tokens)
        done: dict[str, Sampled] = {}
        deadline = time.monotonic() + WAIT_S
        while len(done) < len(work):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(work) - len(done)} of {len(work)} requests never ended")
            reply = self._manager.get_result(timeout=1)
            if reply is not None and reply.is_finished():
                sampled = Sampled(tuple(reply.generated_tokens), tuple(reply.logprobs))
                done[reply.request_id] = sampled
        return [done[name] for name in names]

    def load(self, weights: StateDict) -> None:
        """Copy weights into the model, and start anew: it has no call that forgets its cache."""
        self.close()
        self._model.load_state_dict(weights)
        self._start()

    def close(self) -> None:
        """Stop its thread."""
        self._manager.stop(block=True, timeout=30)

    def _start(self) -> None:
        sampling = GenerationConfig(
            do_sample=True, temperature=1.0, top_k=0, top_p=1.0, eos_token_id=-1, pad_token_id=0
        )
        settings = ContinuousBatchingConfig(
            page_size=32,
            num_blocks=SLOTS * self._context_tokens // 32 + SLOTS,
            max_batch_tokens=256,
            max_requests_per_batch=SLOTS,
            return_logprobs=True,
            use_cuda_graph=False,
            use_async_batching=False,
            seed=0,
        )
        self._manager: Any = self._model.init_continuous_batching(
            generation_config=sampling, continuous_batching_config=settings
        )
        self._manager.start()


class Static(Sampler):
    """`model.generate` on one static batch, which runs as long as its longest row."""

    def __init__(self, workload: Workload) -> None:
        self._model: Any = workload.policy()

    def sample(self, work: Sequence[Job]) -> list[Sampled]:
        """Sample a workload whose prompts are of one length; spared log-probs, it returns nan."""
        prompts = torch.tensor([job.prompt for job in work])
        longest = max(job.tokens for job in work)
        rows = self._model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=longest,
            min_new_tokens=longest,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            pad_token_id=0,
        )
        sampled = rows[:, prompts.shape[1] :].tolist()
        return [
            Sampled(tuple(row[: job.tokens]), (float("nan"),) * job.tokens)
            for row, job in zip(sampled, work, strict=True)
        ]

    def load(self, weights: StateDict) -> None:
        """Copy weights into the model."""
        self._model.load_state_dict(weights)

    def close(self) -> None:
        """Nothing is left to release."""


class LlamaCpp(Sampler):
    """llama.cpp's server, in a process of its own."""

    def __init__(self, workload: Workload, folder: Path, program: str) -> None:
        assert workload.model is not None, "it is measured with models of a folder"
        self._model, self._dtype = Path(workload.model), workload.dtype
        self._context_tokens, self._program = workload.context_tokens, program
        self._file = folder / f"llama-{os.getpid()}.gguf"
        self._server: LlamaServer | None = None
        self.load(workload.policy().state_dict())

    def sample(self, work: Sequence[Job]) -> list[Sampled]:
        """Sample a workload."""
        assert self._server is not None
        asked = [(job.prompt, job.tokens) for job in work]
        return [Sampled(*reply) for reply in self._server.complete(asked)]

    def load(self, weights: StateDict) -> None:
        """Write another file, and start the server anew: it has no call for new weights."""
        self.close()
        write_gguf(self._model, weights, self._file, dtype=self._dtype)
        self._server = LlamaServer(
            self._program,
            self._file,
            slots=SLOTS,
            context_tokens=self._context_tokens,
            dtype=self._dtype,
        )

    def close(self) -> None:
        """End the server."""
        if self._server is not None:
            self._server.close()


Kind = Literal["ours", "ours, own process", "vLLM", "llama.cpp", "continuous batching", "generate"]


def sampler(kind: Kind, workload: Workload, folder: Path, program: str) -> Sampler:
    """Return a sampler with the model of seed 0, which `folder` holds, and one thread.

    `program` is the interpreter that has vLLM, or llama.cpp's server.
    """
    torch.set_num_threads(1)
    match kind:
        case "ours":
            return Ours(open_engine(workload))
        case "ours, own process":
            recipe = _recipe("local", workload, folder)
            return Ours(ProcessEngine(recipe, python=sys.executable))
        case "vLLM":
            return Ours(ProcessEngine(_recipe("vllm", workload, folder), python=program))
        case "llama.cpp":
            return LlamaCpp(workload, folder, program)
        case "continuous batching":
            return Continuous(workload)
        case "generate":
            return Static(workload)


def open_engine(workload: Workload) -> LocalEngine:
    """Return the local engine with the model of seed 0 and one thread."""
    return LocalEngine(
        workload.policy(), slots=SLOTS, context_tokens=workload.context_tokens, threads=1
    )


def _recipe(kind: Literal["local", "vllm"], workload: Workload, folder: Path) -> EngineSpec:
    return EngineSpec(
        kind=kind,
        folder=str(folder),
        slots=SLOTS,
        context_tokens=workload.context_tokens,
        dtype=workload.dtype,
        threads=1,
    )
