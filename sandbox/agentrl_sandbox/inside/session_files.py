"""The files of a session, for the host: what the code sees is read and written here."""

from agentrl_sandbox.inside import files
from agentrl_sandbox.inside.commands import Body
from agentrl_sandbox.inside.confine import SessionLimits


def serve_file(limits: SessionLimits, root: str, body: Body, blob: bytes) -> tuple[Body, bytes]:
    """Write or read a file below `root`, or list a page of a directory; return the answer."""
    path, answer, data = body["path"], dict[str, object](), b""
    try:
        if body["op"] == "write":
            files.write(root, path, blob, limit_bytes=limits.file_bytes)
        elif body["op"] == "read":
            data = files.read(root, path, limit_bytes=limits.file_bytes)
        else:
            answer["entries"] = files.list_entries(root, path, after=body["after"])
    except OSError as error:
        kinds = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
        kind = next((k.__name__ for k in kinds if isinstance(error, k)), "OSError")
        answer = {"os_error": kind, "text": str(error)}
    return answer, data


def check_usage(limits: SessionLimits, root: str) -> str | None:
    """Return why a bare directory holds too much, where no file system keeps the limit."""
    try:
        used_bytes = files.count_bytes(root)
    except OSError as error:
        return f"the size of the directory cannot be determined: {error}"
    if used_bytes <= limits.disk_bytes:
        return None
    return f"the directory holds {used_bytes} bytes, which exceeds the limit of {limits.disk_bytes}"
