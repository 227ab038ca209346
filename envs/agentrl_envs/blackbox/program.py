"""The ways to run a program for one episode: a function of this process, or a command."""

import inspect
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agentrl.errors import ConfigError, EnvError
from agentrl.gateway.server import MODEL, GatewayAddress
from agentrl.runtime.threads import convert_exit, run_in_thread, run_user_code
from agentrl.task import Task
from agentrl_envs.blackbox.policy_errors import ProgramEnded, name_end
from agentrl_sandbox.host_process import HostProcess
from agentrl_sandbox.lease import ResourceLease, new_mark


@dataclass(frozen=True, slots=True)
class ProgramEndpoint:
    """The address of one episode; good until the episode ends."""

    openai_url: str
    """`base_url` of OpenAI's clients: chat completions and responses."""
    anthropic_url: str
    """`base_url` of Anthropic's clients: messages."""
    key: str
    """API key, where a client insists on one."""
    model: str = MODEL

    @classmethod
    def from_address(cls, place: GatewayAddress) -> "ProgramEndpoint":
        """Return the endpoint of a place at the gateway."""
        return cls(openai_url=f"{place.url}/v1", anthropic_url=place.url, key=place.key)

    @property
    def environ(self) -> Mapping[str, str]:
        """Return the variables from which the official clients take their defaults."""
        return {
            "OPENAI_BASE_URL": self.openai_url,
            "OPENAI_API_KEY": self.key,
            "ANTHROPIC_BASE_URL": self.anthropic_url,
            "ANTHROPIC_API_KEY": self.key,
            "AGENTRL_MODEL": self.model,
        }


TASK_FILE = "task.json"
RESULT_BYTES = 2**20
"""Bytes of a command's output that are its result; the rest is read and dropped."""

_TOLD_CHARS = 2000
"""Characters at the end of a command's stderr that are in its error."""


class AgentProgram(Protocol):
    """Something that works on a task with the policy's help."""

    async def run(self, task: Task, endpoint: ProgramEndpoint) -> Any:
        """Return the program's result. Cancelled, it ends with all it started."""
        ...


@dataclass(frozen=True, slots=True)
class FunctionProgram:
    """`agent(task, endpoint)`: a coroutine, or a plain function that runs in a thread.

    A thread cannot be ended from outside: it ends with its next request, which is refused when the
    episode is over.
    """

    agent: Callable[[Task, ProgramEndpoint], Any]

    async def run(self, task: Task, endpoint: ProgramEndpoint) -> Any:
        if inspect.iscoroutinefunction(self.agent):
            return await convert_exit(self.agent(task, endpoint))
        result = await run_user_code(self.agent, task, endpoint)
        return await convert_exit(result) if inspect.isawaitable(result) else result


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandProgram:
    """A program in any language, in a process and an empty folder of its own; stdout is the result.

    It finds its task in `task.json` and wherever its words say `{prompt}`, `{task_id}` or `{seed}`;
    never the answer. `{here}` is the folder in which agentrl was started. It sees the endpoint's
    variables, those named in `pass_env`, `PATH`, and a `HOME` that is its folder.
    """

    words: tuple[str, ...]
    pass_env: tuple[str, ...] = ()

    async def run(self, task: Task, endpoint: ProgramEndpoint) -> str:
        """Return the program's output; `EnvError` when it ends with another code than 0."""
        folder = Path(tempfile.gettempdir(), f"agentrl-program-{new_mark()}")
        lease = ResourceLease.take("directory", str(folder))
        try:
            _make_folder(folder, task)
            process = await HostProcess.start(
                fill_words(self.words, task), env=self._build_env(folder, endpoint), cwd=folder
            )
            try:
                written = await process.output(RESULT_BYTES)
                if not await process.wait_end(_END_S):
                    raise EnvError(
                        f"{self.words[0]} closed its output but was still running after {_END_S:g} "
                        "s"
                    )
            finally:
                await process.close(grace_s=0)
            if process.returncode != 0:
                tail = process.last_words[-_TOLD_CHARS:] or "it wrote nothing to stderr"
                raise ProgramEnded(
                    f"{self.words[0]} ended with exit code {process.returncode}: {tail}",
                    lines=name_end(process.returncode or 0, process.last_words),
                )
            return written.decode(errors="replace")
        finally:
            await run_in_thread(lease.clear)

    def _build_env(self, folder: Path, endpoint: ProgramEndpoint) -> dict[str, str]:
        if missing := [name for name in self.pass_env if name not in os.environ]:
            raise ConfigError(
                f"the variable {missing[0]} is to be passed to {self.words[0]} but is not set; set "
                "it, or remove it from pass_env"
            )
        passed = {name: os.environ[name] for name in self.pass_env}
        home = {"HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8"}
        return {"PATH": os.environ.get("PATH", os.defpath), **home, **passed, **endpoint.environ}


_END_S = 5.0


def fill_words(words: Sequence[str], task: Task) -> list[str]:
    """Return a command's words with the task's own, and our folder, in the place of their names."""
    values = {"prompt": task.messages[-1].text, "task_id": task.id, "seed": str(task.seed)}
    return [_fill_word(word, {**values, "here": str(Path.cwd())}) for word in words]


def fill_folder(word: str) -> str:
    """Return a command's word with the folder in which agentrl was started."""
    return _fill_word(word, {"here": str(Path.cwd())})


def _fill_word(word: str, own: Mapping[str, str]) -> str:
    # In one pass: what a prompt says in braces is its own.
    head, brace, tail = word.partition("{")
    if not brace:
        return word
    name, closed, rest = tail.partition("}")
    if not closed or name not in own:
        return f"{head}{{{_fill_word(tail, own)}"
    return head + own[name] + _fill_word(rest, own)


def _make_folder(folder: Path, task: Task) -> None:
    """Make a program's folder with its task; `EnvError` where there is no room for it."""
    messages = [{"role": one.role, "content": one.text} for one in task.messages]
    fields = {"id": task.id, "split": task.split, "seed": task.seed, "messages": messages}
    try:
        folder.mkdir(0o700)
        (folder / TASK_FILE).write_text(json.dumps(fields, ensure_ascii=False))
    except OSError as error:
        raise EnvError(
            f"the program's folder {folder} cannot be made: {error.strerror}; make room there, or "
            "set TMPDIR to a folder that has some"
        ) from error
