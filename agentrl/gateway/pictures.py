"""Images in requests: data URLs and base64 blocks; nothing is fetched."""

import base64
import binascii
from typing import Any

from agentrl.gateway.dialogue import BadRequest
from agentrl.message import Image


def from_url(url: Any) -> Image:
    """Return the image of a `data:` URL."""
    head, comma, data = url.partition(",") if isinstance(url, str) else ("", "", "")
    if not head.startswith("data:image/") or not head.endswith(";base64") or not comma:
        raise BadRequest("an image must be a data:image/...;base64,... URL; nothing is fetched")
    return from_base64(data, head.removeprefix("data:").removesuffix(";base64"))


def from_base64(data: Any, media_type: Any) -> Image:
    """Return the image of a base64 text."""
    if not isinstance(data, str) or not isinstance(media_type, str):
        raise BadRequest("an image needs its data in base64 and its media type")
    try:
        return Image(base64.b64decode(data, validate=True), media_type)
    except binascii.Error as error:
        raise BadRequest(f"an image's data is no base64: {error}") from error
