"""Log-probs of the policy on chosen positions, computing the language-model head only there."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.errors import ConfigError
from agentrl.learn.head import HEAD_CHUNK_TOKENS, TokenPredictions, plain, predict
from agentrl.learn.layouts.attention import build_decoder_inputs
from agentrl.learn.sequence_layout import ModelInputs
from agentrl.models.devices import computing_device
from agentrl.models.vision import model as vision

LOGIT_TRANSFORMS = {
    "final_logit_softcapping": None,
    "logit_scale": 1.0,
    "logits_scaling": 1.0,
    "logits_scale": 1.0,
    "lm_head_multiplier": 1.0,
    "output_multiplier": 1.0,
}
"""Config attributes of models that change logits after the head, with the value that does not."""

WITHIN = "agentrl_within"
"""The method with which a sharded model collects its weights around a computation."""

Parts = TypeVar("Parts", bound=tuple[Tensor, ...])


@dataclass(frozen=True, slots=True, eq=False)
class TokenLogprobs:
    """Log-probs and entropies of the chosen tokens, under the sampling temperature, in nats."""

    logprobs: Float[Tensor, "rows width"]
    """0 off the mask; carries gradient unless gradients are off."""
    entropies: Float[Tensor, "rows width"]
    """Entropies over the whole vocabulary for each chosen token; 0 off the mask. Detached unless
    their gradient was asked for."""


def score(
    model: PreTrainedModel,
    tokens: ModelInputs,
    *,
    temperature: float,
    head_at_positions: bool,
    entropy_gradient: bool = False,
    head_chunk_tokens: int = HEAD_CHUNK_TOKENS,
) -> TokenLogprobs:
    """Return the log-prob of every target of the mask, in float32.

    With `head_at_positions` the head runs on the places that predict something, and only there; see
    `head_is_plain`; where there are many of them, on `head_chunk_tokens` at a time. With
    `entropy_gradient` the entropies carry gradient too.
    """

    split = tokens.split
    predictions, targets = tokens.predictions, tokens.targets
    if split is not None:
        predictions = predictions[split.predictions] - split.places.start
        targets = targets[split.predictions]

    def compute() -> TokenPredictions:
        if head_at_positions:
            hidden = _hidden(model, tokens).flatten(0, 1)[predictions]
            return predict(
                _head(model),
                hidden,
                targets,
                temperature=temperature,
                chunk_tokens=head_chunk_tokens,
            )
        logits = _logits(model, tokens).flatten(0, 1)[predictions]
        return plain(logits, targets, temperature=temperature)

    logprobs, entropies = run_within(model, compute)
    if split is not None:
        logprobs, entropies = map(split.gather_predictions, (logprobs, entropies))
    entropies = entropies if entropy_gradient else entropies.detach()
    return TokenLogprobs(logprobs=_spread(logprobs, tokens), entropies=_spread(entropies, tokens))


def head_is_plain(model: PreTrainedModel) -> bool:
    """Return whether logits are the head applied to the decoder's last hidden state, as they are.

    False for models that scale or cap their logits afterwards, by what their config says and by
    trying a few tokens. Those take the full forward pass, which is slower and always right.
    """
    config = model.config.get_text_config()
    if not keeps_logits(model):
        return False
    ids = torch.arange(min(8, config.vocab_size), device=computing_device(model))[None]

    def compute() -> tuple[Tensor, ...]:
        hidden = decoder(model)(input_ids=ids, use_cache=False)
        state = getattr(hidden, "last_hidden_state", None)
        return () if state is None else (_head(model)(state),)

    with torch.no_grad():
        logits = run_within(model, compute)
        if not logits:
            return False
        full = model(input_ids=ids, use_cache=False).logits
        return torch.allclose(logits[0], full, rtol=1e-3, atol=1e-5)


def keeps_logits(model: PreTrainedModel) -> bool:
    """Return whether the config says of no change to the head's logits; nothing is computed."""
    config = model.config.get_text_config()
    changes = (
        getattr(config, name, None) not in (None, neutral)
        for name, neutral in LOGIT_TRANSFORMS.items()
    )
    return model.get_output_embeddings() is not None and not any(changes)


def hidden_states(
    model: PreTrainedModel, tokens: ModelInputs
) -> Float[Tensor, "lines length width"]:
    """Return the decoder's last hidden states."""
    return run_within(model, lambda: (_hidden(model, tokens),))[0]


def run_within(model: PreTrainedModel, compute: Callable[[], Parts]) -> Parts:
    """Run `compute` on parts of the model as a forward pass of the whole one; return its result.

    A sharded model collects its weights when it is called, and we call its decoder and its head.
    """
    whole: Callable[[Callable[[], Parts]], Parts] | None = getattr(model, WITHIN, None)
    return compute() if whole is None else whole(compute)


def _hidden(model: PreTrainedModel, tokens: ModelInputs) -> Tensor:
    return decoder(model)(**_reading(model, tokens)).last_hidden_state


def _logits(model: PreTrainedModel, tokens: ModelInputs) -> Tensor:
    if tokens.shown:
        return _head(model)(_hidden(model, tokens))
    return model(**_reading(model, tokens)).logits


def _reading(model: PreTrainedModel, tokens: ModelInputs) -> dict[str, Any]:
    """Return the keyword arguments of the decoder.

    Padding is on the right and attention is causal, so no attention mask is passed where every
    sequence has a line of its own: what stands left of the padding cannot see it, and attention
    takes its fastest path. Of a line that ranks divide, the decoder is given this rank's places.
    """
    split = tokens.split
    if split is not None and tokens.positions is not None and tokens.ancestry is not None:
        if tokens.shown:
            raise ConfigError(
                "a context shows images, which learn.devices.context_parallel does not divide: set "
                "it to 1"
            )
        return {
            "input_ids": tokens.inputs[:, split.places],
            "position_ids": tokens.positions[:, split.places],
            "use_cache": False,
            **build_decoder_inputs(model, tokens.ancestry, context=split.ranks),
        }
    inputs: dict[str, Any] = {"input_ids": tokens.inputs, "use_cache": False}
    if tokens.shown:
        _check_sees(model)
        inputs = vision.build_text_inputs(model, tokens.inputs, tokens.shown, tokens.positions)
    if tokens.positions is None or tokens.ancestry is None:
        return inputs
    decoder_inputs = build_decoder_inputs(model, tokens.ancestry)
    return {"position_ids": tokens.positions} | inputs | decoder_inputs


def _check_sees(model: PreTrainedModel) -> None:
    if not vision.sees(model):
        raise ConfigError(
            f"{type(model).__name__} was given images, but agentrl supports images only for models "
            f"of {', '.join(vision.FAMILY)}; use one of these, or use only text"
        )


def decoder(model: PreTrainedModel) -> Any:
    """Return the part of a model that makes hidden states of tokens."""
    return model.get_decoder() or model.base_model


def _head(model: PreTrainedModel) -> Any:
    return model.get_output_embeddings()


def _spread(chosen: Float[Tensor, " chosen"], tokens: ModelInputs) -> Float[Tensor, "rows width"]:
    """Return numbers of predictions at the places of the sequences that made them."""
    block = torch.zeros(tokens.mask.shape, dtype=chosen.dtype, device=chosen.device)
    return block.masked_scatter(tokens.mask, chosen[tokens.entries])
