"""Answer of an MCP tool, as the model reads it: text and images, bounded."""

import base64
import binascii
import json
from typing import TYPE_CHECKING, cast

from agentrl.message import Content, Image
from agentrl.runtime.json_limits import check_json

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock

IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
NO_OUTPUT = "(no output)"


def render_content(result: "CallToolResult", *, text_chars: int, image_bytes: int) -> Content:
    """Return a result's blocks in order; structured content only where there are no blocks.

    `text_chars` and `image_bytes` bound the texts together and the images together. What is cut or
    cannot be shown is replaced by a note that says so. Raises `JsonLimitError` for structured
    content that is no JSON within the limits and would be shown.
    """
    blocks = [_render_block(block) for block in result.content]
    if not blocks and result.structured_content is not None:
        check_json(result.structured_content)
        blocks = [json.dumps(result.structured_content, ensure_ascii=False)]
    parts: list[str | Image] = []
    for block in blocks:
        if isinstance(block, Image):
            image_bytes -= len(block.data)
            note = f"(image of {len(block.data)} bytes left out)"
            parts.append(block if image_bytes >= 0 else note)
        else:
            text = block[: max(0, text_chars)]
            cut = len(block) - len(text)
            text_chars -= len(text)
            parts.append(text + f"\n({cut} more characters were cut)" if cut else text)
    if any(isinstance(part, Image) for part in parts):
        return tuple(parts)
    return "\n".join(cast("list[str]", parts)) or NO_OUTPUT


def _render_block(block: "ContentBlock") -> str | Image:
    match block.type:
        case "text":
            return block.text
        case "image":
            return _decode_image(block.data, block.mime_type)
        case "audio":
            return f"(audio left out: {block.mime_type})"
        case "resource_link":
            return f"(resource {block.name}: {block.uri})"
        case "resource":
            resource = block.resource
            if isinstance(text := getattr(resource, "text", None), str):
                return text
            kind = resource.mime_type or "unknown type"
            image = _decode_image(getattr(resource, "blob", ""), kind)
            return image if isinstance(image, Image) else f"(resource {resource.uri}: {kind})"


def _decode_image(data: str, media_type: str) -> str | Image:
    if media_type not in IMAGE_TYPES:
        return f"(image left out: {media_type})"
    try:
        return Image(base64.b64decode(data, validate=True), media_type)
    except binascii.Error:
        return f"(image left out: no base64 of {media_type})"
