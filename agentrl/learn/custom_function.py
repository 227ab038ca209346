"""Functions of the user's own in the slots of tensors: what they are given, and what they return.

A tensor of another shape would be broadcast, and a loss or a log-prob that is no number has no
gradient: the update would be another one without a word.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import TypeVar

import torch
from torch import Tensor

from agentrl.config.section import ConfigSection, CustomMethod
from agentrl.errors import LearnError
from agentrl.learn.correction import (
    AnyCorrectionFunction,
    CorrectionWeights,
    PlannedCorrection,
    PolicyMismatch,
    RejectionFunction,
)
from agentrl.learn.loss import AnyLossFunction, PlannedLoss, PolicyTokens, TokenLoss
from agentrl.learn.proximal import AnchorTokens, ProximalFunction

TokensT = TypeVar("TokensT", PolicyTokens, PolicyMismatch, AnchorTokens)
ReturnedT = TypeVar("ReturnedT", TokenLoss, CorrectionWeights, Tensor)


def guard_loss(section: ConfigSection, function: AnyLossFunction) -> AnyLossFunction:
    """Return the loss of a section; one of the user's own raises `LearnError` for what is none."""
    if not isinstance(section, CustomMethod) or isinstance(function, PlannedLoss):
        return function

    def loss(tokens: PolicyTokens) -> TokenLoss:
        returned = _call("learn.loss", function, tokens, wants=TokenLoss)
        name = "learn.loss: losses"
        _check_shape(name, returned.losses, tokens.mask)
        _check_numbers(name, returned.losses, tokens.mask)
        if tokens.logprobs.requires_grad and not returned.losses.requires_grad:
            raise LearnError(f"{name} have no gradient; compute them from tokens.logprobs")
        _check_flags("learn.loss: clipped tokens", returned.clipped, tokens.mask)
        return returned

    return loss


def guard_proximal(section: ConfigSection, function: ProximalFunction) -> ProximalFunction:
    """Return the proximal policy of a section, guarded in the same way."""
    if not isinstance(section, CustomMethod):
        return function

    def proximal(tokens: AnchorTokens) -> Tensor:
        logprobs = _call("learn.proximal", function, tokens, wants=Tensor)
        _check_shape("learn.proximal: log-probs", logprobs, tokens.mask)
        _check_numbers("learn.proximal: log-probs", logprobs, tokens.mask)
        return logprobs

    return proximal


def guard_correction(
    section: ConfigSection, function: AnyCorrectionFunction
) -> AnyCorrectionFunction:
    """Return the correction of a section, guarded in the same way; a weight may be of a row."""
    if not isinstance(section, CustomMethod) or isinstance(function, PlannedCorrection):
        return function

    def correction(tokens: PolicyMismatch) -> CorrectionWeights:
        returned = _call("learn.correction", function, tokens, wants=CorrectionWeights)
        for name, value in (("applied", returned.applied), ("raw", returned.raw)):
            name = f"learn.correction: {name} weights"
            _check_shape(name, value, tokens.mask, of_rows=True)
            _check_numbers(name, value, tokens.mask)
        return returned

    return correction


def guard_rejection(section: ConfigSection, function: RejectionFunction) -> RejectionFunction:
    """Return a rejection of a section, guarded in the same way; it may be about a row."""
    if not isinstance(section, CustomMethod):
        return function

    def rejection(tokens: PolicyMismatch) -> Tensor:
        keep_mask = _call("learn.rejection", function, tokens, wants=Tensor)
        _check_flags("learn.rejection: kept tokens", keep_mask, tokens.mask)
        return keep_mask

    return rejection


def _call(
    key: str, function: Callable[[TokensT], object], tokens: TokensT, *, wants: type[ReturnedT]
) -> ReturnedT:
    """Call a function with copies, which are its own to change, and return its result."""
    copies = {each.name: getattr(tokens, each.name).clone() for each in fields(tokens)}
    returned = function(replace(tokens, **copies))
    if not isinstance(returned, wants):
        raise LearnError(
            f"{key}: the function returned a {type(returned).__name__}; return a {wants.__name__}"
        )
    return returned


def _check_shape(name: str, value: object, mask: Tensor, *, of_rows: bool = False) -> None:
    """Raise `LearnError` unless it is a tensor of the mask's shape, or of one that says the same of
    all tokens of a row, or of all rows."""
    if not isinstance(value, Tensor):
        raise LearnError(f"{name} are a {type(value).__name__}; return a tensor")
    wide = ((len(mask), 1), ()) if of_rows else ()
    if value.shape not in (mask.shape, *wide):
        raise LearnError(
            f"{name} have the shape {list(value.shape)}, but there are {list(mask.shape)} tokens, "
            "rows x width; return a value for each"
        )


def _check_numbers(name: str, value: Tensor, mask: Tensor) -> None:
    if not torch.where(mask, value.detach(), 0.0).isfinite().all():
        raise LearnError(f"{name} of tokens that train are no finite numbers; fix the function")


def _check_flags(name: str, value: Tensor, mask: Tensor) -> None:
    _check_shape(name, value, mask, of_rows=True)
    if value.dtype != torch.bool:
        raise LearnError(f"{name} are of {value.dtype}; return truth values (torch.bool)")
