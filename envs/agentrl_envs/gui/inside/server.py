"""The first process of a desktop: answers the host's requests, one at a time, until it hangs up."""

import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from agentrl_envs.gui.inside import files
from agentrl_envs.gui.inside.keyboard import UnknownKey
from agentrl_envs.gui.inside.session import HOME, DisplaySession
from agentrl_envs.gui.inside.windows import WindowInfo
from agentrl_sandbox.inside.frames import ChannelFrameReader, encode

_PR_SET_DUMPABLE = 4
_POLL_S = 0.03
_CHUNK_BYTES = 2**16
FILE_BYTES = 4 * 2**20
FILES_MAX = 2000
OUTPUT_BYTES = 2**20
_LAYER_S = 1.0

Answer = tuple[dict[str, Any], bytes]


class DesktopServer:
    """The requests, by name. Each gets its arguments and returns a body and a blob."""

    def __init__(self, session: DisplaySession) -> None:
        self._session = session
        self._blob = b""
        self._programs: dict[int, str] = {}
        """Those of the episode, by pid."""

    def answer(self, body: dict[str, Any], blob: bytes) -> Answer:
        """Do what is asked for."""
        handler: Callable[..., Answer] = getattr(self, f"do_{body.pop('do')}")
        self._blob = blob
        try:
            return handler(**body)
        except UnknownKey as error:
            return {"refused": str(error)}, b""

    def do_ping(self) -> Answer:
        """Say whether the desktop is whole, what crashed, and how many windows there are."""
        killed = self._session.processes.killed
        crashed = [name for pid, name in self._programs.items() if killed(pid)]
        alive = self._session.alive()
        return {
            "alive": alive,
            "crashed": crashed,
            "windows": len(self._clients() if alive else ()),
        }, b""

    def do_put(self, path: str, mode: int, changed_s: float) -> Answer:
        """Write a file of the episode."""
        files.put(path, self._blob, mode, changed_s)
        return {}, b""

    def do_folder(self, path: str) -> Answer:
        """Make a directory."""
        os.makedirs(path, exist_ok=True)
        return {}, b""

    def do_read(self, path: str) -> Answer:
        """Read a file."""
        data = files.read(path, FILE_BYTES)
        return {"there": data is not None}, data or b""

    def do_list(self, root: str) -> Answer:
        """List a directory with everything in it."""
        return {"files": files.listed(root, FILES_MAX)}, b""

    def do_start(self, command: list[str], limit_s: float) -> Answer:
        """Start a program; answer when it has a window of its own."""
        before = {window.id for window in self._clients()}
        try:
            pid = self._session.program(command)
            self._programs[pid] = command[0]
        except OSError as error:
            return {"failed": f"{command[0]} cannot be started: {error}"}, b""
        end_s = time.monotonic() + limit_s
        while not [window for window in self._clients() if window.id not in before]:
            if time.monotonic() > end_s:
                return {"failed": f"{command[0]} showed no window: {self._session.said()}"}, b""
            if self._session.processes.ended(pid) and not self._session.processes.all():
                return {"failed": f"{command[0]} ended: {self._session.said()}"}, b""
            time.sleep(_POLL_S)
        return {"pid": pid}, b""

    def do_launch(self, command: list[str]) -> Answer:
        """Start a program of which nobody waits for a window."""
        try:
            self._programs[self._session.program(command)] = command[0]
        except OSError as error:
            return {"failed": f"{command[0]} cannot be started: {error}"}, b""
        return {}, b""

    def do_run(self, command: list[str], limit_s: float) -> Answer:
        """Run a command to its end, or to that of its time; answer with what it wrote."""
        try:
            code, out, err = self._session.processes.run(command, limit_s, OUTPUT_BYTES)
        except OSError as error:
            code, out, err = 127, b"", str(error).encode()
        return {"code": code, "out_bytes": len(out)}, out + err

    def do_window(self, title: str, how: str, strict: bool) -> Answer:
        """Raise or close the first window of a title."""
        for window in self._clients():
            same = window.title == title if strict else title.lower() in window.title.lower()
            if same:
                self._session.windows.tell(window.id, how)
                return {"there": True}, b""
        return {"there": False}, b""

    def do_quit(self, limit_s: float) -> Answer:
        """Ask the programs of the episode to end, and wait; say whether they did."""
        processes = self._session.processes
        end_s = time.monotonic() + limit_s
        for pid in self._programs:
            if not processes.ended(pid):
                # Reaped as soon as it ends, also just now.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        while survivors := [pid for pid in self._programs if not processes.ended(pid)]:
            if time.monotonic() > end_s:
                break
            time.sleep(_POLL_S)
        return {"ended": not survivors}, b""

    def do_settle(self, still_s: float, limit_s: float) -> Answer:
        """Wait until the screen rests."""
        processes = self._session.processes
        return {"rests": self._session.screen.rest(processes.load, still_s, limit_s)}, b""

    def do_pixels(self) -> Answer:
        """Return the picture."""
        screen = self._session.screen
        size = {"width": screen.width, "height": screen.height, "line_bytes": screen.line_bytes}
        return size, screen.pixels()

    def do_fingerprint(self) -> Answer:
        """Return a number that is another one when the picture is."""
        return {"is": self._session.screen.fingerprint()}, b""

    def do_look(self, limit_s: float, most: int) -> Answer:
        """Return the windows and what can be seen in them."""
        elements, silent, overflow = self._session.tree.read(limit_s, most)
        windows = self._session.windows.all()
        element_rows = [
            [
                list(element.reference), element.depth, element.role, element.name,
                sorted(element.states), list(element.box), element.text, element.value, element.pid,
            ]
            for element in elements
        ]  # fmt: skip
        return {
            "elements": element_rows,
            "windows": [window._asdict() for window in windows],
            "silent": silent,
            "left": overflow,
            "pointer": self._session.windows.pointer(),
        }, b""

    def do_locate(self, reference: list[str]) -> Answer:
        """Return the box of an element or a window now, its process, and all windows."""
        windows = self._session.windows.all()
        if reference[0]:
            box = self._session.tree.box((reference[0], reference[1]), _LAYER_S)
            pid = self._session.tree.pid(reference[0])
        else:
            matches = [window for window in windows if str(window.id) == reference[1]]
            box, pid = (matches[0][3:7], matches[0].pid) if matches else (None, 0)
        if box is None:
            return {}, b""
        window_rows = [window._asdict() for window in windows]
        return {"box": list(box), "pid": pid, "windows": window_rows}, b""

    def do_pointer(self) -> Answer:
        """Return the position of the mouse."""
        return {"at": self._session.windows.pointer()}, b""

    def do_move(self, x: int, y: int) -> Answer:
        """Move the pointer."""
        self._session.hands.move(x, y)
        return {}, b""

    def do_click(self, x: int, y: int, button: str, times: int, keys: list[str]) -> Answer:
        """Click."""
        self._session.hands.click(x, y, button, times, keys)
        return {}, b""

    def do_drag(self, x1: int, y1: int, x2: int, y2: int) -> Answer:
        """Drag."""
        self._session.hands.drag(x1, y1, x2, y2)
        return {}, b""

    def do_scroll(self, x: int, y: int, direction: str, amount: int) -> Answer:
        """Turn the wheel."""
        self._session.hands.scroll(x, y, direction, amount)
        return {}, b""

    def do_type(self, text: str) -> Answer:
        """Type."""
        self._session.hands.type(text, self._rest)
        return {}, b""

    def do_press(self, keys: list[str]) -> Answer:
        """Press keys together."""
        self._session.hands.press(keys, self._rest)
        return {}, b""

    def do_clear(self, limit_s: float) -> Answer:
        """End the programs of the episode and remove what they left."""
        session = self._session
        self._programs.clear()
        session.processes.end_all()
        # An editor can save its text anywhere, over the settings too.
        session.renew_settings()
        session.renew_manager(limit_s)
        files.empty(HOME)
        files.empty("/tmp", but=".X")
        session.park()
        session.prepare()
        rests = session.screen.rest(session.processes.load, _POLL_S * 3, limit_s)
        return {"clean": rests and not self._clients() and session.alive()}, b""

    def _rest(self) -> bool:
        session = self._session
        return session.screen.rest(session.processes.load, _POLL_S * 3, _LAYER_S * 5)

    def _clients(self) -> list[WindowInfo]:
        return [window for window in self._session.windows.all() if window.managed]


def main() -> None:
    """Start the desktop that the arguments name, greet, and answer until the host hangs up."""
    width, height, start_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    processes = int(sys.argv[4])
    # Counted in our user namespace, and so also where there is no cgroup.
    resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    # Programs of the episode have our user id: nobody reads or stops us through /proc or ptrace.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)
    # Python's own handler for this one would end us; ignored it would be ignored by programs too.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    control = socket.socket(fileno=os.dup(0))
    session = DisplaySession(width, height, start_s)
    agent = DesktopServer(session)
    control.sendall(encode({"id": 0}))
    reader = ChannelFrameReader()
    while data := control.recv(_CHUNK_BYTES):
        for frame in reader.feed(data):
            number = frame.body.pop("id")
            body, blob = agent.answer(frame.body, frame.blob)
            control.sendall(encode({**body, "id": number}, blob))
