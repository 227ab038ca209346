"""A process that has loaded what our own program needs, and is forked for each: half of its start.

It has no display, no bus, no second thread and nothing of an episode: a fork opens the display as a
new program does. Only the first process can ask it, over a socket without a name. A program of an
episode could not read it, and if it killed it the next form would start as any other program.
"""

import ctypes
import os
import socket
import sys
from typing import Any

from agentrl_envs.gui.inside import form
from agentrl_envs.gui.inside.processes import DesktopProcesses

COMMAND = (*form.INTERPRETER, form.code_of("zygote"))
_FD = 3
_REQUEST_BYTES = 2**16
_ANSWER_S = 10.0
_PR_SET_DUMPABLE = 4


class FormZygote:
    """The first process's end of it."""

    def __init__(self, processes: DesktopProcesses, log: int) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_ANSWER_S)
        with theirs:
            self.pid = processes.start(COMMAND, log=log, lent=theirs.fileno())
        self._socket = ours

    def fork(self, path: str) -> int | None:
        """Start the program of a file and return its pid, as a child of ours; None without it.

        OSError where it does not answer: whether it has forked is not known then.
        """
        try:
            self._socket.send(path.encode())
        except ConnectionError:
            return None
        answer = self._socket.recv(_REQUEST_BYTES)
        if not answer:
            raise ConnectionResetError("the process that forks forms has ended")
        return int(answer)


def main() -> None:
    """Load everything, then fork for every file that is named, until the first process hangs up."""
    control = socket.socket(fileno=_FD)
    set_dumpable(False)
    display = os.environ.pop("DISPLAY")
    gtk = form.load_gtk()
    if len(os.listdir("/proc/self/task")) != 1:
        raise RuntimeError("a process with several threads cannot be forked")
    while path := control.recv(_REQUEST_BYTES):
        # Twice, so that the program is nobody's child but the first process's, which reaps it.
        if (between := os.fork()) == 0:
            if (program := os.fork()) == 0:
                control.close()
                os.setsid()
                set_dumpable(True)
                os.environ["DISPLAY"] = display
                become(path.decode(), gtk)
            control.send(b"%d" % program)
            os._exit(0)
        os.waitpid(between, 0)


def become(path: str, gtk: Any) -> None:
    """Be the program of a file from here on."""
    opened, _ = gtk.init_check(["-c", path])
    # The bindings noted that there was no display when they were loaded.
    sys.modules["gi.overrides.Gtk"].__dict__["initialized"] = opened
    sys.argv = ["-c", path]
    form.main()
    sys.exit()


def set_dumpable(allowed: bool) -> None:
    """Say whether other processes of the user may read and stop this one."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, int(allowed))
