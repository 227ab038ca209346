"""Settings of another kind than their parameter's annotation.

Mutants seen caught: numbers of the other kind refused; truth values taken for numbers; an unknown
part of a union ignored; a default refused; what no config can hold refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest

from agentrl.authoring.setting_kinds import check_setting_kinds, read_settings
from agentrl.errors import ConfigError

X = TypeVar("X")


class Maker:
    def __init__(
        self,
        *,
        turns: int | None = 3,
        rate: float = 0.5,
        names: str | Sequence[str] = (),
        levels: list[int] | tuple[int, ...] = (),
        extra: Mapping[str, Any] | None = None,
        is_on: bool = False,
        mode: Literal["a", "b"] | None = None,
        sign: Literal[b"+", "-"] = "-",
        folder: Path | None = None,
        either: Path | int = 0,
        own: X | None = None,  # pyright: ignore[reportInvalidTypeVarUse]
        sloppy: int = None,  # noqa: RUF013 # pyright: ignore[reportArgumentType]
        bare=1,  # pyright: ignore[reportMissingParameterType]
        **rest: int,
    ) -> None:
        raise AssertionError("nothing is made to be checked")


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("turns", "3", "turns of it must be a number or null, got '3'"),
        ("turns", True, "a number or null, got True"),
        ("turns", [3], r"got \[3\]"),
        ("rate", None, "rate of it must be a number, got None"),
        ("names", 5, "must be a text or a list, got 5"),
        ("levels", "all", "must be a list, got 'all'"),
        ("extra", [1], "must be a mapping or null"),
        ("is_on", "false", "must be true or false, got 'false'"),
        ("is_on", 1, "must be true or false, got 1"),
        ("mode", 1, "must be a text or null, got 1"),
        ("names", {"a" * 200: 1}, "got {'a{78}$"),
    ],
)
def test_another_kind_is_refused(key: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_setting_kinds(Maker, {key: value}, of="it")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("turns", None), ("turns", 2.5), ("rate", 1), ("names", "a"), ("names", ["a"]),
        ("names", ("a",)), ("levels", [1]), ("extra", {}), ("is_on", True), ("mode", "c"),
        ("sign", 3), ("folder", "a/b"), ("folder", 3), ("either", "x"), ("own", 3),
        ("sloppy", None), ("bare", "x"), ("other", "x"), ("rest", "x"), ("turns", Path()),
    ],
)  # fmt: skip
def test_everything_else_is_left_to_the_maker(key: str, value: Any) -> None:
    check_setting_kinds(Maker, {key: value}, of="it")


def test_annotations_that_cannot_be_read_say_nothing() -> None:
    def make(turns: "Nowhere") -> None: ...  # type: ignore[name-defined] # noqa: F821

    def make_other(turns: "no Python") -> None: ...  # type: ignore[syntax]

    makers: list[Callable[..., Any]] = [make, make_other, dict, print]
    for maker in makers:
        check_setting_kinds(maker, {"turns": "x"}, of="it")


@dataclass(frozen=True)
class Sizes:
    width: int = 1
    title: str = ""


def test_settings_are_read() -> None:
    assert read_settings(Sizes, None, of="sizes") == Sizes()
    assert read_settings(Sizes, Sizes(2), of="sizes") == Sizes(2)
    assert read_settings(Sizes, {"width": 3, "title": "a"}, of="sizes") == Sizes(3, "a")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (3, "sizes must be a mapping of its settings, got 3"),
        ("width", "got 'width'"),
        ({"widht": 3}, r"sizes has no settings \['widht'\]; its settings are title, width"),
        ({"width": "3"}, "width of sizes must be a number, got '3'"),
    ],
)
def test_other_settings_are_refused(values: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_settings(Sizes, values, of="sizes")
