"""The accessibility bus: many questions to many programs at once, each on_answer or given up."""

import importlib
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

Reference = tuple[str, str]
"""The name of a program on the bus, and the path of the object in it."""


class BusCall(NamedTuple):
    """One call of a method."""

    to: Reference
    interface: str
    method: str
    signature: str = ""
    """Of the arguments, in D-Bus's notation; empty for none."""
    arguments: tuple[object, ...] = ()


Answer = tuple[Any, ...] | None
"""Result of a method; `()` for a refusal, None for no answer in time."""


class AccessibilityBus:
    """A connection to the accessibility bus of a session."""

    def __init__(self, session: str) -> None:
        self._gio: Any = importlib.import_module("gi.repository.Gio")
        self._glib: Any = importlib.import_module("gi.repository.GLib")
        bus = self._connect(session)
        reply = bus.call_sync(
            "org.a11y.Bus", "/org/a11y/bus", "org.a11y.Bus", "GetAddress", None, None, 0, 5000, None
        )
        self._bus = self._connect(reply.unpack()[0])
        self._context = self._glib.MainContext.default()

    def ask(self, asks: Sequence[BusCall], end_s: float) -> list[Answer]:
        """Ask all at once, and wait until all have on_answer or `end_s` has come."""
        answers: list[Answer] = [None] * len(asks)
        waiting = len(asks)
        left_ms = max(1, int((end_s - time.monotonic()) * 1000))

        def on_answer(bus: Any, result: Any, at: int) -> None:
            nonlocal waiting
            waiting -= 1
            try:
                answers[at] = bus.call_finish(result).unpack()
            except self._glib.Error as error:
                late = error.matches(self._gio.io_error_quark(), self._gio.IOErrorEnum.TIMED_OUT)
                answers[at] = None if late else ()

        for at, ask in enumerate(asks):
            variant = self._glib.Variant(ask.signature, ask.arguments) if ask.signature else None
            self._bus.call(
                *ask.to, ask.interface, ask.method, variant, None, 0, left_ms, None, on_answer, at
            )
        while waiting:
            self._context.iteration(True)
        return answers

    def _connect(self, address: str) -> Any:
        flags = self._gio.DBusConnectionFlags
        return self._gio.DBusConnection.new_for_address_sync(
            address, flags.AUTHENTICATION_CLIENT | flags.MESSAGE_BUS_CONNECTION, None, None
        )
