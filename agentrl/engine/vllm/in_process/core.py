"""vLLM itself, in this process, one step at a time. One thread at a time may call it."""

import os
from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from agentrl.engine.in_process import AnyFlight
from agentrl.engine.vllm.in_process import adapters
from agentrl.engine.vllm.in_process.settings import VllmSettings
from agentrl.engine.vllm.in_process.steps import SampledStep, ScoredRequest
from agentrl.engine.vllm.launch import CPU_CACHE_BYTES
from agentrl.engine.weights import Weights, read_weights
from agentrl.errors import ConfigError
from agentrl.models.vision.processor import ImageProcessor, load_processor
from agentrl.runtime.extras import install_command
from agentrl.runtime.vllm_release import check_release
from agentrl.weight_sync.adapters import LoraAdapter, find_adapters

if TYPE_CHECKING:
    from agentrl.engine.vllm.in_process.logits_sampler import LogitsSampler

# Before vLLM is imported: it then runs here and not in a process of its own, so that what happens
# between two steps is ours to decide.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
# Every load of weights is several lines otherwise; what goes wrong is raised.
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
# The CPU build would pin this whole process, trainer and all, to cores of its choice.
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")


_NAMES = count()
"""Engines of one process share what they are asked through, so no two requests have one name."""


class VllmCore:
    """The synchronous engine."""

    def __init__(self, settings: VllmSettings, images: ImageProcessor | None = None) -> None:
        """Load the model; `images` is what cuts up images for one that sees, its folder's unless
        given.

        Raises `ConfigError` where vLLM is missing or refuses its arguments.
        """
        check_release()
        try:
            from vllm import (  # pyright: ignore[reportMissingImports]
                EngineArgs,  # pyright: ignore[reportAttributeAccessIssue]
                LLMEngine,  # pyright: ignore[reportAttributeAccessIssue]
            )
        except ImportError as error:
            raise ConfigError(
                f"engine.kind is vllm, but vLLM cannot be imported ({error}); "
                f"{install_command('vllm')} on a machine with a GPU, or see docs/vllm.md for its "
                "CPU build"
            ) from error
        self.images = _ready_to_see(str(settings.model), images)
        """Image processor; None where the model takes no images."""
        rank = settings.adapter_rank
        # Written for vLLM's first model runner. The second one, its default on GPUs, takes no such
        # logits processor from 0.31 on, and cannot be asked for scores.
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
        self._sampler = _build_sampler()
        if rank and self.images is not None:
            raise ConfigError(
                "engine.vllm.adapters is native and the policy is a vision-language model, a "
                "combination that has not been verified with vLLM; set it to merged"
            )
        cpu = not torch.cuda.is_available()
        arguments: dict[str, Any] = {
            "model": str(settings.model),
            "dtype": settings.dtype,
            "max_model_len": settings.context_tokens,
            "max_num_seqs": settings.slots,
            "max_num_batched_tokens": settings.prefill_tokens,
            "enable_prefix_caching": settings.prefix_cache,
            "gpu_memory_utilization": settings.memory_fraction,
            "kv_cache_memory_bytes": settings.cache_bytes or (CPU_CACHE_BYTES if cpu else None),
            "enforce_eager": settings.eager or cpu,
            "skip_tokenizer_init": True,
            **self._sampler.engine_arguments(),
            # A step then ends with the tokens it computed, and weights never change inside one.
            "async_scheduling": False,
            "disable_log_stats": True,
            "seed": 0,
            # Patches are kept by what cuts images up, and vLLM need not know what it had before.
            "mm_processor_cache_gb": 0,
            **(adapters.arguments(str(settings.model), rank) if rank else {}),
            **({"distributed_executor_backend": "uni"} if cpu else {}),
            **settings.options,
        }
        arguments = {name: value for name, value in arguments.items() if value is not None}
        try:
            self._engine: Any = LLMEngine.from_engine_args(EngineArgs(**arguments))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"vLLM rejects its arguments {arguments}: {error}") from error
        config: Any = self._engine.model_config
        self.vocabulary = int(config.get_vocab_size())
        self._flights: dict[str, AnyFlight] = {}
        self._adapter = adapters.request() if rank else None
        self._base: str | None = None
        """Id of the base whose adapters there are."""
        self._put_adapters({})
        self._sampler.attach(self._engine)

    @staticmethod
    def new_name() -> str:
        """Return a name for a request."""
        return f"{next(_NAMES)}"

    def add(self, name: str, flight: AnyFlight) -> None:
        """Take a request; its tokens are sampled or scored."""
        from vllm import (  # pyright: ignore[reportMissingImports]
            SamplingParams,  # pyright: ignore[reportAttributeAccessIssue]
        )

        arguments = self._sampler.request_arguments(name, flight)
        params = SamplingParams(ignore_eos=True, detokenize=False, **arguments)
        tokens = [*flight.context]
        prompt: Any = {"type": "token", "prompt_token_ids": tokens}
        if flight.request.images and self.images is not None:
            from agentrl.engine.vllm.in_process import vision

            prompt = vision.prompt_of(tokens, flight.request.images, self.images)
        self._flights[name] = flight
        self._engine.add_request(name, prompt, params, lora_request=self._adapter)

    def drop(self, names: Sequence[str]) -> None:
        """Forget requests, whatever they are doing."""
        self._engine.abort_request(list(names))
        for name in names:
            self._flights.pop(name, None)
            self._sampler.drop(name)

    def step(self, version: int) -> list[SampledStep | ScoredRequest]:
        """Compute once, with weights of a version, and return what came of it."""
        self._sampler.version = version
        return [
            result
            for output in self._engine.step()
            if (flight := self._flights.get(output.request_id)) is not None
            for result in self._sampler.read(flight, output)
        ]

    def load(self, weights: Weights) -> None:
        """Take new weights in place, and forget every cached key and what was seen.

        Requests go on: what they have is computed again. Of weights with adapters, the base is
        taken the first time only, where vLLM has adapters of its own; else they are merged.
        """
        state = read_weights(weights)
        adapted = find_adapters(state) if self._adapter is not None else None
        if adapted is None or adapted.base.id != self._base:
            self._base = None
            self._load_base(state if adapted is None else adapted.base.weights)
        self._put_adapters({} if adapted is None else adapted.adapters)
        self._base = None if adapted is None else adapted.base.id
        self._engine.reset_prefix_cache(reset_running_requests=True)
        if self.images is not None:
            self._engine.reset_encoder_cache()
        for flight in self._flights.values():
            flight.begin_again()

    def _load_base(self, state: Mapping[str, Tensor]) -> None:
        rpc = self._engine.collective_rpc
        # One after the other, since merging makes each anew.
        rpc("reload_weights", kwargs={"weights_iterator": iter(state.items())})
        rpc(_repack_head)

    def _put_adapters(self, found: Mapping[str, LoraAdapter]) -> None:
        if self._adapter is not None:
            self._engine.collective_rpc(adapters.install_adapters, args=(found,))

    def close(self) -> None:
        """Release the model."""
        self.drop([*self._flights])
        self._engine.engine_core.shutdown()


def _build_sampler() -> "LogitsSampler":
    from agentrl.engine.vllm.in_process.logits_sampler import LogitsSampler

    return LogitsSampler()


def _ready_to_see(model: str, images: ImageProcessor | None) -> ImageProcessor | None:
    """Let vLLM know a model that sees, and return what cuts up its images; None for another one.

    Raises `ConfigError` for a model that sees and cannot be shown images.
    """
    from transformers import AutoConfig

    from agentrl.engine.vllm.in_process import vision

    try:
        config: Any = AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the model {model!r} of engine.kind vllm cannot be read: {error}; give a Hugging Face "
            "folder with config.json and weights, or the name of a model"
        ) from error
    arch: str = (config.architectures or [type(config).__name__])[0]
    if arch in vision.MODELS:
        images = images or load_processor(model, token_id=config.image_token_id)
        vision.register(arch, images)
        return images
    if hasattr(config, "vision_config"):
        raise ConfigError(
            f"the model {model!r} is a {arch}, which takes images, but engine.kind vllm supports "
            f"images only for {', '.join(vision.MODELS)}; use one of these, or engine.kind: local"
        )
    return None


def _repack_head(worker: Any) -> None:
    """Pack a tied head again, which vLLM's CPU build leaves as it was when weights change.

    Without it log-probs are silently wrong by nats. Elsewhere there is nothing to do.
    """
    model: Any = worker.get_model()
    # A model that sees has its head, and says whether that is tied, in its text half.
    model = getattr(model, "language_model", model)
    config: Any = getattr(model, "config", worker.model_config.hf_text_config)
    if not getattr(config, "tie_word_embeddings", False) or torch.cuda.is_available():
        return
    from vllm.model_executor.layers.utils import (  # pyright: ignore[reportMissingImports]
        dispatch_cpu_unquantized_gemm,
    )

    dispatch_cpu_unquantized_gemm(model.lm_head, remove_weight=False)
