"""Models that are ready to train: small new ones with random weights, or Hugging Face folders."""

from collections.abc import Collection, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from safetensors import SafetensorError
from torch.utils.checkpoint import checkpoint
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)
from transformers.modeling_layers import GradientCheckpointingLayer

from agentrl.config.learn import LearnSection
from agentrl.config.run import MakePolicySection, MakeVisionSection
from agentrl.errors import ConfigError
from agentrl.learn.lora import adapt, is_adapted
from agentrl.models.devices import computing_device
from agentrl.models.out_of_memory import explain_out_of_memory, is_out_of_memory
from agentrl.models.place import ADAPTED, ADAPTER_CONFIG, gguf_fault, is_gguf
from agentrl.models.precision import round_to
from agentrl.models.quiet import no_bars
from agentrl.models.sinks import implementation_of
from agentrl.models.vision.model import FAMILY, sees
from agentrl.models.vision.processor import ImageProcessor, load_processor, new_processor

CUSTOM_CODE = (
    "has code of its own (auto_map in its config.json), which agentrl does not run; name a model "
    "that transformers itself has, or a version that was converted to one"
)
"""Fault of a folder that transformers cannot read without the code in it."""
MXFP4 = "mxfp4"
"""Quantization in 4 bits of the experts of gpt-oss, as it is published."""
CONFIG_FAULTS = (
    *(ValueError, TypeError, AttributeError, RuntimeError, ArithmeticError, LookupError),
    *(AssertionError, ImportError),
)
"""Errors with which transformers makes no model of a config.json whose fields it has read."""
TEXT_SUFFIXES = (".json", ".jinja", ".txt")
MOST_FAULTS = 3
"""Tensors of a damaged folder that its error names."""


def make_model(
    section: MakePolicySection,
    *,
    vocab_size: int,
    eos_token_id: int,
    pad_token_id: int,
    context_tokens: int,
    seed: int,
    image_token_ids: tuple[int, int, int] | None = None,
) -> PreTrainedModel:
    """Return a Qwen3 with random weights: the same ones for the same arguments. With a section
    `vision` it is a Qwen3-VL, whose tokens around and of an image are `image_token_ids`.

    `vocab_size` is that of the tokenizer, which may be smaller than the section's upper bound. The
    caller's random state is left as it was.
    """
    if section.heads % section.kv_heads:
        raise ConfigError(
            f"policy.make.heads={section.heads} is not a multiple of kv_heads={section.kv_heads}, "
            "but each key-value head must serve the same number of heads; change one of them"
        )
    sizes: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": section.hidden_size,
        "num_hidden_layers": section.layers,
        "num_attention_heads": section.heads,
        "num_key_value_heads": section.kv_heads,
        "head_dim": section.head_dim,
        "intermediate_size": section.intermediate_size,
        "max_position_embeddings": context_tokens,
        "pad_token_id": pad_token_id,
        "initializer_range": section.initializer_range,
    }
    ends: dict[str, Any] = {"eos_token_id": eos_token_id, "bos_token_id": None}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if section.vision is not None and image_token_ids is not None:
            return _make_vision_model(section, section.vision, sizes | ends, image_token_ids)
        tied = section.tie_embeddings
        return Qwen3ForCausalLM(Qwen3Config(**sizes, **ends, tie_word_embeddings=tied))


def _make_vision_model(
    section: MakePolicySection,
    vision: MakeVisionSection,
    sizes: dict[str, Any],
    image_token_ids: tuple[int, int, int],
) -> PreTrainedModel:
    if vision.hidden_size % (4 * vision.heads):
        raise ConfigError(
            f"policy.make.vision.hidden_size={vision.hidden_size} is not a multiple of four times "
            f"heads={vision.heads}, which two-dimensional rotary embeddings require; change one of "
            "them"
        )
    # Height and width each turn with a third of the frequencies, and time with the rest.
    half = section.head_dim // 2
    sections = [half - 2 * (half // 3), half // 3, half // 3]
    start, image, end = image_token_ids
    side = vision.max_pixels**0.5 / vision.patch_size
    config = Qwen3VLConfig(
        text_config={
            **sizes,
            # As wide as what the tower makes of an image: with the usual 0.02 what is asked for is
            # lost beside what is seen, and a small policy never learns to put the two together.
            "initializer_range": section.hidden_size**-0.5,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": sections,
                "mrope_interleaved": True,
            },
        },
        vision_config={
            "depth": vision.layers,
            "hidden_size": vision.hidden_size,
            "num_heads": vision.heads,
            "intermediate_size": vision.intermediate_size,
            "patch_size": vision.patch_size,
            "out_hidden_size": section.hidden_size,
            "num_position_embeddings": max(2, round(side)) ** 2,
            "deepstack_visual_indexes": [0],
            # The usual 0.02 is for towers many times as wide: in one of 64 hardly anything arrives.
            "initializer_range": vision.hidden_size**-0.5,
        },
        image_token_id=image,
        video_token_id=image,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=section.tie_embeddings,
    )
    model = Qwen3VLForConditionalGeneration(config)
    _scale_places(model.model.visual)
    return model


def _scale_places(tower: Any) -> None:
    """Begin with patches and their places of one size. By the configuration's single range a patch,
    a sum over more than a thousand numbers, is some fifty times its place, and drowns it."""
    weight = tower.patch_embed.proj.weight
    torch.nn.init.normal_(weight, std=weight[0].numel() ** -0.5)
    torch.nn.init.normal_(tower.pos_embed.weight)


def make_images(vision: MakeVisionSection, *, token_id: int) -> ImageProcessor:
    """Return the image processor of a new policy that sees."""
    return new_processor(
        patch_size=vision.patch_size, max_pixels=vision.max_pixels, token_id=token_id
    )


def load_model(
    path: str | Path, *, dtype: Literal["float32", "bfloat16"], device: str
) -> PreTrainedModel:
    """Return the language model of a Hugging Face folder, a GGUF file or a hub name, on `device`: a
    causal one, or one that sees and is of the Qwen-VL family.

    On the CPU weights that a file of safetensors has in this type stay in the file, and are read
    when they are needed; the host keeps no copy. Raises `ConfigError` if there is none, or none
    that can be read.
    """
    config: Any = load_model_config(path)
    kind = AutoModelForImageTextToText if config.model_type in FAMILY else AutoModelForCausalLM
    _check_precision("policy.dtype", dtype, torch.device(device))
    options: dict[str, Any] = {
        "dtype": getattr(torch, dtype),
        "attn_implementation": implementation_of(config.model_type),
    }
    plain = dict(options)
    if is_gguf(path):
        # Given the config, it does not read the file's vocabulary once more.
        options |= {"config": config, **_dequantize_options("GgufConfig")}
    is_mxfp4 = _quantization_method(config) == MXFP4
    if is_mxfp4:
        options |= _dequantize_options("Mxfp4Config")
    has_adapter = (Path(path) / ADAPTER_CONFIG).is_file()
    model = None if has_adapter else _load_weights(kind, path, **options)
    if model is None or is_adapted(model):
        raise ConfigError(f"policy.path is {str(path)!r}, but {ADAPTED}")
    quantizer = getattr(model, "hf_quantizer", None)
    if is_mxfp4:
        # It would be saved under the names of 4 bits. Tensors are taken over, not copied.
        del config.quantization_config
        model_class: Any = type(model)
        with no_bars():
            model = model_class.from_pretrained(
                None, config=config, state_dict=model.state_dict(), **plain
            )
    elif quantizer is not None and is_gguf(path):
        # The weights are plain; with the quantizer they could be neither trained nor saved.
        quantizer.remove_quantization_config(model)
    count = sum(parameter.numel() for parameter in model.parameters())
    with explain_out_of_memory(
        ConfigError,
        f"loading {path}, {count / 1e9:.2f} billion parameters in {dtype},",
        "Set policy.dtype: bfloat16, shard the trainer over GPUs (learn.devices.count), or use a "
        "smaller model.",
    ):
        return model.to(device)


def load_model_config(path: str | Path) -> PreTrainedConfig:
    """Return the config.json of a Hugging Face folder, or of a hub name, or what a GGUF file says.

    Raises `ConfigError` if there is none, or none that can be read, and for quantised weights of
    which no plain ones are made here.
    """
    config = _load_pretrained(AutoConfig, path)
    method = _quantization_method(config)
    if method not in (None, MXFP4) and not is_gguf(path):
        raise ConfigError(
            f"policy.path={str(path)!r} has weights that are quantised ({method}, by its "
            f"config.json), which cannot be trained; plain ones are made of {MXFP4} and GGUF files "
            "only. Give the model in bfloat16 that they were made of"
        )
    return config


def load_skeleton(path: str | Path) -> PreTrainedModel | None:
    """Return the model of a Hugging Face folder without weights, on the meta device.

    None for what is no folder, or whose config.json does not tell all modules of it.
    """
    if is_gguf(path) or not (Path(path) / "config.json").is_file():
        return None
    config = load_model_config(path)
    if getattr(config, "quantization_config", None) is not None:
        return None
    kind = AutoModelForImageTextToText if config.model_type in FAMILY else AutoModelForCausalLM
    try:
        with torch.device("meta"):
            return kind.from_config(config)
    except CONFIG_FAULTS:
        return None  # what reads its weights says what is wrong with it


def _quantization_method(config: Any) -> str | None:
    """Return the name of what the weights in the files are quantised by; None for plain ones."""
    section: Any = getattr(config, "quantization_config", None) or {}
    return section.get("quant_method") if isinstance(section, dict) else section.quant_method


def _dequantize_options(name: str) -> dict[str, Any]:
    """Return the options that make transformers dequantize, by the name of a class. Empty for
    releases without such a class for GGUF files, which always do."""
    section: Any = getattr(transformers, name, None)
    return {} if section is None else {"quantization_config": section(dequantize=True)}


def prepare(model: PreTrainedModel, section: LearnSection, *, seed: int) -> PreTrainedModel:
    """Return the model ready to be trained as the section says; it is changed in place.

    In evaluation mode, for good: with dropout the current policy would not be the one that sampled.
    """
    _check_precision("learn.precision", section.precision, model.device)
    model.eval()
    round_to(model, section.precision)
    if section.lora is not None:
        adapt(model, section.lora, seed=seed)
    if section.gradient_checkpointing:
        recompute_layers(model)
    return model


def prepare_shards(
    model: PreTrainedModel, section: LearnSection, *, seed: int, device: torch.device
) -> PreTrainedModel:
    """Return the model ready to be cut up and put on a device: as `prepare` does, but for what
    takes a copy or a forward pass of the whole of it."""
    _check_precision("learn.precision", section.precision, device)
    model.eval()
    if section.lora is not None:
        adapt(model, section.lora, seed=seed)
    return model


def _check_precision(key: str, precision: str, device: torch.device) -> None:
    """Raise `ConfigError` for a GPU that does not compute in bfloat16 where `key` asks for it."""
    wants_bfloat16 = device.type == "cuda" and precision == "bfloat16"
    # Emulated, it is slow, and compiled kernels do without it.
    if wants_bfloat16 and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise ConfigError(
            f"{key} is bfloat16, which {torch.cuda.get_device_name(device)} does not support; set "
            "it to float32"
        )


def recompute_layers(model: PreTrainedModel) -> None:
    """Let the backward pass compute the layers' insides again, from their inputs.

    Raises `ConfigError` for a model whose layers cannot do it, or would drop out.
    """
    layers: list[Any] = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers or not model.supports_gradient_checkpointing:
        raise ConfigError(
            f"learn.gradient_checkpointing is set, but {type(model).__name__} does not support it; "
            "set it to false, and lower learn.micro_batch_tokens to save memory"
        )
    ids = torch.arange(min(8, model.config.get_text_config().vocab_size))[None]
    ids = ids.to(computing_device(model))
    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False).logits
        checkpoint_layers(model)
        if not torch.equal(expected, model(input_ids=ids, use_cache=False).logits):
            raise ConfigError(
                f"learn.gradient_checkpointing is set, but the layers of {type(model).__name__} "
                "apply dropout of their own, which differs when they are recomputed; set "
                "learn.gradient_checkpointing to false"
            )


def checkpoint_layers(model: PreTrainedModel) -> None:
    """Make the layers recompute, without a check that they can."""
    layers: list[Any] = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    for layer in layers:
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
        # Layers recompute in training mode only. What is in them stays in evaluation mode.
        layer.training = True


@contextmanager
def restore_layers(model: PreTrainedModel) -> Generator[None]:
    """Leave the model in evaluation mode, and its layers recomputing only if they did before."""
    layers: list[Any] = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    before = [layer.gradient_checkpointing for layer in layers]
    try:
        yield
    finally:
        model.eval()
        for layer, recomputes in zip(layers, before, strict=True):
            layer.gradient_checkpointing = recomputes


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a Hugging Face folder, a GGUF file or a hub name.

    Raises `ConfigError` if there is none, or none that can be read.
    """
    return _load_pretrained(AutoTokenizer, path)


def load_images(path: str | Path, model: PreTrainedModel) -> ImageProcessor | None:
    """Return the image processor of a model from `path`; None for one that does not see."""
    if not sees(model):
        return None
    return load_processor(path, token_id=model.config.image_token_id)


def _load_weights(kind: Any, path: str | Path, **options: Any) -> Any:
    """Return a model of a class, every tensor of which is in the files, and the files have no more
    for its layers.

    transformers gives random numbers to those that are not, and leaves out what a layer has no
    place for: scales of quantised weights, biases.
    """
    model, info = _load_pretrained(
        kind, path, output_loading_info=True, ignore_mismatched_sizes=True, **options
    )
    faults = [f"{name} is in none of its files" for name in info["missing_keys"]]
    faults += [
        f"{name} is {list(file_shape)} in its files and {list(shape)} by its config.json"
        for name, file_shape, shape in info["mismatched_keys"]
    ]
    if faults:
        raise ConfigError(
            f"policy.path={str(path)!r} has not the weights of the {type(model).__name__} that its "
            f"config.json describes: {_list_faults(faults)}. They would begin as random numbers; "
            "get the model again, or correct its config.json"
        )
    modules = dict(model.named_modules())
    layers = {name for name, module in modules.items() if [*module.parameters(recurse=False)]}
    unused = [name for name in info["unexpected_keys"] if name.rpartition(".")[0] in layers]
    if unused and "quantization_config" not in options:
        raise ConfigError(
            f"policy.path={str(path)!r} has more weights than the layers of the "
            f"{type(model).__name__} that its config.json describes: {_list_faults(unused)}. "
            "Without them the others mean something else; correct its config.json, or, if they "
            "are scales of quantised weights, give the model in bfloat16 that those were made of"
        )
    return model


def _list_faults(faults: Collection[str]) -> str:
    more = f"; and {len(faults) - MOST_FAULTS} more" if len(faults) > MOST_FAULTS else ""
    return f"{'; '.join(sorted(faults)[:MOST_FAULTS])}{more}"


def _load_pretrained(kind: Any, path: str | Path, **options: Any) -> Any:
    text = str(path)
    if (text.startswith((".", "/", "~")) or text.count("/") > 1) and not Path(path).exists():
        raise ConfigError(
            f"policy.path is {text}, but there is no such folder; name a folder with config.json, "
            "*.safetensors, and a tokenizer, a GGUF file, or a model of the Hugging Face hub"
        )
    place: str | Path = path
    if is_gguf(path):
        if problem := gguf_fault(Path(path)):
            raise ConfigError(f"policy.path is {text}, but {problem}")
        place, options = Path(path).parent, options | {"gguf_file": Path(path).name}
    try:
        with no_bars():
            return kind.from_pretrained(place, trust_remote_code=False, **options)
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise ConfigError(f"policy.path={text!r} {CUSTOM_CODE}") from None
        if is_out_of_memory(error):
            raise
        # Readers of damaged files raise anything.
        fault = describe_fault(error)
        if isinstance(error, UnicodeDecodeError) and (name := _find_undecodable(Path(path))):
            fault = f"{name} is not UTF-8: {fault}"
        raise ConfigError(
            f"policy.path={text!r} cannot be read by {kind.__name__}: {fault}; "
            "give a Hugging Face folder with config.json, *.safetensors, and a tokenizer, a "
            "complete GGUF file of a language model, or the name of a model"
        ) from error


def _find_undecodable(folder: Path) -> str | None:
    """Return the name of the first text file of a folder that is not UTF-8."""
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        if file.suffix in TEXT_SUFFIXES:
            try:
                file.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                return file.name
    return None


def describe_fault(error: Exception) -> str:
    """Return the text of an error, with its type where that alone tells what it is about."""
    is_said = isinstance(error, OSError | ValueError | SafetensorError)
    return str(error) if is_said else f"{type(error).__name__}: {error}"
