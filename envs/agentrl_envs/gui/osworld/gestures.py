"""Gestures of a task file's lines of Python with PyAutoGUI, read and never run as Python.

    pyautogui.hotkey('ctrl', 's'); time.sleep(0.5)   ──►   press ctrl+s, rest

Only calls with constants are read; whatever else is there makes a task one that cannot be used.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl_envs.gui.world import WritableDesktop

_TERMINAL = {"ctrl", "alt", "t"}
_PYTHONS = ("python", "python3")
_TYPES = ("typewrite", "write")
_CLICKS = {"click": ("left", 1), "doubleClick": ("left", 2), "rightClick": ("right", 1)}
_SLEEP_MAX_S = 10.0


class UnreadableScript(Exception):
    """A script does more than can be read of it. The message names it."""


@dataclass(frozen=True, slots=True)
class ScriptGesture:
    """One thing that the hands do; `sleep` for a while of doing nothing."""

    do: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])


def is_script(command: object) -> bool:
    """Say whether a command is a line of Python with PyAutoGUI."""
    match command:
        case [str() as python, "-c", str() as code]:
            return python in _PYTHONS and "pyautogui" in code
        case str() as line:
            return "pyautogui" in line
        case _:
            return False


def gestures(command: Sequence[str] | str) -> list[ScriptGesture]:
    """Return the gestures of such a line, in order. Raises `UnreadableScript`."""
    if isinstance(command, str) or len(command) != 3:
        raise UnreadableScript("PyAutoGUI within a shell command")
    try:
        lines = ast.parse(command[2].replace("{SCREEN_WIDTH_HALF}", "960")
                          .replace("{SCREEN_HEIGHT_HALF}", "540")
                          .replace("{SCREEN_WIDTH}", "1920")
                          .replace("{SCREEN_HEIGHT}", "1080")).body  # fmt: skip
    except SyntaxError:
        raise UnreadableScript("a script that is not valid Python") from None
    script_gestures: list[ScriptGesture] = []
    for line in lines:
        match line:
            case ast.Import(names=names) if {one.name for one in names} <= {"pyautogui", "time"}:
                continue
            case ast.Expr(value=ast.Call() as asked):
                script_gestures += _call(asked)
            case _:
                raise UnreadableScript(f"a script with {ast.unparse(line)!r}")
    return script_gestures


def _call(asked: ast.Call) -> list[ScriptGesture]:
    try:
        args = [ast.literal_eval(one) for one in asked.args]
        kwargs = {one.arg or "": ast.literal_eval(one.value) for one in asked.keywords}
    except ValueError:
        raise UnreadableScript(f"a script with {ast.unparse(asked)!r}") from None
    match ast.unparse(asked.func), args:
        case "time.sleep" | "pyautogui.sleep", [int() | float() as seconds]:
            return [ScriptGesture("sleep", {"seconds": min(float(seconds), _SLEEP_MAX_S)})]
        case "pyautogui.hotkey", [*keys] if _are_names(keys):
            return [_press(keys)]
        case "pyautogui.hotkey", [[*keys]] if _are_names(keys):
            return [_press(keys)]
        case "pyautogui.press", [str() as key]:
            times = int(kwargs.get("presses", 1))
            return [_press([key]) for _ in range(times)]
        case "pyautogui.press", [[*keys]] if _are_names(keys):
            return [_press([key]) for key in keys]
        case str() as name, [str() as text] if name.removeprefix("pyautogui.") in _TYPES:
            return [ScriptGesture("type", {"text": text})]
        case "pyautogui.moveTo", [int() as x, int() as y, *_]:
            return [ScriptGesture("move", {"x": x, "y": y})]
        case str() as name, [int() as x, int() as y] if name.removeprefix("pyautogui.") in _CLICKS:
            button, times = _CLICKS[name.removeprefix("pyautogui.")]
            how = {"button": kwargs.get("button", button), "times": kwargs.get("clicks", times)}
            return [ScriptGesture("click", {"x": x, "y": y, "keys": [], **how})]
        case _:
            raise UnreadableScript(f"a script with {ast.unparse(asked)!r}")


def _are_names(keys: Sequence[object]) -> bool:
    return bool(keys) and all(isinstance(key, str) for key in keys)


def _press(keys: Sequence[str]) -> ScriptGesture:
    if {*keys} == _TERMINAL:
        raise UnreadableScript("GNOME's shortcut for a terminal")
    return ScriptGesture("press", {"keys": [*keys]})


async def perform(done: Sequence[ScriptGesture], place: WritableDesktop) -> None:
    """Do gestures on a desktop; every one is followed by a rest, so sleeps are rests too.

    Points are of a screen of 1920 x 1080, as OSWorld's is, and are where they are on this one.
    """
    width, height = await place.size()
    for one in done:
        arguments = dict(one.arguments)
        if one.do == "sleep":
            await place.settle()
            continue
        if "x" in arguments:
            arguments["x"] = min(width - 1, max(0, arguments["x"] * width // 1920))
            arguments["y"] = min(height - 1, max(0, arguments["y"] * height // 1080))
        await place.ask(one.do, **arguments)
