"""A person plays the episodes of a `GuiEnv`: sees its screen in a VNC viewer, and acts there.

What the hands do is held until it is a whole action. The action is then done as any agent's is, on
the screen as it was shown, so that what is recorded is what happened, and happens again.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, get_args

import numpy as np

from agentrl.authoring.human_player import PlayerLeft, TaskSkipped
from agentrl.env import Action, Box, Observation, call
from agentrl.errors import ConfigError, ToolError
from agentrl.message import Message
from agentrl_envs.gui.desktop import DesktopSession
from agentrl_envs.gui.vnc.board import Button, StatusBoard, button_at
from agentrl_envs.gui.vnc.gestures import (
    Event,
    GestureRecognizer,
    InputGesture,
    KeyEvent,
    Point,
    PointerEvent,
)
from agentrl_envs.gui.vnc.keys import MODIFIERS, NAMES, character_of
from agentrl_envs.gui.vnc.rfb import Frame
from agentrl_envs.gui.vnc.server import VncServer
from agentrl_envs.recorded.pointing import smallest_box
from agentrl_tools.computer import ComputerMachine, PointGrid

PointsBy = Literal["element", "coordinate"]
ANYWHERE = "127.0.0.1:0"
"""Some port of this machine."""
_POLL_S = 0.15
"""Time between looks at the screen while nothing is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayerView:
    """The desktop of an episode that runs."""

    desktop: DesktopSession
    machine: ComputerMachine
    grid: PointGrid
    boxes: Mapping[int, Box]
    """Of the elements that were shown last, in pixels."""


class VncPlayer:
    """The place of a person. Use it in `async with`; `act` is its player."""

    def __init__(
        self, sight: Callable[[], PlayerView], size: tuple[int, int], *, at: str, points_by: str
    ) -> None:
        """Open nothing yet.

        Args:
            sight: The desktop of the episode that runs.
            size: Of its screen.
            at: Where viewers come; see `VncServer.open`.
            points_by: How what is pointed at is named: by the number of the element that is there,
                where there is one, or always by a coordinate.
        """
        self._sight = sight
        self._size = size
        if points_by not in get_args(PointsBy):
            raise ConfigError(
                f"points_by must be {' or '.join(get_args(PointsBy))}, got {points_by!r}"
            )
        self._at = at or ANYWHERE
        self._points_by = points_by
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._hands = GestureRecognizer()
        self._over: deque[InputGesture | TaskSkipped | PlayerLeft] = deque()
        """What was done and is not acted on yet."""
        self._goal = ""
        self._state = ""
        self._answer: str | None = None
        """What is typed as the answer, once the person says that it is done."""
        self._drawn: tuple[StatusBoard, Frame] = (StatusBoard(), StatusBoard().draw(size[0]))
        wide, high = size
        self._screen: Frame = np.zeros((high, wide, 4), dtype=np.uint8)
        self._server = VncServer("agentrl", self._compose(), self._events.put_nowait)

    async def __aenter__(self) -> Self:
        await self._server.open(self._at)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._server.close()

    @property
    def password(self) -> str:
        """Password that viewers have to know."""
        return self._server.password

    @property
    def address(self) -> str:
        """Address to which viewers connect."""
        return self._server.address

    @property
    def invitation(self) -> str:
        """Invitation for the person."""
        return f"a VNC viewer sees the desktop at {self.address} with password {self.password}"

    async def act(self, new: Observation, seen: tuple[Message, ...]) -> Action:
        """Return the person's next action; may raise `TaskSkipped` and `PlayerLeft`."""
        self._goal = next((m.text.partition("\n")[0] for m in seen if m.role == "user"), "")
        tool_text = next((m.text.partition("\n")[0] for m in new.messages if m.role == "tool"), "")
        self._state = "" if tool_text.startswith("screen:") else tool_text
        over = await self._wait_for_gesture()
        if not isinstance(over, InputGesture):
            raise over
        self._state = "wait"
        await self._refresh()
        return await self._to_action(over)

    async def _wait_for_gesture(self) -> InputGesture | TaskSkipped | PlayerLeft:
        while not self._over:
            await self._refresh()
            due_s = self._hands.due_s
            wait_s = _POLL_S if due_s is None else min(_POLL_S, due_s - time.monotonic())
            try:
                async with asyncio.timeout(max(0.0, wait_s)):
                    self._handle(await self._events.get())
            except TimeoutError:
                # What is still in the queue was done before now, and may belong to what is begun.
                if self._events.empty():
                    self._hands, over = self._hands.expire(time.monotonic())
                    self._over.extend(over)
        return self._over.popleft()

    def _handle(self, event: Event) -> None:
        """Take in what the hands did: on the board, into the answer, or on the desktop."""
        if isinstance(event, PointerEvent):
            x, y = event.point
            pressed = event.buttons & ~self._hands.buttons & 1
            if y >= self._size[1] and pressed:
                self._press(button_at(x, y - self._size[1]))
            if y >= self._size[1] and self._hands.press is None:
                self._hands = replace(self._hands, buttons=event.buttons)
                return
            event = replace(event, point=(min(x, self._size[0] - 1), min(y, self._size[1] - 1)))
        elif self._answer is not None and event.symbol not in MODIFIERS:
            self._type_answer(event)
            return
        self._hands, over = self._hands.handle(event)
        self._over.extend(over)

    def _press(self, button: Button | None) -> None:
        if button is None:
            return
        self._hands, over = self._hands.finish()
        self._over.extend(over)
        match button:
            case "done":
                self._answer = ""
            case "cannot be done":
                self._over.append(InputGesture(verb="fail"))
            case "skip":
                self._over.append(TaskSkipped())
            case "leave":
                self._over.append(PlayerLeft())

    def _type_answer(self, event: KeyEvent) -> None:
        answer = self._answer or ""
        if not event.down:
            return
        name, character = NAMES.get(event.symbol), character_of(event.symbol)
        if name == "Return":
            self._over.append(InputGesture(verb="done", text=answer))
        self._answer = {"Return": None, "Escape": None, "BackSpace": answer[:-1]}.get(
            name or "", answer + (character or "")
        )

    async def _to_action(self, gesture: InputGesture) -> Action:
        sight = self._sight()
        arguments: dict[str, Any] = {}
        if gesture.point is not None:
            number = None if gesture.to else await self._find_element(gesture.point, sight)
            if number is None:
                arguments["coordinate"] = sight.grid.coordinate(*gesture.point)
            else:
                arguments["element"] = number
        if gesture.to is not None:
            arguments["to_coordinate"] = sight.grid.coordinate(*gesture.to)
        if gesture.text:
            arguments["text"] = gesture.text
        if gesture.keys:
            arguments["keys"] = gesture.keys
        if gesture.verb == "scroll":
            arguments |= {"direction": gesture.direction, "amount": gesture.amount}
        return call("computer", action=gesture.verb, **arguments)

    async def _find_element(self, point: Point, sight: PlayerView) -> int | None:
        """Return the number that means what is at a point; None where only the point means it."""
        box = smallest_box(point, sight.boxes)
        if self._points_by == "coordinate" or box is None:
            return None
        number = next(number for number, other in sight.boxes.items() if other == box)
        try:
            spot = await sight.machine.place(number)
        except ToolError:
            return None
        # The middle of a window or a list is another element's.
        return number if smallest_box(spot, sight.boxes) == box else None

    async def _refresh(self) -> None:
        picture = await self._sight().desktop.picture()
        lines = np.frombuffer(picture.data, dtype=np.uint8).reshape(-1, picture.line_bytes)
        wide, high = self._size
        self._screen = lines[:high, : 4 * wide].reshape(high, wide, 4)
        await self._server.show(self._compose())

    def _compose(self) -> Frame:
        board = StatusBoard(goal=self._goal, state=self._describe_state())
        if board != self._drawn[0]:
            self._drawn = (board, board.draw(self._size[0]))
        return np.vstack([self._screen, self._drawn[1]])

    def _describe_state(self) -> str:
        if self._answer is not None:
            return f"The answer, if one is asked for, then Return: {self._answer}_"
        return f"typing: {self._hands.text}_" if self._hands.text else self._state
