"""Running one cell: compile, execute, echo the last expression, say what went wrong."""

import ast
import errno
import io
import linecache
import os
import resource
import traceback
from types import CodeType, TracebackType
from typing import Any, NamedTuple

from agentrl_sandbox.inside.output import clip

ERROR_BYTES_MAX = 8192
_FRAMES_MAX = 8
_MANY = 8
_FULL = frozenset((errno.EFBIG, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE))


class CellOutcome(NamedTuple):
    """Outcome of a cell, as far as its own interpreter can tell."""

    status: str
    value: str | None = None
    error: str | None = None
    truncated: bool = False


def run(code: str, namespace: dict[str, Any], *, number: int, value_bytes_max: int) -> CellOutcome:
    """Run a cell in `namespace`; whatever it raises, `SystemExit` too, is an outcome."""
    name = f"<cell {number}>"
    lines = list(io.StringIO(f"{code}\n", newline=None))  # which end where Python's own do
    linecache.cache[name] = (len(code), None, lines, name)
    try:
        body, last = _compile(code, name)
        if body is not None:
            exec(body, namespace)
        value = None if last is None else eval(last, namespace)
        text = None if value is None else repr(value)
    except BaseException as error:  # noqa: BLE001 - anything the code raises is its result
        return _failure(error, name)
    if text is None:
        return CellOutcome("ok")
    value_text, truncated = clip(text, value_bytes_max)
    return CellOutcome("ok", value=value_text, truncated=truncated)


def _compile(code: str, name: str) -> tuple[CodeType | None, CodeType | None]:
    """Return the statements, unless there is none, and the expression to echo, if there is one."""
    tree = ast.parse(code, name)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr) or code.rstrip().endswith(";"):
        return compile(tree, name, "exec"), None
    tree.body.pop()
    body = compile(tree, name, "exec") if tree.body else None
    return body, compile(ast.Expression(last.value), name, "eval")


def _failure(error: BaseException, cell: str) -> CellOutcome:
    try:
        text, truncated = clip(_describe(error, cell), ERROR_BYTES_MAX)
        return CellOutcome(_status(error), error=text, truncated=truncated)
    except BaseException as second:  # noqa: BLE001 - an exception whose own text raises
        return CellOutcome(
            "error", error=f"{type(error).__name__} (its text: {type(second).__name__})"
        )


def _describe(error: BaseException, cell: str) -> str:
    """Return the traceback from the cell's own frame on, as Python prints it."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != cell:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace, limit=-_FRAMES_MAX)
    return "".join(lines).strip()


def _status(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "oom"
    number = error.errno if isinstance(error, OSError) else None
    no_thread = isinstance(error, RuntimeError) and "can't start new thread" in str(error)
    no_process = number == errno.EAGAIN and _is_at_process_limit()
    return "limit" if number in _FULL or no_thread or no_process else "error"


def _is_at_process_limit() -> bool:
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if 0 <= limit <= sum(name.isdecimal() for name in os.listdir("/proc")):
        return True
    # Counted from outside: by the keeper where the kernel would count the whole user, by a cgroup.
    return sum(_is_ours(name) for name in os.listdir("/proc")) > _MANY


def _is_ours(name: str) -> bool:
    try:
        return name.isdecimal() and os.getsid(int(name)) == os.getsid(0)
    except ProcessLookupError:
        return False
