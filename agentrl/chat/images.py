"""Pictures in a prompt: as many placeholders among the tokens as there are pictures."""

from collections.abc import Sequence

from agentrl.chat.template import WAY_OUT, ChatTemplate
from agentrl.errors import ConfigError
from agentrl.message import Image, Message

_PICTURE = Image(b"")


def images_of(messages: Sequence[Message]) -> tuple[Image, ...]:
    """Return the images of the messages in reading order."""
    return tuple(image for message in messages for image in message.images)


def check_images(template: ChatTemplate, text: str, images: Sequence[Image]) -> None:
    """Raise `ConfigError` unless `text` holds one placeholder for each image.

    A placeholder is a control token that the template writes for a picture; what it expands to is
    the affair of whoever feeds the model.
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
            f"{template.name} shows no images, and the environment sends {len(images)}; use a "
            f"vision-language model with its own template, or {WAY_OUT}"
        )
    for token in placeholders:
        if text.count(token) < len(images):
            raise ConfigError(
                f"{template.name} writes {token!r} {text.count(token)} times for {len(images)} "
                f"images; an image in such a message is not shown; {WAY_OUT}"
            )
