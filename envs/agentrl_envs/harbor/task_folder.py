"""Task folders in Harbor's format, read without running anything.

TASK/
├── task.toml          limits, users, network; see `task_config`
├── instruction.md     what the agent is told
├── environment/       a Dockerfile and its files, unless task.toml names an image
├── tests/test.sh      writes the reward
└── solution/solve.sh  optional: the oracle
"""

import os
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl_envs.harbor.task_config import TaskConfig, parse_task_config
from agentrl_sandbox.provider.content import compute_digest, walk_files

CONFIG = "task.toml"
_ENTRIES = 20_000
"""Files and folders that are looked through for tasks; what a task holds does not count."""
FOLDER_BYTES = 2**32
"""Of all files of a task: they are read for a digest, and `tests/` is put into every container."""
_PARTS = (CONFIG, "instruction.md", "environment", "tests", "solution")
_CANARY = re.compile(r"(?:<!--|#)[^\n]*canary", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborTask:
    """One task folder, whole and supported."""

    name: str
    """`[task].name`, or else the folder's path within the set."""
    folder: Path
    config: TaskConfig
    instruction: str
    digest: str
    """Of the folder's content."""

    @property
    def file(self) -> str:
        """Path of its `task.toml`, for errors."""
        return str(self.folder / CONFIG)

    @property
    def environment(self) -> Path:
        """Folder that its image is built of."""
        return self.folder / "environment"

    @property
    def dockerfile(self) -> Path:
        """File that its image is built by, which an image of a name does without."""
        return self.environment / "Dockerfile"

    @property
    def tests(self) -> Path:
        """Folder of its verifier."""
        return self.folder / "tests"

    @property
    def solution(self) -> Path:
        """Folder of its oracle, which may not be there."""
        return self.folder / "solution"

    @property
    def has_solution(self) -> bool:
        """Whether it has an oracle."""
        return (self.solution / "solve.sh").is_file()

    @property
    def verifier_image(self) -> tuple[str, Path | None]:
        """Image of a verifier of its own that holds `/tests`: a name, or a folder to build.

        Neither where it runs on the task's own image, and is given `tests/`.
        """
        environment = self.config.verifier.environment
        if environment is not None and environment.docker_image:
            return environment.docker_image, None
        return "", self.tests if (self.tests / "Dockerfile").is_file() else None


def find_tasks(path: str | Path) -> tuple[HarborTask, ...]:
    """Return the tasks below a folder, or the one that it is, sorted by name.

    Raises `ConfigError` for a folder without a task, two tasks of one name, and a task that is not
    whole or asks for what is not supported.
    """
    root = Path(path).expanduser()
    with _readable(root):
        if not root.is_dir():
            raise ConfigError(
                f"path is {str(path)!r}, which is no folder; give a folder of Harbor tasks"
            )
        folders = [root] if (root / CONFIG).is_file() else [*_find_folders(root)]
    if not folders:
        raise ConfigError(
            f"{root} holds no Harbor task: there is no {CONFIG} in it or in a folder below it"
        )
    tasks: dict[str, HarborTask] = {}
    for folder in folders:
        task = read_task(folder, name=folder.resolve().name if folder == root else "", root=root)
        if (other := tasks.get(task.name)) is not None:
            raise ConfigError(
                f"{other.file} and {task.file} are both the task {task.name!r}; rename one of them"
            )
        tasks[task.name] = task
    return tuple(tasks[name] for name in sorted(tasks))


def _find_folders(root: Path) -> Iterator[Path]:
    """Yield the folders of tasks below one; a link is followed to a task, and no further."""
    waiting = [root]
    looked = 0
    while waiting:
        folder = waiting.pop()
        with _readable(folder), os.scandir(folder) as entries:
            sorted_entries = sorted(islice(entries, _ENTRIES), key=lambda entry: entry.name)
            looked += len(sorted_entries)
            if looked >= _ENTRIES:
                raise ConfigError(
                    f"{root} has more than {_ENTRIES} files and folders that are no task; give the "
                    "folder that the tasks are in"
                )
            below: list[Path] = []
            for entry in sorted_entries:
                path = Path(entry.path)
                if not entry.is_dir() or entry.name.startswith("."):
                    continue
                if (path / CONFIG).is_file():
                    yield path
                elif not entry.is_symlink():
                    below.append(path)
        waiting += reversed(below)


@contextmanager
def _readable(path: Path) -> Generator[None]:
    """Turn a refusal of the system into a `ConfigError` that names the path."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # `Path.resolve` raises the second for a loop of links
        why = getattr(error, "strerror", None) or error
        where = getattr(error, "filename", None) or path
        raise ConfigError(
            f"{where} cannot be read: {why}; make it readable, or remove it"
        ) from error


def read_task(folder: Path, *, name: str = "", root: Path | None = None) -> HarborTask:
    """Read one task folder; `ConfigError` names the file, the key and the rule."""
    with _readable(folder):
        return _read_task(folder, name=name, root=root)


def _read_task(folder: Path, *, name: str, root: Path | None) -> HarborTask:
    file = folder / CONFIG
    _check_content(folder)
    config = parse_task_config(_read_text(file), str(file))
    check_supported(config, folder)
    instruction = strip_canary(_read_text(folder / "instruction.md"))
    if not instruction.strip():
        raise ConfigError(f"{folder / 'instruction.md'} is empty; it is what the agent is told")
    within = folder.relative_to(root).as_posix() if root is not None and not name else name
    package = config.task.name if config.task is not None else ""
    task = HarborTask(
        name=package or within or folder.name,
        folder=folder,
        config=config,
        instruction=instruction,
        digest=compute_digest(folder),
    )
    _check_files(task)
    return task


def _check_content(folder: Path) -> None:
    """Raise `ConfigError` for a part that leads out of a task's folder, and for too many bytes."""
    root = folder.resolve()
    for part in _PARTS:
        if _leads_out(folder / part, root):
            raise _link_out(folder / part)
    total = 0
    for path in walk_files(folder):
        total += path.lstat().st_size
        if total > FOLDER_BYTES:
            raise ConfigError(
                f"{folder} holds more than {FOLDER_BYTES} bytes, with {path}; let the Dockerfile "
                "get what is large"
            )


def _leads_out(path: Path, root: Path) -> bool:
    try:
        target = path.resolve(strict=True)  # else Python 3.13 takes a loop of links for a file
    except FileNotFoundError:
        target = path.resolve()
    return not target.is_relative_to(root)


def _link_out(path: Path) -> ConfigError:
    return ConfigError(f"{path} leads out of the task; put the file itself there")


def strip_canary(text: str) -> str:
    """Return an instruction without the canary comments at its beginning, as Harbor shows it."""
    lines = text.split("\n")
    at = 0
    while at < len(lines) and _is_canary(lines[at].strip()):
        at += 1
    while at < len(lines) and not lines[at].strip():
        at += 1
    return "\n".join(lines[at:])


def _is_canary(line: str) -> bool:
    return _CANARY.match(line) is not None and (line.startswith("#") or line.endswith("-->"))


def check_supported(config: TaskConfig, folder: Path) -> None:
    """Raise `ConfigError`, with file and key, for what cannot be played as the task says."""
    file = folder / CONFIG
    sections = {"environment": config.environment}
    if config.verifier.environment is not None:
        sections["verifier.environment"] = config.verifier.environment
    for name, section in sections.items():
        refused: Mapping[str, object] = {
            "os": section.os if section.os != "linux" else None,
            "gpus": section.gpus or None,
            "tpu": section.tpu,
            "mcp_servers": section.mcp_servers or None,
        }
        for key, value in refused.items():
            if value is not None:
                raise _refusal(file, f"{name}.{key}", value)
    if config.steps:
        raise _refusal(file, "steps", [step.get("name") for step in config.steps])
    for at, collect in enumerate(config.verifier.collect):
        if collect.service != "main":
            raise _refusal(file, f"verifier.collect[{at}].service", collect.service)
    for at, artifact in enumerate(config.artifacts):
        if artifact.service not in (None, "main"):
            raise _refusal(file, f"artifacts[{at}].service", artifact.service)
        if config.verifier.separate and artifact.exclude:
            raise _refusal(file, f"artifacts[{at}].exclude", list(artifact.exclude))
        is_path = artifact.source.startswith("/") and artifact.source.strip("/")
        if config.verifier.separate and not is_path:
            raise _refusal(file, f"artifacts[{at}].source", artifact.source)
    for part in ("environment", "tests"):
        for compose in _COMPOSE:
            if (folder / part / compose).exists():
                raise ConfigError(
                    f"{folder / part / compose}: tasks of several containers (Docker Compose) are "
                    "not supported; leave this task out"
                )


def _refusal(file: Path, key: str, value: object) -> ConfigError:
    return ConfigError(f"{file}: {key} = {value!r} is not supported; leave this task out")


def _check_files(task: HarborTask) -> None:
    """Raise `ConfigError` for a folder that lacks a file, or leads out of itself."""
    if not task.config.environment.docker_image and not task.dockerfile.is_file():
        raise ConfigError(
            f"{task.dockerfile} is missing, and {task.file} names no environment.docker_image; add "
            "one of them"
        )
    own_image, own_folder = task.verifier_image
    bundled = task.config.verifier.separate and (own_image or own_folder)
    if not bundled and not (task.tests / "test.sh").is_file():
        raise ConfigError(f"{task.tests / 'test.sh'} is missing; it is what writes the reward")
    root = task.folder.resolve()
    for part in (task.environment, task.tests, task.solution):
        for path in walk_files(part) if part.is_dir() else ():
            if path.is_symlink() and _leads_out(path, root):
                raise _link_out(path)
            if path.name == ".harborignore":
                raise ConfigError(f"{path} is not supported; remove what it leaves out")
    if (task.folder / ".harborignore").exists():
        raise ConfigError(
            f"{task.folder / '.harborignore'} is not supported; remove what it leaves out"
        )


def resolve_env(
    variables: Mapping[str, str], passed: Mapping[str, str], where: str
) -> dict[str, str]:
    """Return variables with `${NAME}` and `${NAME:-default}` taken from those that are passed.

    Raises `ConfigError` for one that is neither passed nor has a default.
    """
    resolved: dict[str, str] = {}
    for key, value in variables.items():
        if (match := _VARIABLE.fullmatch(value)) is None:
            resolved[key] = value
        elif match[1] in passed:
            resolved[key] = passed[match[1]]
        elif match[2] is not None:
            resolved[key] = match[2]
        else:
            raise ConfigError(
                f"{where}.{key} asks for the variable {match[1]} of this machine, which the task "
                f"is not given; set it and list it in pass_env: [{match[1]}]"
            )
    return resolved


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"{path} is missing; every Harbor task has one") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
