"""Ids drawn onto a screenshot, outside the page: a set-of-marks picture."""

import io
from collections.abc import Mapping
from typing import Final

from PIL import ImageDraw, ImageFont

from agentrl.message import Image
from agentrl.models.vision.decoding import decode_image

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
