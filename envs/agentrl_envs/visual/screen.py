"""A screen with a few buttons on it, as plain values and as a picture."""

import io
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agentrl.message import Image
from agentrl.runtime.extras import check_installed

COLOURS: Mapping[str, tuple[int, int, int]] = {
    "red": (214, 39, 40),
    "green": (44, 160, 44),
    "blue": (31, 87, 200),
    "yellow": (240, 200, 20),
    "black": (20, 20, 20),
    "violet": (150, 60, 180),
}
SHAPES = ("square", "circle", "triangle", "cross")
BACKGROUND = (236, 236, 232)
BUTTON = 0.25
"""Width of a button as a share of the screen's shorter side."""


@dataclass(frozen=True, slots=True)
class ScreenButton:
    """One button, by its middle and its width, in pixels."""

    colour: str
    shape: str
    x: int
    y: int
    width: int

    def holds(self, x: int, y: int) -> bool:
        """Return whether a click there is on the button."""
        return max(abs(x - self.x), abs(y - self.y)) <= self.width // 2


@dataclass(frozen=True, slots=True)
class ButtonScreen:
    """Buttons that do not overlap."""

    width: int
    height: int
    buttons: tuple[ScreenButton, ...]

    @classmethod
    def random(
        cls, rng: random.Random, *, width: int, height: int, buttons: int, tells: str
    ) -> "ButtonScreen":
        """Return a screen whose buttons differ in what `tells` them apart, and in nothing else."""
        side = side_of(width, height)
        cells = [(column, row) for column in range(3) for row in range(3)]
        places = rng.sample(cells, buttons)
        colours = rng.sample([*COLOURS], buttons)
        shapes = rng.sample(SHAPES, buttons)
        if tells == "colour":
            shapes = [shapes[0]] * buttons
        else:
            colours = [colours[0]] * buttons
        room_x, room_y = (width // 3 - side) // 2 - 1, (height // 3 - side) // 2 - 1
        return cls(
            width,
            height,
            tuple(
                ScreenButton(
                    colour,
                    shape,
                    (2 * column + 1) * width // 6 + rng.randint(-room_x, room_x),
                    (2 * row + 1) * height // 6 + rng.randint(-room_y, room_y),
                    side,
                )
                for (column, row), colour, shape in zip(places, colours, shapes, strict=True)
            ),
        )

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> "ButtonScreen":
        """Return the screen that `to_plain` wrote."""
        buttons = tuple(ScreenButton(**button) for button in data["buttons"])
        return cls(data["width"], data["height"], buttons)

    def to_plain(self) -> dict[str, Any]:
        """Return the screen as JSON."""
        return asdict(self) | {"buttons": [asdict(button) for button in self.buttons]}

    def describe(self) -> str:
        """Return the content of the screen in words, for policies that cannot see."""
        return "\n".join(f"{b.colour} {b.shape} at {b.x} {b.y}" for b in self.buttons)

    def picture(self, clicked: Sequence[tuple[int, int]] = ()) -> Image:
        """Return the screen as a PNG, with a ring where there were clicks.

        Raises `ConfigError` without Pillow.
        """
        check_installed("drawing a screen", "PIL")
        from PIL import Image as Pictures
        from PIL import ImageDraw

        drawn = Pictures.new("RGB", (self.width, self.height), BACKGROUND)
        pen = ImageDraw.Draw(drawn)
        for button in self.buttons:
            _draw(pen, button)
        for x, y in clicked:
            pen.ellipse((x - 4, y - 4, x + 4, y + 4), outline=(0, 0, 0), width=2)
        file = io.BytesIO()
        drawn.save(file, "PNG")
        return Image(file.getvalue())


def side_of(width: int, height: int) -> int:
    """Return the width of a button on such a screen, in pixels."""
    return int(min(width, height) * BUTTON)


def _draw(pen: Any, button: ScreenButton) -> None:
    half = button.width // 2
    left_x, top = button.x - half, button.y - half
    right, bottom = button.x + half, button.y + half
    colour = COLOURS[button.colour]
    match button.shape:
        case "circle":
            pen.ellipse((left_x, top, right, bottom), fill=colour)
        case "triangle":
            pen.polygon(((button.x, top), (right, bottom), (left_x, bottom)), fill=colour)
        case "cross":
            third = half // 3
            pen.rectangle((button.x - third, top, button.x + third, bottom), fill=colour)
            pen.rectangle((left_x, button.y - third, right, button.y + third), fill=colour)
        case _:
            pen.rectangle((left_x, top, right, bottom), fill=colour)
