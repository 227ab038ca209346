"""Threads that the user's code has left, for which Python would wait for ever at its end."""

import os
import sys
import threading
import time
from collections import Counter

WAIT_S = 5.0
"""Time that they have to end by themselves."""


def end_soon(error: BaseException | None) -> None:
    """End the process soon where threads keep it, as it ends with `error` or without one."""
    if not _list_strays():
        return
    code = error.code if isinstance(error, SystemExit) else int(error is not None)
    code = code if isinstance(code, int) else int(code is not None)
    threading.Thread(target=_end, args=(code,), name="end of the process", daemon=True).start()


def _end(code: int) -> None:
    time.sleep(WAIT_S)
    if not (strays := _list_strays()):
        return
    from agentrl.cli.console import err, show_text
    from agentrl.runtime.user_code import frame_place

    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage] - what debuggers use
    places = Counter(frame_place(frames.get(t.ident or 0), outermost="threading") for t in strays)
    for place, count in places.items():
        where = f" at {place}," if place else ""
        what = f"a thread{where} was" if count == 1 else f"{count} threads{where} were"
        text = f"{what} left running; end it in the environment's close, or make it a daemon"
        show_text(text, err)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _list_strays() -> list[threading.Thread]:
    ours = (threading.main_thread(), threading.current_thread())
    return [one for one in threading.enumerate() if one not in ours and not one.daemon]
