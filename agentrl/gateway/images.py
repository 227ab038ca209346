"""Images in requests: data URLs and base64 blocks; nothing is fetched."""

import base64
from typing import Any

from agentrl.errors import EnvError
from agentrl.gateway.dialect import BadRequest
from agentrl.message import Image
from agentrl.runtime.image_decoding import read_size


def from_url(url: Any) -> Image:
    """Return the image of a `data:` URL."""
    head, comma, data = url.partition(",") if isinstance(url, str) else ("", "", "")
    if not head.startswith("data:image/") or not head.endswith(";base64") or not comma:
        raise BadRequest("an image must be a data:image/...;base64,... URL; URLs are not fetched")
    return from_base64(data, head.removeprefix("data:").removesuffix(";base64"))


def from_base64(data: Any, media_type: Any) -> Image:
    """Return the image of a base64 text. Raises `BadRequest` for one that is no picture."""
    if not isinstance(data, str) or not isinstance(media_type, str):
        raise BadRequest("an image needs its data in base64 and its media type")
    try:
        image = Image(base64.b64decode(data, validate=True), media_type)
    except ValueError as error:
        raise BadRequest(f"an image's data is not valid base64: {error}") from error
    try:
        read_size(image)
    except EnvError as error:
        raise BadRequest(str(error)) from error
    return image
