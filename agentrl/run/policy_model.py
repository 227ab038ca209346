"""The policy as a run holds it: model, tokenizer, chat format and image processor."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.models.place import policy_place
from agentrl.runtime.machine import device_of
from agentrl.runtime.torchrun import TorchrunLaunch

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from agentrl.chat.format import ChatFormat
    from agentrl.models.vision.processor import ImageProcessor


@dataclass(frozen=True, slots=True)
class PolicyModel:
    """A model with its tokenizer and chat format."""

    path: Path | str
    """Folder of its files, or their name on the hub."""
    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    chat: "ChatFormat"
    images: "ImageProcessor | None" = None
    """Image processor, where the policy sees."""


def trains_in_shards(config: RunConfig) -> bool:
    """Return whether several processes train the policy, each a part of every weight."""
    return config.learn.devices.count > 1 or TorchrunLaunch.read() is not None


def load_policy(config: RunConfig, path: Path | str, *, device: str | None = None) -> PolicyModel:
    """Return the policy that a path names: a folder, a GGUF file or a name.

    It is on the config's device unless another is given. On `cpu` weights stay in their file until
    they are used.
    """
    from agentrl.learn.context_parallel import check_heads
    from agentrl.models.folders import load_images, load_model, load_tokenizer

    path = policy_place(path)
    device = device or device_of(config.policy.device)
    tokenizer = load_tokenizer(path)
    model = load_model(path, dtype=config.policy.dtype, device=device)
    images = load_images(path, model)
    chat = build_chat_format(config, tokenizer, images)
    rows = len(cast("Tensor", model.get_input_embeddings().weight))
    check_vocabulary(rows, tokenizer.vocab_size, chat.stop_token_ids, path=path)
    check_heads(model.config, config.learn.devices.context_parallel)
    return PolicyModel(path, model, tokenizer, chat, images)


def check_adapters(config: RunConfig) -> None:
    """Raise `ConfigError` for adapters that the modules of the policy cannot take.

    A new model and one in a folder are judged by their config, without weights; others when they
    are loaded and trained.
    """
    section = config.learn.lora
    if section is None:
        return
    from agentrl.learn.lora import adapt

    skeleton = _build_skeleton(config)
    if skeleton is not None:
        adapt(skeleton, section, seed=0)


def _build_skeleton(config: RunConfig) -> "PreTrainedModel | None":
    """Return the policy's model without weights, on the meta device; None where only its files
    tell what it is."""
    import torch

    from agentrl.models.folders import load_skeleton, make_model

    section = config.policy.make
    if section is None:
        assert config.policy.path is not None, "load_config sees to it"
        return load_skeleton(policy_place(config.policy.path))
    with torch.device("meta"):
        return make_model(
            section,
            vocab_size=section.vocab_size,
            eos_token_id=1,
            pad_token_id=0,
            context_tokens=config.engine.context_tokens,
            seed=0,
            image_token_ids=None if section.vision is None else (4, 5, 6),
        )


def check_vocabulary(
    rows: int, vocab_size: int, stop_token_ids: Collection[int], *, path: Path | str
) -> None:
    """Raise `ConfigError` for embeddings with fewer rows than the tokenizer has tokens.

    `vocab_size` is that without added tokens. Of those a model may lack some, as text models of
    Gemma 3 lack the token of an image, but not the ones that end a turn.
    """
    needed = max([vocab_size, *(token + 1 for token in stop_token_ids)])
    if needed > rows:
        raise ConfigError(
            f"policy.path is {str(path)!r}, whose tokenizer writes token {needed - 1}, but whose "
            f"model has {rows} embeddings; use the tokenizer that the model was trained with, or "
            "enlarge the embeddings (model.resize_token_embeddings)"
        )


def save_policy(policy: PolicyModel, folder: Path) -> None:
    """Write the policy as a Hugging Face folder."""
    from agentrl.models.quiet import no_bars

    with no_bars():
        policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    if policy.images is not None:
        policy.images.save_pretrained(folder)


def build_chat_format(
    config: RunConfig,
    tokenizer: "PreTrainedTokenizerBase",
    images: "ImageProcessor | None" = None,
) -> "ChatFormat":
    """Return the chat format of this policy; `images` is its image processor, where it sees.

    Raises `ConfigError` as `ChatFormat` does, and for a template that does not come to an end.
    """
    from agentrl.chat.format import ChatFormat
    from agentrl.chat.template import prove_within

    policy = config.policy
    name = policy.renderer or policy.template or tokenizer.name_or_path or "the policy"
    return prove_within(
        f"the chat template of {name}",
        lambda: ChatFormat(
            tokenizer,
            dialect=policy.dialect,
            template=policy.template,
            images=images,
            options=policy.chat_template_kwargs,
            earlier_turns=policy.earlier_turns,
            renderer=policy.renderer,
        ),
    )
