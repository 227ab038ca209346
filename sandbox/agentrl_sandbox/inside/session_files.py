"""The files of a keeper's sessions, for the host: what the code sees is read and written here."""

from collections.abc import Callable
from typing import Any

from agentrl_sandbox.inside import files
from agentrl_sandbox.inside.commands import Body, CommandReply
from agentrl_sandbox.inside.interpreter_start import SessionState
from agentrl_sandbox.inside.session_limits import SessionLimits


class SessionFiles:
    """Reads, writes and lists below the directories of sessions."""

    def __init__(self, settings: SessionLimits, *, reply: CommandReply) -> None:
        self._settings = settings
        self._reply = reply

    def write(self, request: int, session: SessionState, body: Body, blob: bytes) -> None:
        """Write a file."""
        self._answer(
            request,
            lambda: files.write(
                session.place.handle, body["path"], blob, limit_bytes=self._settings.file_bytes
            ),
        )

    def read(self, request: int, session: SessionState, body: Body, _: bytes) -> None:
        """Answer with a file."""
        limit_bytes = self._settings.file_bytes
        self._answer(
            request,
            lambda: files.read(session.place.handle, body["path"], limit_bytes=limit_bytes),
        )

    def entries(self, request: int, session: SessionState, body: Body, _: bytes) -> None:
        """Answer with a page of what a directory holds."""
        path, after = body["path"], body["after"]
        self._answer(request, lambda: files.entries(session.place.handle, path, after=after))

    def usage(self, request: int, session: SessionState, _: Body, __: bytes) -> None:
        """Say whether a bare directory holds too much, where no file system keeps the limit."""
        limit_bytes, over = self._settings.disk_bytes, None
        try:
            if (used_bytes := files.count_bytes(session.place.handle)) > limit_bytes:
                over = (
                    f"the directory holds {used_bytes} bytes, which exceeds the limit of "
                    f"{limit_bytes}"
                )
        except OSError as error:
            over = f"the size of the directory cannot be determined: {error}"
        self._reply(request, {"over": over})

    def _answer(self, request: int, work: Callable[[], bytes | list[Any] | None]) -> None:
        try:
            result = work()
        except OSError as error:
            self._reply(request, _os_error(error))
            return
        if isinstance(result, bytes):
            self._reply(request, {}, result)
        else:
            self._reply(request, {"entries": result})


def _os_error(error: OSError) -> Body:
    kinds = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
    kind = next((k.__name__ for k in kinds if isinstance(error, k)), "OSError")
    return {"os_error": kind, "text": str(error)}
