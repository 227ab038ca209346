"""The windows of the screen, as the window manager and the X server know them."""

import importlib
from typing import Any, NamedTuple

_VIEWABLE = 2
_ANY_TYPE = 0
_TO_THE_MANAGER = 0x180000
"""Substructure redirect and notify."""


class WindowInfo(NamedTuple):
    """A window of a program."""

    id: int
    title: str
    pid: int
    x: int
    y: int
    width: int
    height: int
    active: bool
    managed: bool
    """False for menus and other windows that draw themselves past the window manager."""


class WindowList:
    """Windows that are open on a display."""

    def __init__(self, display: Any) -> None:
        self._display = display
        self._root = display.screen().root

    def has_manager(self) -> bool:
        """Return whether a window manager is at work."""
        return bool(self._numbers("_NET_SUPPORTING_WM_CHECK"))

    def forget_manager(self) -> None:
        """Take down the sign that a window manager leaves when it is killed."""
        self._root.delete_property(self._display.intern_atom("_NET_SUPPORTING_WM_CHECK"))
        self._display.sync()

    def list_visible(self) -> list[WindowInfo]:
        """Return the windows that can be seen, the lowest first."""
        active = (self._numbers("_NET_ACTIVE_WINDOW") or [0])[0]
        clients = set(self._numbers("_NET_CLIENT_LIST"))
        windows: list[WindowInfo] = []
        for top in self._root.query_tree().children:
            window = self._window(top, clients, active)
            if window is not None:
                windows.append(window)
        return windows

    def tell(self, number: int, how: str) -> None:
        """Ask the window manager to `raise` or to `close` a window."""
        event: Any = importlib.import_module("Xlib.protocol.event").ClientMessage
        kind = {"raise": "_NET_ACTIVE_WINDOW", "close": "_NET_CLOSE_WINDOW"}[how]
        # The source is a pager: a window manager may refuse to raise one for a program.
        data = [2, 0, 0, 0, 0] if how == "raise" else [0, 2, 0, 0, 0]
        message = event(
            window=self._display.create_resource_object("window", number),
            client_type=self._display.intern_atom(kind),
            data=(32, data),
        )
        self._root.send_event(message, event_mask=_TO_THE_MANAGER)
        self._display.sync()

    def pointer(self) -> tuple[int, int]:
        """Return the position of the mouse."""
        at = self._root.query_pointer()
        return at.root_x, at.root_y

    def _window(self, top: Any, clients: set[int], active: int) -> WindowInfo | None:
        x_error: Any = importlib.import_module("Xlib.error").XError
        try:
            if top.get_attributes().map_state != _VIEWABLE:
                return None
            client = self._client(top, clients)
            one = top if client is None else client
            size, at = one.get_geometry(), self._root.translate_coords(one, 0, 0)
            return WindowInfo(
                id=one.id,
                title=self._title(one),
                pid=(self._numbers("_NET_WM_PID", one) or [0])[0],
                x=at.x,
                y=at.y,
                width=size.width,
                height=size.height,
                active=one.id == active,
                managed=client is not None,
            )
        except x_error:
            return None  # it closed while we looked

    def _client(self, top: Any, clients: set[int]) -> Any:
        """Return the program's own window in the frame of the window manager."""
        if top.id in clients:
            return top
        return next((child for child in top.query_tree().children if child.id in clients), None)

    def _numbers(self, name: str, window: Any = None) -> list[int]:
        prop = (window or self._root).get_full_property(self._display.intern_atom(name), _ANY_TYPE)
        return [] if prop is None or prop.format != 32 else [*map(int, prop.value)]

    def _title(self, window: Any) -> str:
        for name in ("_NET_WM_NAME", "WM_NAME"):
            prop = window.get_full_property(self._display.intern_atom(name), _ANY_TYPE)
            if prop is not None and prop.value:
                value = prop.value
                return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        return ""
