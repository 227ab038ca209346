"""Coordinates by which an agent names points of the screen, and the pixels that they mean."""

from dataclasses import dataclass
from typing import Literal, get_args

from agentrl.errors import ConfigError, ToolError

Coordinates = Literal["pixels", "normalised"]
"""`pixels` of the picture that the agent is shown; or `normalised`, from 0 to 1000 both ways."""

NORMALISED_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PointGrid:
    """The points of a screen, as they are spoken of."""

    screen: tuple[int, int]
    """Width and height in pixels."""
    shown: tuple[int, int]
    """Of the picture that the agent sees."""
    coordinates: Coordinates = "pixels"

    def __post_init__(self) -> None:
        if self.coordinates not in get_args(Coordinates):
            raise ConfigError(
                f"coordinates must be one of {', '.join(get_args(Coordinates))}, got "
                f"{self.coordinates!r}"
            )

    @property
    def extent(self) -> tuple[int, int]:
        """Return the numbers below which both parts of a coordinate stay."""
        is_normalised = self.coordinates == "normalised"
        return (NORMALISED_MAX + 1, NORMALISED_MAX + 1) if is_normalised else self.shown

    @property
    def _steps(self) -> tuple[int, int]:
        """Return the numbers that the far edges of the screen have."""
        is_normalised = self.coordinates == "normalised"
        return (NORMALISED_MAX, NORMALISED_MAX) if is_normalised else self.shown

    def pixel(self, coordinate: list[float]) -> tuple[int, int]:
        """Return the pixel of the screen that is meant; `ToolError` for none on it."""
        if len(coordinate) != 2:
            raise ToolError(f"a coordinate must be [x, y], got {coordinate}")
        wide, high = self.extent
        if not (0 <= coordinate[0] < wide and 0 <= coordinate[1] < high):
            raise ToolError(
                f"({coordinate[0]:g}, {coordinate[1]:g}) is not on the screen: x goes from 0 "
                f"to {wide - 1} and y from 0 to {high - 1}"
            )
        x, y = (
            min(int(part * pixels / step), pixels - 1)
            for part, pixels, step in zip(coordinate, self.screen, self._steps, strict=True)
        )
        return x, y

    def coordinate(self, x: float, y: float) -> list[float]:
        """Return the coordinate of a pixel: the inverse of `pixel` for its middle."""
        parts: list[float] = []
        for part, pixels, step in zip((x, y), self.screen, self._steps, strict=True):
            exact = (part + 0.5) * step / pixels
            parts.append(int(exact) if step == pixels else round(exact, 1))
        return parts

    def box(self, box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
        """Return a box of pixels in the agent's coordinates: left, top, width and height."""
        x, y = (step / pixels for step, pixels in zip(self._steps, self.screen, strict=True))
        left, top, wide, high = box
        return round(left * x, 1), round(top * y, 1), round(wide * x, 1), round(high * y, 1)
