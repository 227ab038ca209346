"""Lines of the user's own code, as errors name them."""

import inspect
import os
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

OURS = ("agentrl", "agentrl_envs", "agentrl_tools", "agentrl_sandbox")


def error_place(error: BaseException) -> str:
    """Find the line of the user's code that raised `error`, or its cause; "" for none."""
    causes = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    for cause in reversed(causes):
        user_frames = [(frame, line) for frame, line in _frames(cause) if _is_users(frame)]
        if user_frames:
            frame, line = user_frames[-1]
            return _place(frame.f_code, line)
    return ""


def frame_place(frame: FrameType | None, *, outermost: str) -> str:
    """Find the innermost line of the user's code on a stack; "" for none.

    What has called the package `outermost` does not count.
    """
    while frame is not None and _package(frame) != outermost:
        if _is_users(frame):
            return _place(frame.f_code, frame.f_lineno)
        frame = frame.f_back
    return ""


def append_place(text: str, error: BaseException) -> str:
    """Add to the text of an error the line of the user's code that it comes from."""
    place = error_place(error)
    return f"{text}; at {place}" if place else text


def method_place(instance: object, name: str) -> str:
    """Find the definition of an object's method; "" for one without Python source."""
    return function_place(getattr(type(instance), name, None) or (lambda: None))


def function_place(function: Callable[..., Any]) -> str:
    """Find the definition of a function; "" for one without Python source."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or code.co_filename.startswith("<"):
        return ""
    return _place(code, code.co_firstlineno)


def _place(code: CodeType, line: int) -> str:
    return f"{os.path.relpath(code.co_filename)}:{line}, in {code.co_name}"


def _frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _is_users(frame: FrameType) -> bool:
    """Whether a frame is neither ours nor a library's."""
    file = Path(frame.f_code.co_filename)
    library = file.is_relative_to(sysconfig.get_path("stdlib")) or {
        "site-packages",
        "dist-packages",
    } & {*file.parts}
    return file.is_file() and not library and _package(frame) not in OURS


def _package(frame: FrameType) -> str:
    name: Any = frame.f_globals.get("__name__", "")
    return str(name).partition(".")[0]
