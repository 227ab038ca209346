"""Files of the session as tools: read, write, edit and list. Offer all of them, or only some."""

from agentrl.errors import ToolError
from agentrl.sandbox import Sandbox, sandbox_settings
from agentrl.tool import tool
from agentrl_tools.edit import replace_once
from agentrl_tools.line_numbers import count_lines, number_lines
from agentrl_tools.session_tool import SessionTool, check_text
from agentrl_tools.shell import STATE_FILE

ENTRIES_MAX = 500
DEPTH_MAX = 10
TEXT_BYTES_MAX = 8 * 2**20
_ENDINGS = {"directory": "/", "link": " (link)", "other": " (not a regular file)"}
"""Behind the names of entries; a file has its size there."""


class ReadFile(SessionTool):
    """Reads text files of the session's directory."""

    @tool
    async def read_file(self, path: str, first_line: int = 1, last_line: int | None = None) -> str:
        """Read a text file. Returns its lines with their numbers, which are not part of the file.

        Args:
            path: The file, relative to the top directory.
            first_line: The first line to read, counted from 1.
            last_line: The last line to read; the end of the file without it.
        """
        text = await _read(await self.session(), path)
        count = count_lines(text)
        if not 1 <= first_line <= max(1, count):
            raise ToolError(f"first_line={first_line}, but {path!r} has lines 1 to {count}")
        if last_line is not None and last_line < first_line:
            raise ToolError(f"last_line={last_line} is before first_line={first_line}")
        characters_max = sandbox_settings().limits.output_bytes
        excerpt = number_lines(text, first_line, last_line, characters_max=characters_max)
        return excerpt or "(empty file)"


class WriteFile(SessionTool):
    """Writes text files of the session's directory."""

    @tool
    async def write_file(self, path: str, content: str) -> str:
        """Write a text file, over what was there before. Directories are made where they lack.

        Args:
            path: The file, relative to the top directory.
            content: All of its new text.
        """
        await _write(await self.session(), path, check_text("content", content))
        return f"Wrote {len(content.encode())} bytes to {path!r}."


class EditFile(SessionTool):
    """Edits text files of the session's directory."""

    @tool
    async def edit_file(self, path: str, old_text: str, new_text: str) -> str:
        """Replace a piece of a text file. It must be in the file exactly once.

        Args:
            path: The file, relative to the top directory.
            old_text: The piece, exactly as it is in the file, white space included.
            new_text: What to put in its place.
        """
        session = await self.session()
        text = await _read(session, path)
        changed, line = replace_once(
            text, check_text("old_text", old_text), check_text("new_text", new_text), path=path
        )
        await _write(session, path, changed)
        return f"Edited {path!r} on line {line}."


class ListFiles(SessionTool):
    """Lists the session's directory."""

    @tool
    async def list_files(self, path: str = ".", depth: int = 1) -> str:
        """List a directory: files with their sizes, directories with a slash at the end.

        Args:
            path: The directory, relative to the top directory.
            depth: How many levels to list; 1 is the directory alone.
        """
        if not 1 <= depth <= DEPTH_MAX:
            raise ToolError(f"depth={depth}, but it must be from 1 to {DEPTH_MAX}")
        entries: list[str] = []
        await _list(await self.session(), _check_path(path), depth, "", entries)
        if len(entries) > ENTRIES_MAX:
            way_out = "list a directory below, or fewer levels"
            entries[ENTRIES_MAX:] = [f"(cut after {ENTRIES_MAX} entries; {way_out})"]
        return "\n".join(entries) or "(empty directory)"


class Files(ReadFile, WriteFile, EditFile, ListFiles):
    """All four tools on files."""


async def _read(session: Sandbox, path: str) -> str:
    try:
        data = await session.read(_check_path(path))
    except OSError as error:
        raise _explain_error(path, error) from error
    if len(data) > TEXT_BYTES_MAX:
        raise ToolError(
            f"{path!r} has {len(data)} bytes, but this tool accepts at most {TEXT_BYTES_MAX}; "
            "process it with a program instead"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ToolError(
            f"{path!r} is not UTF-8 text (byte 0x{data[error.start]:02x} at {error.start} of "
            f"{len(data)}); inspect it with a program instead"
        ) from error


async def _write(session: Sandbox, path: str, text: str) -> None:
    try:
        await session.write(_check_path(path), text.encode())
    except OSError as error:
        raise _explain_error(path, error) from error


async def _list(session: Sandbox, path: str, depth: int, above: str, found: list[str]) -> None:
    """Add the entries below a directory until there are too many; files of our own are left out."""
    try:
        entries = await session.entries(path)
    except OSError as error:
        if not above:
            raise _explain_error(path, error) from error
        found.append(f"{above}(cannot be listed)")
        return
    for entry in entries:
        if len(found) > ENTRIES_MAX:
            return
        if entry.name == STATE_FILE and not above:
            continue
        name = above + (entry.name if entry.name.isprintable() else ascii(entry.name))
        found.append(name + _ENDINGS.get(entry.kind, f" ({entry.size_bytes} bytes)"))
        if entry.kind == "directory" and depth > 1:
            await _list(session, f"{path}/{entry.name}", depth - 1, f"{name}/", found)


def _check_path(path: str) -> str:
    if not path:
        raise ToolError("the path is empty; name a file, such as 'notes.txt'")
    if path.startswith("/"):
        raise ToolError(f"{path!r} starts with a slash; give a path relative to the top directory")
    return check_text("path", path)


def _explain_error(path: str, error: OSError) -> ToolError:
    match error:
        case FileNotFoundError():
            return ToolError(f"there is no {path!r}; paths start in the top directory")
        case IsADirectoryError():
            return ToolError(f"{path!r} is a directory; name a file in it")
        case NotADirectoryError():
            return ToolError(f"{path!r} is a file or goes through one; name a directory")
        case _:
            return ToolError(f"{path!r} cannot be used: {error}")
