"""Code for pyautogui, as agents of OSWorld write it, as calls of the `computer` tool. Pure.

Only what such code does with literal values is understood: the code is read, never run.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl_envs.recorded.converters.converted import UnusableTrajectory, require_number

Call = dict[str, Any]
_SPECIAL = {"DONE": "done", "FAIL": "fail", "WAIT": "wait"}
_IGNORED = ("pyautogui.FAILSAFE", "pyautogui.PAUSE")
_CLICKS = {
    ("left", 1): "click", ("left", 2): "double_click", ("left", 3): "triple_click",
    ("right", 1): "right_click", ("middle", 1): "middle_click",
}  # fmt: skip
_MANY = {"doubleClick": 2, "tripleClick": 3}
_BUTTONS = {"rightClick": "right", "middleClick": "middle"}
_NAMES = {
    "CLICK": "click", "RIGHT_CLICK": "rightClick", "DOUBLE_CLICK": "doubleClick",
    "MOVE_TO": "moveTo", "DRAG_TO": "dragTo", "MOUSE_DOWN": "mouseDown", "MOUSE_UP": "mouseUp",
    "TYPING": "write", "PRESS": "press", "KEY_DOWN": "keyDown", "KEY_UP": "keyUp",
    "HOTKEY": "hotkey", "SCROLL": "scroll",
}  # fmt: skip
"""OSWorld's actions as objects, by the functions that do them."""
_POSITIONS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("click", "doubleClick", "tripleClick", "rightClick", "middleClick"),
                    ("x", "y", "clicks", "interval", "button")),
    **dict.fromkeys(("moveTo", "dragTo", "mouseDown", "mouseUp"), ("x", "y", "duration")),
    "scroll": ("clicks", "x", "y"), "vscroll": ("clicks", "x", "y"),
    "hscroll": ("clicks", "x", "y"), "write": ("message", "interval"),
    "typewrite": ("message", "interval"), "press": ("keys", "presses"), "keyDown": ("key",),
    "keyUp": ("key",), "sleep": ("secs",),
}  # fmt: skip
_NOTCH = 10
"""From how many units of pyautogui's wheel on a notch is ten: agents write 5 or 500."""
_MOST_CHARS = 100_000
"""Of an action's code. Whatever memory the parser lacks for so little, the machine has."""
_MOST_CALLS = 100
"""Of an action: one that presses a key a billion times is damaged."""


def calls_of(action: Any) -> list[Call]:
    """Return the calls of an action of OSWorld: a text of code, DONE, FAIL or WAIT, or an object.

    Raises `UnusableTrajectory` for what cannot be understood.
    """
    if isinstance(action, Mapping):
        return _convert_object(dict(action))  # pyright: ignore[reportUnknownArgumentType]
    code = str(action).strip()
    if code in _SPECIAL:
        return [{"action": _SPECIAL[code]}]
    if len(code) > _MOST_CHARS:
        raise UnusableTrajectory(
            f"the code of an action has {len(code)} characters, but the limit is {_MOST_CHARS}"
        )
    try:
        body = ast.parse(code, "code").body
    except (SyntaxError, ValueError) as error:
        raise UnusableTrajectory(f"{code!r:.80} is not valid Python: {error}") from error
    except (MemoryError, RecursionError) as error:
        raise UnusableTrajectory(f"{code!r:.80} is nested too deep") from error
    hand = _Hand()
    for statement in body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            continue
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) in _IGNORED:
            continue
        hand.do(*_parse_call(statement))
    return hand.finish()


def _convert_object(action: dict[str, Any]) -> list[Call]:
    kind = str(action.get("action_type", ""))
    if kind in _SPECIAL:
        return [{"action": _SPECIAL[kind]}]
    if kind not in _NAMES:
        raise UnusableTrajectory(
            f"there is no action {kind!r:.80}; the actions are {', '.join([*_NAMES, *_SPECIAL])}"
        )
    parameters: dict[str, Any] = dict(action.get("parameters") or {})
    hand = _Hand()
    if kind == "SCROLL":
        for name, units in (
            ("hscroll", parameters.get("dx", 0)),
            ("scroll", parameters.get("dy", 0)),
        ):
            if units:
                hand.do(name, {"clicks": units})
        return hand.finish()
    renamed = {"num_clicks": "clicks", "text": "message"}
    arguments = {renamed.get(name, name): value for name, value in parameters.items()}
    if kind == "PRESS":
        arguments = {"keys": arguments.get("key")}
    if kind == "HOTKEY":
        arguments = {"": arguments.get("keys", ())}
    hand.do(_NAMES[kind], arguments)
    return hand.finish()


def _parse_call(statement: ast.stmt) -> tuple[str, dict[str, Any]]:
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call):
        raise UnusableTrajectory(f"{ast.unparse(statement)!r:.80} is not a call of pyautogui")
    module, _, name = ast.unparse(call.func).rpartition(".")
    if module not in ("pyautogui", "time") or (module == "time") != (name == "sleep"):
        raise UnusableTrajectory(f"{ast.unparse(call.func)!r:.80} is not a function of pyautogui")
    try:
        values = [ast.literal_eval(argument) for argument in call.args]
        keywords = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    except ValueError as error:
        raise UnusableTrajectory(
            f"{ast.unparse(call)!r:.80} has an argument that is not a literal value"
        ) from error
    if name == "hotkey":
        return name, {"": values}
    positions = _POSITIONS.get(name, ())
    if len(values) == 1 and isinstance(values[0], list | tuple) and positions[:2] == ("x", "y"):
        values = [*values[0]]
    return name, dict(zip(positions, values, strict=False)) | keywords


class _Hand:
    """Position of the mouse, pressed keys and buttons, and the calls so far."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._at: list[float] | None = None
        self._moved = False
        """Whether the last thing was a move that nothing has made use of."""
        self._down: list[float] | None = None
        self._held: list[str] = []
        self._used: set[str] = set()

    def do(self, name: str, given: dict[str, Any]) -> None:
        """Do what a function does."""
        does: dict[str, Callable[[dict[str, Any]], None]] = {
            "moveTo": self._move, "dragTo": self._drag, "mouseDown": self._press,
            "mouseUp": self._release, "write": self._type, "typewrite": self._type,
            "press": self._strike, "hotkey": self._chord, "keyDown": self._hold,
            "keyUp": self._release_key, "sleep": self._wait,
        }  # fmt: skip
        if name in ("click", *_MANY, *_BUTTONS):
            self._click(name, given)
        elif name in ("scroll", "vscroll", "hscroll"):
            self._scroll(given, across=name == "hscroll")
        elif name in does:
            does[name](given)
        else:
            raise UnusableTrajectory(f"pyautogui.{name} cannot be recorded")

    def finish(self) -> list[Call]:
        """Return all that was done."""
        if self._down is not None or self._held:
            raise UnusableTrajectory("a button or a key is held at the end of an action")
        if self._moved and self._at is not None:
            self._add({"action": "move", "coordinate": self._at})
        if not self._calls:
            raise UnusableTrajectory("an action without effect")
        return self._calls

    def _add(self, call: Call, times: int = 1) -> None:
        if len(self._calls) + times > _MOST_CALLS:
            raise UnusableTrajectory(f"an action has more than {_MOST_CALLS} calls, the maximum")
        self._calls += [call] * times

    def _go(self, given: Mapping[str, Any]) -> list[float]:
        if given.get("x") is not None and given.get("y") is not None:
            self._at = [require_number(given[side], side) for side in ("x", "y")]
        if self._at is None:
            raise UnusableTrajectory("it acts at the mouse position, which is unknown")
        self._moved = False
        return self._at

    def _add_keys(self, call: Call) -> Call:
        self._used.update(self._held)
        return call | ({"keys": "+".join(self._held)} if self._held else {})

    def _click(self, name: str, given: dict[str, Any]) -> None:
        button = _BUTTONS.get(name) or str(given.get("button") or "left")
        count = _MANY.get(name) or int(given.get("clicks") or 1)
        verb = _CLICKS.get((button, count))
        if verb is None:
            raise UnusableTrajectory(f"{count} clicks of the {button} button cannot be recorded")
        at = self._go(given)
        self._add(self._add_keys({"action": verb, "coordinate": at}))

    def _move(self, given: dict[str, Any]) -> None:
        self._go(given)
        self._moved = self._down is None

    def _drag(self, given: dict[str, Any]) -> None:
        start = self._go({})
        end = self._go(given)
        self._add({"action": "drag", "coordinate": start, "to_coordinate": end})

    def _press(self, given: dict[str, Any]) -> None:
        self._down = self._go(given)

    def _release(self, given: dict[str, Any]) -> None:
        end, start, self._down = self._go(given), self._down, None
        if start is None:
            raise UnusableTrajectory("a button is released that was not pressed")
        same = start == end
        call: Call = {"action": "click" if same else "drag", "coordinate": start}
        self._add(call if same else call | {"to_coordinate": end})

    def _scroll(self, given: dict[str, Any], *, across: bool) -> None:
        units = int(given.get("clicks") or 0)
        if not units:
            raise UnusableTrajectory("a scroll of zero")
        way = ("right" if units > 0 else "left") if across else ("up" if units > 0 else "down")
        notches = abs(units) if abs(units) <= _NOTCH else max(1, round(abs(units) / 100))
        call: Call = {"action": "scroll", "direction": way, "amount": min(50, notches)}
        if given.get("x") is not None or self._at is not None:
            call["coordinate"] = self._go(given)
        self._add(call)

    def _type(self, given: dict[str, Any]) -> None:
        text = str(given.get("message") or "")
        if not text:
            raise UnusableTrajectory("an empty text is typed")
        self._add({"action": "type", "text": text})

    def _strike(self, given: dict[str, Any]) -> None:
        keys = given.get("keys")
        for key in keys if isinstance(keys, list | tuple) else [keys]:  # pyright: ignore[reportUnknownVariableType]
            chord = "+".join([*self._held, str(key)])
            self._used.update(self._held)
            self._add({"action": "key", "keys": chord}, int(given.get("presses") or 1))

    def _chord(self, given: dict[str, Any]) -> None:
        keys = given[""]
        if len(keys) == 1 and isinstance(keys[0], list | tuple):
            keys = keys[0]
        self._add({"action": "key", "keys": "+".join(map(str, keys))})

    def _hold(self, given: dict[str, Any]) -> None:
        self._held.append(str(given.get("key")))

    def _release_key(self, given: dict[str, Any]) -> None:
        key = str(given.get("key"))
        if key not in self._held:
            raise UnusableTrajectory(f"the key {key!r:.80} is released but was not pressed")
        self._held.remove(key)
        if key not in self._used:
            self._used.add(key)
            chord = "+".join([*self._held, key])
            self._used.update(self._held)
            self._add({"action": "key", "keys": chord})

    def _wait(self, given: dict[str, Any]) -> None:
        seconds = float(given.get("secs") or 0)
        self._add({"action": "wait", "seconds": max(0.0, min(10.0, seconds))})
