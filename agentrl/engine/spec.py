"""Recipe of an engine in plain values: they go to the process that makes it."""

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from agentrl.errors import ConfigError
from agentrl.policy import PolicyEngine

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from agentrl.engine.vllm.server import VllmServerRecipe
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
    draft_tokens: int = 0
    """Of `local`."""
    threads: int = 1
    """Torch's own, in the engine's process."""
    vllm: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further fields of `VllmServerSettings`, or, where `sampler` among them is agentrl, of
    `VllmSettings`."""

    def to_json(self) -> str:
        """Return the recipe as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "EngineSpec":
        """Return the recipe that `to_json` wrote."""
        return cls(**json.loads(text))

    @property
    def is_server(self) -> bool:
        """Return whether the engine is vLLM's server, in processes of its own."""
        return self.kind == "vllm" and self.vllm.get("sampler", "vllm") == "vllm"

    def build_server_recipe(self, **launch: Any) -> "VllmServerRecipe":
        """Return the recipe of vLLM's server; `launch` is further fields of it.

        Raises `ConfigError` for a model that cannot be read, and for one that takes images.
        """
        from transformers import AutoConfig

        from agentrl.engine.vllm.launch import VllmServerSettings
        from agentrl.engine.vllm.server import VllmServerRecipe

        try:
            config: Any = AutoConfig.from_pretrained(self.folder)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"the model {self.folder!r} of engine.kind vllm cannot be read: {error}; give a "
                "Hugging Face folder with config.json and weights, or the name of a model"
            ) from error
        if hasattr(config, "vision_config"):
            raise ConfigError(
                f"the policy in {self.folder} is a vision-language model, but images are not sent "
                "to vLLM's server; set engine.vllm.sampler: agentrl"
            )
        settings = VllmServerSettings(
            model=self.folder,
            slots=self.slots,
            context_tokens=self.context_tokens,
            dtype=self.dtype,
            **self._fields(),
        )
        vocabulary = config.get_text_config().vocab_size
        return VllmServerRecipe(settings=settings, vocabulary=vocabulary, **launch)

    def _fields(self) -> dict[str, Any]:
        return {name: value for name, value in self.vllm.items() if name != "sampler"}

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

        if self.is_server:
            from agentrl.engine.vllm.server import VllmServerEngine

            return VllmServerEngine(self.build_server_recipe(), decode=decode)
        if self.kind == "vllm":
            from agentrl.engine.vllm.in_process import VllmEngine, VllmSettings

            settings = VllmSettings(
                model=self.folder,
                slots=self.slots,
                context_tokens=self.context_tokens,
                dtype=self.dtype,
                **self._fields(),
            )
            return VllmEngine(settings, decode=decode, images=images)
        from agentrl.engine.local import LocalEngine

        if model is None:
            model = load_model(self.folder, dtype=self.dtype, device=self.device)
        return LocalEngine(
            model,
            slots=self.slots,
            context_tokens=self.context_tokens,
            draft_tokens=self.draft_tokens,
            decode=decode,
            device=self.device,
            images=images or load_images(self.folder, model),
        )
