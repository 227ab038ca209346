"""The first process of a desktop: answers the host's requests, one at a time, until it hangs up."""

import contextlib
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
from agentrl_envs.gui.inside.session import LAYER_S, STILL_S, DisplaySession
from agentrl_envs.gui.inside.windows import WindowInfo
from agentrl_envs.gui.inside.zygote import set_dumpable
from agentrl_sandbox.inside.frames import ChannelFrameReader, encode

_POLL_S = 0.03
_CHUNK_BYTES = 2**16
FILE_BYTES = 4 * 2**20
FILES_MAX = 2000
OUTPUT_BYTES = 2**20

INPUTS = ("move", "click", "drag", "scroll", "type", "press")
"""Requests that the mouse and the keyboard answer."""
Reply = dict[str, Any]
"""Body of an answer. A `blob` in it is sent beside it."""


class DesktopServer:
    """The requests, by name. Each gets its arguments, and may return a body."""

    def __init__(self, session: DisplaySession) -> None:
        self._session = session
        self._blob = b""
        self._programs: dict[int, str] = {}
        """Those of the episode, by pid."""

    def answer(self, body: dict[str, Any], blob: bytes) -> tuple[Reply, bytes]:
        """Do what is asked for; return a body and a blob."""
        do = body.pop("do")
        is_input = do in INPUTS
        handler: Callable[..., dict[str, Any] | None]
        handler = getattr(self._session.hands, do) if is_input else getattr(self, f"do_{do}")
        self._blob = blob
        try:
            reply: Reply = handler(**body) or {}
        except UnknownKey as error:
            reply = {"refused": str(error)}
        return reply, reply.pop("blob", b"")

    def do_ping(self) -> Reply:
        """Say whether the desktop is whole, what crashed, and how many windows there are."""
        has_crashed = self._session.processes.has_crashed
        crashed = [name for pid, name in self._programs.items() if has_crashed(pid)]
        alive = self._session.alive()
        windows = len(self._clients() if alive else ())
        return {"alive": alive, "crashed": crashed, "windows": windows}

    def do_put(self, path: str, mode: int, changed_s: float) -> None:
        files.write(path, self._blob, mode, changed_s)

    def do_folder(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def do_read(self, path: str) -> Reply:
        data = files.read(path, FILE_BYTES)
        return {"there": data is not None, "blob": data or b""}

    def do_list(self, root: str) -> Reply:
        return {"files": files.list_below(root, FILES_MAX)}

    def do_start(self, command: list[str], limit_s: float) -> Reply:
        """Start a program; answer when it has a window of its own."""
        before = {window.id for window in self._clients()}
        try:
            pid = self._session.program(command)
            self._programs[pid] = command[0]
        except OSError as error:
            return {"failed": f"{command[0]} cannot be started: {error}"}
        end_s = time.monotonic() + limit_s
        while not [window for window in self._clients() if window.id not in before]:
            if time.monotonic() > end_s:
                return {"failed": f"{command[0]} showed no window: {self._session.read_log()}"}
            if self._session.processes.has_ended(pid) and not self._session.processes.list_pids():
                return {"failed": f"{command[0]} ended: {self._session.read_log()}"}
            time.sleep(_POLL_S)
        return {}

    def do_launch(self, command: list[str]) -> Reply:
        """Start a program of which nobody waits for a window."""
        try:
            self._programs[self._session.program(command)] = command[0]
        except OSError as error:
            return {"failed": f"{command[0]} cannot be started: {error}"}
        return {}

    def do_run(self, command: list[str], limit_s: float) -> Reply:
        """Run a command to its end, or to that of its time; answer with what it wrote."""
        try:
            code, out, err = self._session.processes.run(command, limit_s, OUTPUT_BYTES)
        except OSError as error:
            code, out, err = 127, b"", str(error).encode()
        return {"code": code, "out_bytes": len(out), "blob": out + err}

    def do_window(self, title: str, how: str, strict: bool) -> Reply:
        """Raise or close the first window of a title."""
        for window in self._clients():
            if window.title == title if strict else title.lower() in window.title.lower():
                self._session.windows.tell(window.id, how)
                return {"there": True}
        return {"there": False}

    def do_quit(self, limit_s: float) -> Reply:
        """Ask the programs of the episode to end, and wait; say whether they did."""
        processes = self._session.processes
        end_s = time.monotonic() + limit_s
        for pid in self._programs:
            if not processes.has_ended(pid):
                # Reaped as soon as it ends, also just now.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        while survivors := [pid for pid in self._programs if not processes.has_ended(pid)]:
            if time.monotonic() > end_s:
                break
            time.sleep(_POLL_S)
        return {"ended": not survivors}

    def do_settle(self, still_s: float, limit_s: float) -> Reply:
        return {"rests": self._session.settle(still_s, limit_s)}

    def do_pixels(self) -> Reply:
        screen = self._session.screen
        size = {"width": screen.width, "height": screen.height, "line_bytes": screen.line_bytes}
        return {**size, "blob": screen.pixels()}

    def do_fingerprint(self) -> Reply:
        """Return a number that is another one when the picture is."""
        return {"is": self._session.screen.fingerprint()}

    def do_look(self, limit_s: float, most: int) -> Reply:
        """Return the windows and what can be seen in them."""
        elements, silent, overflow = self._session.tree.read(limit_s, most)
        windows = self._session.windows.list_visible()
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
        }

    def do_locate(self, reference: list[str]) -> Reply:
        """Return the box of an element or a window now, its process, and all windows."""
        windows = self._session.windows.list_visible()
        if reference[0]:
            box = self._session.tree.box((reference[0], reference[1]), LAYER_S)
            pid = self._session.tree.pid(reference[0])
        else:
            matches = [window for window in windows if str(window.id) == reference[1]]
            box, pid = (matches[0][3:7], matches[0].pid) if matches else (None, 0)
        if box is None:
            return {}
        window_rows = [window._asdict() for window in windows]
        return {"box": list(box), "pid": pid, "windows": window_rows}

    def do_pointer(self) -> Reply:
        return {"at": self._session.windows.pointer()}

    def do_clear(self, limit_s: float) -> Reply:
        """End the programs of the episode and remove what they left."""
        session = self._session
        self._programs.clear()
        session.processes.end_all()
        # An editor can save its text anywhere, over the settings too.
        whole = session.renew_files()
        session.renew_manager(limit_s)
        session.hands.unlock()
        session.park()
        session.prepare()
        rests = session.settle(STILL_S, limit_s)
        return {"clean": whole and rests and not self._clients() and session.alive()}

    def _clients(self) -> list[WindowInfo]:
        return [window for window in self._session.windows.list_visible() if window.managed]


def main() -> None:
    """Start the desktop that the arguments name, greet, and answer until the host hangs up."""
    width, height, start_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    processes = int(sys.argv[4])
    # Counted in our user namespace, and so also where there is no cgroup.
    resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    # Programs of the episode have our user id: nobody reads or stops us through /proc or ptrace.
    set_dumpable(False)
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
