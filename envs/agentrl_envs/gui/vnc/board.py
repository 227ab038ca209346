"""Board below the desktop of a human player: the task, the state of the input, and buttons."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from agentrl_envs.gui.vnc.rfb import Frame

Button = Literal["done", "cannot be done", "skip", "leave"]
BUTTONS: tuple[Button, ...] = get_args(Button)
LINE_PIXELS = 20
HEIGHT = 5 * LINE_PIXELS
"""Height of the board, in pixels."""
_BUTTON_PIXELS = 124
_PAPER, _INK, _BUTTON = (245, 245, 240), (20, 20, 20), (205, 215, 230)
_GOAL_LINES = 3
_MARGIN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusBoard:
    """Texts on the board."""

    goal: str = ""
    state: str = ""
    """Present activity."""

    def draw(self, width: int) -> Frame:
        """Return the board as a picture."""
        picture = Image.new("RGB", (width, HEIGHT), _PAPER)
        pen = ImageDraw.Draw(picture)
        lines = _wrap(" ".join(self.goal.split()), width - 2 * _MARGIN, _GOAL_LINES)
        for number, line in enumerate([*lines, *[""] * (_GOAL_LINES - len(lines)), self.state]):
            pen.text((_MARGIN, number * LINE_PIXELS + 2), line, fill=_INK, font=_font())
        for number, button in enumerate(BUTTONS):
            x = _MARGIN + number * _BUTTON_PIXELS
            box = (x, HEIGHT - LINE_PIXELS, x + _BUTTON_PIXELS - _MARGIN, HEIGHT - 2)
            pen.rectangle(box, fill=_BUTTON, outline=_INK)
            pen.text((x + _MARGIN, box[1] + 1), button, fill=_INK, font=_font())
        frame = np.zeros((HEIGHT, width, 4), dtype=np.uint8)
        frame[..., :3] = np.asarray(picture)[..., ::-1]
        return frame


def button_at(x: int, y: int) -> Button | None:
    """Return the button of the board that is there, `y` counted from the top of the board."""
    if not HEIGHT - LINE_PIXELS <= y < HEIGHT:
        return None
    number, inside = divmod(x - _MARGIN, _BUTTON_PIXELS)
    is_one = 0 <= number < len(BUTTONS) and inside <= _BUTTON_PIXELS - _MARGIN
    return BUTTONS[number] if is_one else None


@cache
def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=14)


def _wrap(text: str, width: int, most: int) -> Sequence[str]:
    """Return a text in lines that fit, the last one cut where there are too many."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and _font().getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines if len(lines) <= most else [*lines[: most - 1], f"{lines[most - 1]} ..."]
