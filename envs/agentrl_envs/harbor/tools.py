"""Tools in a task's container: a shell and files, as the task's user."""

import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentrl.errors import ToolError
from agentrl.sandbox_provider import ContainerOutput, ProviderContainer
from agentrl.tool import tool

_COMMAND_BYTES = 120_000
"""Longest argument of a program; the kernel's limit is 128 KiB."""
_FILE_BYTES = 2**20
_CHUNK_CHARACTERS = 25_000
_FILE_S = 30.0
_WRITE = 'mkdir -p -- "$(dirname -- "$1")" && printf %s "$2" >"$1"'
_APPEND = 'printf %s "$2" >>"$1"'


@dataclass(kw_only=True)
class ContainerTools:
    """The tools of one episode."""

    container: ProviderContainer
    user: str = ""
    workdir: str = ""
    deadline_s: float | None = None
    """End of the agent's time, on the monotonic clock."""
    command_s: float = 60.0
    """Deadline of a command that names none, and the longest that one may name."""
    characters: int = 10_000
    """Length of an answer; head and tail are kept."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def left_s(self) -> float:
        """Time that the agent has left."""
        return float("inf") if self.deadline_s is None else self.deadline_s - time.monotonic()

    @tool
    async def bash(self, command: str, timeout_s: float | None = None) -> str:
        """Run a command with bash and return its output and exit code.

        Every command is a shell of its own, in the same directory; files live on.

        Args:
            command: The command, of one line or several.
            timeout_s: Seconds after which the command is ended.
        """
        if "\0" in command or len(command.encode(errors="replace")) > _COMMAND_BYTES:
            raise ToolError(
                f"the command has {len(command)} characters or a NUL in it; write a script of at "
                f"most {_COMMAND_BYTES} bytes with write_file and run that"
            )
        wanted_s = self.command_s if timeout_s is None else min(max(timeout_s, 0.1), self.command_s)
        allowed_s = min(wanted_s, max(self.left_s, 0.1))
        output = await self._run(["bash", "-c", command], allowed_s)
        text = output.stdout.decode(errors="replace")
        if errors := output.stderr.decode(errors="replace"):
            text = f"{text}{'' if text.endswith(chr(10)) or not text else chr(10)}{errors}"
        text = self._shorten(text.rstrip("\n"), truncated=output.truncated)
        if output.timed_out:
            return f"{text}\n[ended after {allowed_s:g} s]".lstrip("\n")
        return f"{text}\n[exit code {output.exit_code}]".lstrip("\n")

    @tool
    async def read_file(self, path: str) -> str:
        """Return the text of a file.

        Args:
            path: Path of the file, absolute or within the working directory.
        """
        output = await self._run(["cat", "--", _checked(path)], _FILE_S)
        if output.exit_code != 0:
            raise ToolError(_explain(output) or f"{path} cannot be read")
        return self._shorten(output.stdout.decode(errors="replace"), truncated=output.truncated)

    @tool
    async def write_file(self, path: str, content: str) -> str:
        """Write a text file, in place of what is there; folders are made as needed.

        Args:
            path: Path of the file, absolute or within the working directory.
            content: The whole text.
        """
        if "\0" in content or len(content) > _FILE_BYTES:
            raise ToolError(f"a file takes at most {_FILE_BYTES} characters, and no NUL")
        chunks = [
            content[at : at + _CHUNK_CHARACTERS]
            for at in range(0, max(len(content), 1), _CHUNK_CHARACTERS)
        ]
        for at, chunk in enumerate(chunks):
            script = _APPEND if at else _WRITE
            output = await self._run(["bash", "-c", script, "bash", _checked(path), chunk], _FILE_S)
            if output.exit_code != 0:
                raise ToolError(_explain(output) or f"{path} cannot be written")
        return f"wrote {len(content)} characters to {path}"

    async def _run(self, argv: list[str], timeout_s: float) -> ContainerOutput:
        encodable = [word.encode("utf-8", "replace").decode() for word in argv]
        output = await self.container.exec(
            encodable,
            timeout_s=timeout_s,
            cwd=self.workdir,
            env=self.env,
            user=self.user,
        )
        if output.exit_code == 126 and b"OCI runtime exec failed" in output.stdout:
            raise ToolError(f"{shlex.quote(argv[0])} cannot be started in the container")
        return output

    def _shorten(self, text: str, *, truncated: bool) -> str:
        most = self.characters
        if len(text) <= most and not truncated:
            return text
        head = text[: most // 2]
        tail = "" if len(text) <= most else text[-(most - most // 2) :]
        return f"{head}\n[... {len(text) - len(head) - len(tail)} characters left out ...]\n{tail}"


def _checked(path: str) -> str:
    if not path or "\0" in path or len(path) > 4096:
        raise ToolError(f"path {path[:80]!r} is no path")
    return path


def _explain(output: ContainerOutput) -> str:
    if output.timed_out:
        return f"it took longer than {_FILE_S:g} s"
    return output.stderr.decode(errors="replace").strip()[:500]
