"""Sources of a checker's values: files, commands and lists of the desktop, and the task."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.runtime.threads import run_in_thread
from agentrl_envs.gui.osworld.steps import StepRunner, command_needs, read_cached
from agentrl_envs.gui.osworld.tables import NoWorkbook, format_value, workbook
from agentrl_envs.gui.world import WritableDesktop


def result_needs(config: Mapping[str, Any], task: str, cache: Path, said: set[str]) -> list[str]:
    """Return the unmet needs of a value; `said` names the files that commands leave behind."""
    match config.get("type"):
        case "vm_command_line" | "vm_command_error":
            return command_needs(config.get("command"))
        case "vm_file":
            return ["the time of day"] if config.get("time_suffix") else []
        case "cloud_file":
            missing = [path for path in list_cached(config, task, cache) if not path.exists()]
            return [f"the file {path.name} in {path.parent}" for path in missing]
        case "cache_file":
            there = config["path"] in said or (cache / task / config["path"]).exists()
            return [] if there else [f"the file {config['path']}, which is not in the cache"]
        case "content_from_vm_file":
            content = (config.get("file_type"), config.get("file_content"))
            return [] if content == ("xlsx", "last_row") else [f"the content {content}"]
        case "rule" | "list_directory" | "vm_screen_size":
            return []
        case kind:
            return [f"the value {kind!r}"]


def list_cached(config: Mapping[str, Any], task: str, cache: Path) -> list[Path]:
    """Return the paths where OSWorld keeps the files of the task that a value names."""
    names = config["dest"] if config.get("multi") else [config["dest"]]
    return [cache / task / name for name in names]


class CheckerValues:
    """The values of one task at its end. `EnvError` for what the desktop cannot tell."""

    def __init__(self, place: WritableDesktop, doing: StepRunner, task: str, cache: Path) -> None:
        self._place = place
        self._doing = doing
        self._task = task
        self._cache = cache

    async def read(self, config: Mapping[str, Any]) -> Any:
        """Return a value; a file is its bytes, None where there is none."""
        match config["type"]:
            case "rule":
                return config["rules"]
            case "vm_command_line" | "vm_command_error" as kind:
                shell = bool(config.get("shell", False))
                ran = await self._doing.run(config["command"], shell=shell)
                return ran.out if kind == "vm_command_line" else ran.err
            case "vm_file":
                paths = config["path"] if config.get("multi") else [config["path"]]
                return _select_files(config, [await self._read(path) for path in paths])
            case "cloud_file":
                paths = list_cached(config, self._task, self._cache)
                return _select_files(config, [read_cached(path, self._task) for path in paths])
            case "cache_file":
                if (output := self._doing.said.get(config["path"])) is not None:
                    return output
                return read_cached(self._cache / self._task / config["path"], self._task)
            case "list_directory":
                return _tree(config["path"], await self._place.files(config["path"]))
            case "content_from_vm_file":
                return await run_in_thread(_last_row, await self._read(config["path"]))
            case _:
                width, height = await self._place.size()
                return {"width": width, "height": height}

    async def _read(self, path: str) -> bytes | None:
        return await self._place.read(path.removeprefix("~/").removeprefix("$HOME/"))


def _select_files(config: Mapping[str, Any], files: Sequence[bytes | None]) -> Any:
    contents = [files[at] for at in sorted({*config.get("gives", [0])})]
    return contents[0] if len(contents) == 1 else contents


def _tree(path: str, files: Mapping[str, str]) -> dict[str, Any]:
    """Return a directory as OSWorld lists it: names, and what is in directories."""
    root: dict[str, Any] = _folder(path.rstrip("/").rpartition("/")[2])
    folders = {"": root}
    for name, kind in sorted(files.items()):
        parent, _, last = name.rpartition("/")
        entry = _folder(last) if kind == "folder" else {"type": "file", "name": last}
        if kind == "folder":
            folders[name] = entry
        if parent in folders:
            folders[parent]["children"].append(entry)
    return root


def _folder(name: str) -> dict[str, Any]:
    return {"type": "directory", "name": name, "children": []}


def _last_row(data: bytes | None) -> list[str] | None:
    try:
        sheet = workbook(data or b"")[0]
    except (NoWorkbook, IndexError):
        return None
    last = max((row for row, _ in sheet.cells), default=0)
    return ["nan" if value is None else format_value(value) for value in sheet.row(last)]
