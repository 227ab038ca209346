"""Figures of a cell: open matplotlib figures as PNG files, when the code imported pyplot.

Nothing here imports matplotlib. What is found in `sys.modules` belongs to the code, which may have
put anything there, so whatever goes wrong is a line on standard error and never an exception.
"""

import io
import math
import os
import sys
import warnings
from collections.abc import MutableMapping
from typing import Any

PIXELS_MAX = 4_000_000
"""Pixels of one figure; one that asks for more is drawn with fewer dots per inch."""
_TRIES = 4
_DPI_MIN = 10.0
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def prepare(environment: MutableMapping[str, str], directory: str) -> None:
    """Make matplotlib draw without a screen, and keep its settings and caches in `directory`."""
    environment["MPLBACKEND"] = "Agg"
    environment["MPLCONFIGDIR"] = os.path.join(directory, ".matplotlib")


def collect(limit: int, bytes_max: int) -> list[bytes]:
    """Return the first `limit` open figures, each of at most `bytes_max`, and close all of them.

    Empty when the code did not import `matplotlib.pyplot`. Never raises.
    """
    pyplot: Any = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return []
    pictures: list[bytes] = []
    try:
        numbers = list(pyplot.get_fignums())
        for number in numbers[:limit]:
            pictures += _render(pyplot.figure(number), number, bytes_max)
        if len(numbers) > limit:
            _note(f"{len(numbers) - limit} figures are left out; a cell can show at most {limit}")
    except BaseException as error:  # noqa: BLE001 - a figure must not cost the cell its result
        _note(f"the figures cannot be shown: {_describe(error)}")
    try:
        pyplot.close("all")
    except BaseException as error:  # noqa: BLE001 - as above
        _note(f"the figures cannot be closed: {_describe(error)}")
    return pictures


def _render(figure: Any, number: object, bytes_max: int) -> list[bytes]:
    """Return a figure as one PNG of at most `bytes_max`, or none after a note that says why."""
    try:
        dpi, size = float(figure.dpi), 0
        inches = math.prod(float(side) for side in figure.get_size_inches())
        dpi = min(dpi, math.sqrt(PIXELS_MAX / inches))
        for _ in range(_TRIES):
            picture = _draw(figure, dpi)
            if len(picture) <= bytes_max:
                return [picture]
            size = len(picture)
            dpi = max(_DPI_MIN, 0.9 * dpi * math.sqrt(bytes_max / size))
        _note(
            f"figure {number} is left out: {size} bytes even when reduced, but at most {bytes_max} "
            "are allowed"
        )
    except BaseException as error:  # noqa: BLE001 - as above
        _note(f"figure {number} cannot be drawn: {_describe(error)}")
    return []


def _draw(figure: Any, dpi: float) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Without the version of matplotlib, so that the same drawing is the same bytes.
        figure.savefig(file, format="png", dpi=dpi, metadata={"Software": None})
    picture = file.getvalue()
    if not picture.startswith(_SIGNATURE):
        raise ValueError("the output of savefig is not a PNG")
    return picture


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001 - the code's own exception may refuse to be text
        return type(error).__name__


def _note(text: str) -> None:
    try:
        sys.stderr.write(f"({text})\n")
    except BaseException:  # noqa: BLE001 - the code may have closed or replaced it
        return
