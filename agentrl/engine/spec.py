"""Recipe of an engine in plain values: they go to the process that makes it."""

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from agentrl.policy import PolicyEngine

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from agentrl.models.vision.processor import ImageProcessor


class ClosableEngine(PolicyEngine, AbstractAsyncContextManager[PolicyEngine], Protocol):
    """A policy engine for `async with`, which closes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """A model folder, and how an engine runs it."""

    kind: Literal["local", "vllm"]
    folder: str
    """A Hugging Face folder with config, weights and tokenizer, or a name on the hub."""
    slots: int = 32
    context_tokens: int = 2048
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: str = "cpu"
    """Device of `local`; vLLM takes what it sees."""
    cuda_devices: str | None = None
    """`CUDA_VISIBLE_DEVICES` of a process that is started for it; this process's unless set."""
    threads: int = 1
    """Torch's own, in the engine's process."""
    vllm: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further fields of `VllmSettings`."""

    def to_json(self) -> str:
        """Return the recipe as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "EngineSpec":
        """Return the recipe that `to_json` wrote."""
        return cls(**json.loads(text))

    def open(
        self,
        model: "PreTrainedModel | None" = None,
        tokenizer: "PreTrainedTokenizerBase | None" = None,
        images: "ImageProcessor | None" = None,
    ) -> ClosableEngine:
        """Return the engine, made in this process; what is not given is loaded from the folder.

        Raises `ConfigError` for what the engine refuses.
        """
        from agentrl.models.folders import load_images, load_model, load_tokenizer

        speaker = tokenizer or load_tokenizer(self.folder)

        def decode(token_ids: Sequence[int]) -> str:
            return str(speaker.decode(list(token_ids)))

        if self.kind == "vllm":
            from agentrl.engine.vllm import VllmEngine, VllmSettings

            settings = VllmSettings(
                model=self.folder,
                slots=self.slots,
                context_tokens=self.context_tokens,
                dtype=self.dtype,
                **self.vllm,
            )
            return VllmEngine(settings, decode=decode, images=images)
        from agentrl.engine.local import LocalEngine

        if model is None:
            model = load_model(self.folder, dtype=self.dtype, device=self.device)
        return LocalEngine(
            model,
            slots=self.slots,
            context_tokens=self.context_tokens,
            decode=decode,
            device=self.device,
            images=images or load_images(self.folder, model),
        )
