"""Steps of a task file before an episode and before it is judged: their needs, and doing them."""

import shlex
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from agentrl.errors import EnvError
from agentrl_envs.gui.osworld.gestures import UnreadableScript, gestures, is_script, perform
from agentrl_envs.gui.tasks.browser import BROWSER, CHROMIUM
from agentrl_envs.gui.world import CommandResult, WritableDesktop

HOME = "/home/user"
_RUN_S = 120.0
_UNTIL_TRIES = 100
_OPENED_BY: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(
        (".txt", ".md", ".py", ".sh", ".json", ".log", ".ini", ".cfg", ".yaml", ".yml", ".xml"),
        ("mousepad",),
    ),
    **dict.fromkeys((".xlsx", ".xls", ".csv", ".ods", ".gnumeric"), ("gnumeric",)),
    **dict.fromkeys((".html", ".htm"), BROWSER),
    "": ("thunar",),
}
"""Program that opens a file, by the end of its name; a name without one is a directory."""
_OFFICE = (".doc", ".docx", ".odp", ".ods", ".odt", ".ppt", ".pptx", ".xls", ".xlsx")
"""Files that LibreOffice opens, where this machine has it."""
_WORDS = {
    "sudo": "the rights of root",
    "{CLIENT_PASSWORD}": "the rights of root",
    **dict.fromkeys(("apt ", "apt-get", "dpkg", "snap "), "packages of a machine of its own"),
    **dict.fromkeys(
        ("gsettings", "dconf", "gnome-", "xdg-settings"), "GNOME's settings and programs"
    ),
    **dict.fromkeys(("systemctl", "loginctl", "timedatectl"), "systemd"),
    **dict.fromkeys(("pactl", "pulseaudio", "amixer"), "sound"),
    **dict.fromkeys(("curl ", "wget ", "pip install", "git clone"), "the network"),
    "remote-debugging-port": "Chrome's debugging port",
}
"""Needs that no desktop of ours meets, by the words of commands."""
_APPS = {
    **dict.fromkeys(("libreoffice_calc", "libreoffice_writer", "libreoffice_impress"), "soffice"),
    **{name: name for name in ("gimp", "thunderbird", "vlc")},
    "chrome": "google-chrome",
    **dict.fromkeys(("vscode", "vs_code"), "code"),
}
"""The programs of OSWorld's applications, where they are not part of every desktop."""


def app_needs(apps: Sequence[str]) -> list[str]:
    """Return the programs of a task's applications that this machine has not."""
    missing = [_APPS[app] for app in apps if app in _APPS and not shutil.which(_APPS[app])]
    return [f"the program {name}, which is not on this machine" for name in dict.fromkeys(missing)]


def opener(path: str) -> Sequence[str]:
    """Return the command that opens a file; nothing where there is none."""
    suffix = PurePosixPath(path).suffix.lower()
    if suffix in _OFFICE and shutil.which("soffice"):
        return ("soffice",)
    return _OPENED_BY.get(suffix, ())


def find_cached(cache: Path, task: str, url: str, path: str) -> Path:
    """Return the path where OSWorld keeps a downloaded file of a task."""
    return cache / task / f"{uuid.uuid5(uuid.NAMESPACE_URL, url)}_{PurePosixPath(path).name}"


def step_needs(step: Mapping[str, Any], task: str, cache: Path) -> list[str]:
    """Return the unmet needs of a step; none for one that can be done."""
    kind, parameters = step.get("type"), step.get("parameters", {})
    match kind:
        case "sleep" | "activate_window" | "close_window":
            return []
        case "execute" | "command" | "launch":
            return command_needs(parameters.get("command"), launched=kind == "launch")
        case "open":
            command = opener(str(parameters.get("path", "")))
            if not command:
                return [f"a program that opens {parameters.get('path')}"]
            return _program_needs(CHROMIUM if command == BROWSER else command[0])
        case "download":
            files = parameters.get("files", [])
            paths = [(f["url"], find_cached(cache, task, f["url"], f["path"])) for f in files]
            missing = [url for url, path in paths if not path.exists()]
            return [f"the file {url}, which is not in the cache" for url in missing]
        case "upload_file":
            local = [str(f["local_path"]) for f in parameters.get("files", [])]
            return [f"the file {path}" for path in local if not Path(path).is_file()]
        case _:
            return [f"the step {kind!r}"]


def command_needs(command: object, *, launched: bool = False) -> list[str]:
    """Return the unmet needs of a command."""
    if not isinstance(command, str | list) or not command:
        return [f"a command, not {command!r}"]
    if is_script(command):
        try:
            gestures(command)
        except UnreadableScript as error:
            return [str(error)]
        return []
    words = [str(one) for one in command] if isinstance(command, list) else [command]
    text = f"{' '.join(words)} "
    needs = [need for word, need in _WORDS.items() if word in text]
    if launched:
        needs += _program_needs(shlex.split(words[0])[0])
    return [*dict.fromkeys(needs)]


def _program_needs(program: str) -> list[str]:
    # Commands by a path may be files that a task brings along.
    there = program.startswith(("/home", "./", "~")) or shutil.which(program) is not None
    return [] if there else [f"the program {program}, which is not on this machine"]


class StepRunner:
    """Steps done on a desktop. What commands said is kept by the names a task gives it."""

    def __init__(self, place: WritableDesktop, task: str, cache: Path) -> None:
        self._place = place
        self._task = task
        self._cache = cache
        self.said: dict[str, bytes] = {}

    async def do(self, steps: Sequence[Mapping[str, Any]]) -> None:
        """Do steps in order. `EnvError` for a file or a program that is not there after all."""
        for step in steps:
            parameters = dict(step.get("parameters", {}))
            handler: Callable[..., Any] = getattr(self, f"_{step['type']}")
            await handler(**parameters)

    async def run(self, command: Sequence[str] | str, *, shell: bool) -> CommandResult:
        """Run a command as OSWorld does: by a shell, or split into words."""
        return await self._place.run(words_of(command, shell=shell), limit_s=_RUN_S)

    async def _sleep(self, seconds: float) -> None:
        # Programs are waited for, however long they take.
        await self._place.settle()

    async def _activate_window(self, window_name: str, strict: bool = False, **_: Any) -> None:
        await self._place.window(window_name, "raise", strict=strict)

    async def _close_window(self, window_name: str, strict: bool = False, **_: Any) -> None:
        await self._place.window(window_name, "close", strict=strict)

    async def _execute(
        self,
        command: Sequence[str] | str,
        stdout: str = "",
        stderr: str = "",
        shell: bool = False,
        until: Mapping[str, Any] | None = None,
    ) -> None:
        if is_script(command):
            await perform(gestures(command), self._place)
            return
        ran = await self.run(command, shell=shell)
        for _ in range(_UNTIL_TRIES):
            if not until or _is_as(ran, until):
                break
            await self._place.settle()
            ran = await self.run(command, shell=shell)
        if stdout:
            self.said[stdout] = ran.out.encode()
        if stderr:
            self.said[stderr] = ran.err.encode()
        await self._place.settle()

    _command = _execute

    async def _launch(self, command: Sequence[str] | str, shell: bool = False) -> None:
        await self._place.start(words_of(command, shell=shell), waits=False)

    async def _open(self, path: str) -> None:
        await self._place.start([*opener(path), _expand_home(path)], waits=True)

    async def _download(self, files: Sequence[Mapping[str, str]]) -> None:
        for file in files:
            path = find_cached(self._cache, self._task, file["url"], file["path"])
            await self._upload(path, file["path"])

    async def _upload_file(self, files: Sequence[Mapping[str, str]]) -> None:
        for file in files:
            await self._upload(Path(file["local_path"]), file["path"])

    async def _upload(self, local: Path, path: str) -> None:
        await self._place.put(_expand_home(path), read_cached(local, self._task))


def read_cached(path: Path, task: str) -> bytes:
    """Return a file that a task needs. `EnvError` where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise EnvError(f"the file {path} of task {task!r} cannot be read") from error


def words_of(command: Sequence[str] | str, *, shell: bool) -> list[str]:
    """Return the words of a command as OSWorld's server runs it."""
    if shell:
        line = command if isinstance(command, str) else " ".join(command)
        return ["/bin/sh", "-c", line]
    words = shlex.split(command) if isinstance(command, str) else [*command]
    return [_expand_home(word) if word.startswith("~/") else word for word in words]


def _expand_home(path: str) -> str:
    """Return the whole path of what is named from the home, or with its sign."""
    return str(PurePosixPath(HOME, path.removeprefix("~/").removeprefix("$HOME/")))


def _is_as(ran: CommandResult, until: Mapping[str, Any]) -> bool:
    return (
        ("returncode" in until and ran.code == until["returncode"])
        or ("stdout" in until and until["stdout"] in ran.out)
        or ("stderr" in until and until["stderr"] in ran.err)
    )
