"""Parts of every desktop before a program starts: screen, bus, accessibility, window manager."""

import importlib
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from agentrl_envs.gui.inside import config, files, form
from agentrl_envs.gui.inside.accessibility_tree import AccessibilityTree
from agentrl_envs.gui.inside.bus import AccessibilityBus
from agentrl_envs.gui.inside.input_devices import InputDevices
from agentrl_envs.gui.inside.keyboard import KeyboardMap
from agentrl_envs.gui.inside.processes import DesktopProcesses
from agentrl_envs.gui.inside.screen import FrameBuffer
from agentrl_envs.gui.inside.windows import WindowList
from agentrl_envs.gui.inside.zygote import FormZygote

RUN = "/run/desktop"
HOME = "/home/user"
_SHARED = (RUN, "/tmp", "/dev/shm")
"""Directories where the parts of a desktop have files, and programs can write."""
_BUS = f"unix:path={RUN}/bus"
STILL_S = 0.09
LAYER_S = 1.0
_POLL_S = 0.005


class DisplaySession:
    """A desktop that is up."""

    def __init__(self, width: int, height: int, start_s: float) -> None:
        self._end_s = time.monotonic() + start_s
        self.processes = DesktopProcesses(
            {
                **os.environ,
                "DISPLAY": ":0",
                "DBUS_SESSION_BUS_ADDRESS": _BUS,
                "XDG_RUNTIME_DIR": RUN,
            }
        )
        self._write_settings()
        self._log = os.open(f"{RUN}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
        self._x = self._start_x(width, height)
        self.screen = FrameBuffer(f"{RUN}/Xvfb_screen0")
        bus = ["dbus-daemon", f"--config-file={RUN}/bus.conf"]
        self._start([*bus, "--nofork", "--nopidfile", "--nosyslog"])
        self._wait_until(lambda: os.path.exists(f"{RUN}/bus"), "the session bus")
        self._start(["/usr/libexec/at-spi-bus-launcher", "--launch-immediately"])
        xlib: Any = importlib.import_module("Xlib.display")
        self.display = xlib.Display(":0")
        self.windows = WindowList(self.display)
        self._manager = self._start_manager()
        keys: Any = importlib.import_module("Xlib.XK")
        keyboard = KeyboardMap(self.display, keys.string_to_keysym)
        self.hands = InputDevices(
            self.display, keyboard, partial(self.settle, STILL_S, 5 * LAYER_S)
        )
        self.tree = AccessibilityTree(AccessibilityBus(_BUS).ask)
        self._wait_until(self.windows.has_manager, "the window manager")
        self.tree.read(start_s, 1)
        self.park()
        self.settle(0.1, start_s)
        self.processes.keep(self.processes.list_pids())
        self._zygote: FormZygote | None = None
        self._has_forms = False
        self._own_files = files.identify(*_SHARED)

    def program(self, command: list[str]) -> int:
        """Start a program of the episode; OSError when it cannot be."""
        if tuple(command[:-1]) == form.COMMAND:
            self._has_forms = True
            if self._zygote is not None and (pid := self._fork_form(self._zygote, command[-1])):
                return pid
        return self._start(command)

    def prepare(self) -> None:
        """Have ready what a desktop that was used for forms will need again, while nobody waits."""
        if self._has_forms and self._zygote is None:
            self._zygote = FormZygote(self.processes, self._log)
            self.processes.keep([self._zygote.pid])

    def _fork_form(self, zygote: FormZygote, path: str) -> int | None:
        """Return the pid of a form; None where it has to be started as any other program."""
        pid = None
        try:
            pid = zygote.fork(path)
        finally:
            if pid is None:
                # What is left of it is killed with the episode's programs, and another one is made.
                self.processes.forget(zygote.pid)
                self._zygote = None
        return pid

    def alive(self) -> bool:
        """Return whether the X server and the window manager run."""
        return not any(self.processes.has_ended(pid) for pid in (self._x, self._manager))

    def park(self) -> None:
        """Put the pointer where it is when an episode begins."""
        self.hands.move(self.screen.width - 1, self.screen.height - 1)

    def renew_files(self) -> bool:
        """Leave only the files of a fresh desktop; return whether all of them are there."""
        files.empty(HOME)
        for folder in _SHARED:
            files.empty(folder, but=self._own_files)
        os.ftruncate(self._log, 0)
        self._write_settings()
        return all(os.path.lexists(path) for path, _ in self._own_files)

    def renew_manager(self, within_s: float) -> None:
        """Start another window manager, which has not placed any window yet."""
        self._end_s = time.monotonic() + within_s
        self.processes.end(self._manager)
        self.windows.forget_manager()
        self._manager = self._start_manager()
        self.processes.keep([self._manager])
        self._wait_until(self.windows.has_manager, "the window manager")

    def settle(self, still_s: float, limit_s: float) -> bool:
        """Wait until the screen rests; see `FrameBuffer.wait_for_rest`."""
        # The window manager wakes ten times a second, to look whether it is to show a hint.
        find_next_timer_s = partial(self.processes.find_next_timer_s, self._manager)
        return self.screen.wait_for_rest(self.processes.load, find_next_timer_s, still_s, limit_s)

    def read_log(self) -> str:
        """Return the end of what the programs complained about."""
        with open(f"{RUN}/log", "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 2000))
            return file.read().decode(errors="replace")

    def _write_settings(self) -> None:
        config.write(RUN)
        os.makedirs(f"{RUN}/bin", exist_ok=True)
        if not os.path.lexists(python := f"{RUN}/bin/python"):
            os.symlink("/usr/bin/python3", python)

    def _start(self, command: list[str]) -> int:
        return self.processes.start(command, log=self._log)

    def _start_manager(self) -> int:
        return self._start(["jwm", "-f", f"{RUN}/jwmrc"])

    def _start_x(self, width: int, height: int) -> int:
        ready, write_fd = os.pipe()
        size = f"{width}x{height}x24"
        command = ["Xvfb", ":0", "-screen", "0", size, "-fbdir", RUN, "-displayfd", "3"]
        command += ["-nolisten", "tcp", "-noreset", "-dpi", "96", "-s", "0"]
        pid = self.processes.start(command, log=self._log, lent=write_fd)
        os.close(write_fd)
        with open(ready, "rb") as file:
            if not file.readline():
                raise RuntimeError(f"the X server did not start: {self.read_log()}")
        return pid

    def _wait_until(self, there: Callable[[], bool], what: str) -> None:
        while not there():
            if time.monotonic() > self._end_s:
                raise TimeoutError(f"{what} did not start: {self.read_log()}")
            time.sleep(_POLL_S)
