"""Pictures in a prompt: as many tokens as the model will see of each, before any are recorded."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from agentrl.chat.template import WAY_OUT, ChatTemplate
from agentrl.errors import ConfigError
from agentrl.message import Image, Message

_PICTURE = Image(b"")


class ImageTokens(Protocol):
    """Token counts of images; `agentrl.models.vision.processor` implements it."""

    @property
    def token_id(self) -> int:
        """Id of the token that a template writes once per image, and the model reads many times."""
        ...

    def tokens(self, image: Image) -> int:
        """Return the number of tokens of an image."""
        ...


def images_of(messages: Sequence[Message]) -> tuple[Image, ...]:
    """Return the images of the messages in reading order."""
    return tuple(image for message in messages for image in message.images)


def check_images(template: ChatTemplate, text: str, images: Sequence[Image]) -> None:
    """Raise `ConfigError` unless `text` holds one placeholder for each image.

    A placeholder is a control token that the template writes for a picture.
    """
    if not images:
        return
    with_picture = template.render((Message("user", (_PICTURE, "look")),))
    without = template.render((Message("user", "look"),))
    placeholders = [
        token
        for token in template.control.special | template.control.written
        if with_picture.count(token) > without.count(token)
    ]
    if not placeholders:
        raise ConfigError(
            f"{template.name} supports no images, but the environment sends {len(images)}; use a "
            f"vision-language model with its own template, or {WAY_OUT}"
        )
    for token in placeholders:
        if text.count(token) < len(images):
            raise ConfigError(
                f"{template.name} writes {token!r} {text.count(token)} times for {len(images)} "
                f"images, so an image in such a message is not shown; {WAY_OUT}"
            )


def expand_images(
    token_ids: Sequence[int], images: Sequence[Image], reader: ImageTokens | None, *, template: str
) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """Return the tokens with every placeholder repeated as often as its image has tokens, and the
    first and one past the last of these for each image.

    Raises `ConfigError` where placeholders and images do not match one to one, and for images of a
    policy that cannot see.
    """
    if not images:
        return tuple(token_ids), ()
    if reader is None:
        raise ConfigError(
            f"the environment shows {len(images)} images, but the policy has no image processor; "
            "set policy.path to a Qwen-VL model folder, or use text observations only"
        )
    spots = [at for at, token in enumerate(token_ids) if token == reader.token_id]
    if len(spots) != len(images) or any(b - a == 1 for a, b in pairwise(spots)):
        raise ConfigError(
            f"{template} writes token {reader.token_id}, which stands for an image, at {spots} for "
            f"{len(images)} images; there must be one per image, with text between two images; "
            f"{WAY_OUT}"
        )
    whole: list[int] = []
    spans: list[tuple[int, int]] = []
    start = 0
    for at, image in zip(spots, images, strict=True):
        whole += token_ids[start:at]
        spans.append((len(whole), len(whole) + reader.tokens(image)))
        whole += [reader.token_id] * reader.tokens(image)
        start = at + 1
    return (*whole, *token_ids[start:]), tuple(spans)
