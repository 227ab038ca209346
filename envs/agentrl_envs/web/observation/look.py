"""One look at a page: the texts and pictures an observation is made of."""

import asyncio
import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

from PIL import ImageDraw, ImageFont

from agentrl.errors import EnvError
from agentrl.message import Image
from agentrl.runtime.image_decoding import decode_image
from agentrl.runtime.threads import run_in_thread
from agentrl_envs.accessibility.node import AccessibilityNode
from agentrl_envs.web.observation.view import Kind, PageObservationOptions, PageProbe, PageView

_SHARE_OF_DEADLINE = 0.5
"""The scripts stop and count after so much of it; layout and transport get the rest."""


async def look(eye: PageProbe, wants: PageObservationOptions) -> PageView:
    """Look at a page.

    What a cap leaves out is counted in the text. Raises `EnvError` where the page does not answer
    before the deadline.
    """
    try:
        async with asyncio.timeout(wants.deadline_s):
            return await _look(eye, wants)
    except TimeoutError as error:
        raise EnvError(
            f"the page could not be observed within {wants.deadline_s:g} s; it is busy or too large"
        ) from error


async def _look(eye: PageProbe, wants: PageObservationOptions) -> PageView:
    limits = _build_limits(wants)
    snapshot = await eye.run("observe", limits)
    nodes = tuple(
        AccessibilityNode(role=role, name=name, id=id_ or None, depth=depth, attributes=attributes)
        for depth, id_, role, name, attributes in snapshot["nodes"]
    )
    texts = dict[Kind, tuple[str, bool]]()
    if "axtree" in wants.kinds:
        texts["axtree"] = cap_lines(
            [node.line for node in nodes], snapshot["left"], wants.max_characters
        )
    if "text" in wants.kinds:
        texts["text"] = cap_lines(list_texts(nodes), snapshot["left"], wants.max_characters)
    if "dom" in wants.kinds:
        ids = [node.id for node in nodes if node.id is not None]
        pruned = await eye.run("markup", {"wants": limits, "ids": ids})
        texts["dom"] = cap_lines(pruned["lines"], pruned["left"], wants.max_characters)
    images = await _take_images(eye, wants, snapshot)
    ordered = [(kind, *texts[kind]) for kind in wants.kinds if kind in texts]
    headed = [text if len(ordered) == 1 else f"{kind}:\n{text}" for kind, text, _ in ordered]
    return PageView(
        url=snapshot["url"],
        title=snapshot["title"],
        text="\n\n".join(headed),
        images=images,
        nodes=nodes,
        truncated=bool(snapshot["left"]) or any(cut for _, _, cut in ordered),
    )


def list_texts(nodes: Sequence[AccessibilityNode]) -> list[str]:
    """Return the visible text, a line per piece."""
    texts = (node.name or node.value() for node in nodes)
    return [" ".join(text.splitlines()) for text in texts if text]


def cap_lines(lines: Sequence[str], left: int, max_characters: int) -> tuple[str, bool]:
    """Return lines as one text of at most so many characters, and whether something is missing.

    `left` more were never looked at; the last line then says how many are missing in all.
    """
    output, length = list[str](), 0
    for line in lines:
        length += len(line) + 1
        if length > max_characters:
            break
        output.append(line)
    missing = len(lines) - len(output) + left
    if missing:
        output.append(f"... {missing} more elements")
    return "\n".join(output), missing > 0


async def _take_images(
    eye: PageProbe, wants: PageObservationOptions, seen: Mapping[str, Any]
) -> tuple[Image, ...]:
    pictured = [kind for kind in wants.kinds if kind in ("screenshot", "marks")]
    if not pictured:
        return ()
    png = await eye.screenshot()
    boxes: dict[int, Box] = {int(id_): tuple(box) for id_, box in seen["boxes"].items()}
    width, height = seen["size"]
    marked = await run_in_thread(mark, png, boxes, (width, height)) if "marks" in pictured else png
    return tuple(Image(marked if kind == "marks" else png) for kind in pictured)


def _build_limits(wants: PageObservationOptions) -> dict[str, Any]:
    return {
        "maxNodes": wants.max_nodes,
        "maxText": wants.max_name_characters,
        "deadlineMs": wants.deadline_s * 1000 * _SHARE_OF_DEADLINE,
        "boxes": wants.boxes,
        "marks": "marks" in wants.kinds,
    }


Box = tuple[float, float, float, float]
"""Left, top, width and height in pixels of the viewport."""

_COLOURS: Final = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#e377c2", "#8c564b", "#17becf")
_FONT_PX: Final = 10


def mark(png: bytes, boxes: Mapping[int, Box], viewport: tuple[int, int]) -> bytes:
    """Return the picture with a frame and the id at each box that is in it, as a PNG.

    It takes a tenth of a second: where a loop runs, call it in a thread.
    """
    picture = decode_image(Image(png))
    scale = picture.width / viewport[0]
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default(_FONT_PX)
    for at, (id_, (left_x, top, width, height)) in enumerate(boxes.items()):
        x0, y0 = left_x * scale, top * scale
        x1, y1 = x0 + width * scale, y0 + height * scale
        if x1 <= 0 or y1 <= 0 or x0 >= picture.width or y0 >= picture.height:
            continue
        fill = _COLOURS[at % len(_COLOURS)]
        x0, y0 = max(x0, 0), max(y0, 0)
        draw.rectangle((x0, y0, max(x1 - 1, x0 + 1), max(y1 - 1, y0 + 1)), outline=fill)
        text = str(id_)
        wide = draw.textlength(text, font=font) + 2
        # Before the box where there is room, so that what is in it can be read.
        x0 = min(x0 - wide if x0 >= wide else x0, picture.width - wide)
        draw.rectangle((x0, y0, x0 + wide, y0 + _FONT_PX), fill=fill)
        draw.text((x0 + 1, y0 - 1), text, fill="white", font=font)
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()
