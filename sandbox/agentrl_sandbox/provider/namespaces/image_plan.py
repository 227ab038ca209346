"""Plan of an image: what each instruction of a Dockerfile does, decided before anything runs."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from agentrl.errors import ConfigError
from agentrl_sandbox.provider.namespaces.dockerfile import (
    DockerInstruction,
    parse_dockerfile,
    parse_exec_form,
)
from agentrl_sandbox.provider.namespaces.dockerfile_words import expand_word, parse_pairs

_OCTAL = re.compile(r"0*[0-7]{3,4}")
_ARCHIVE = re.compile(r"\.(tar|tgz|tbz2?|txz|tar\.\w+)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStep:
    """A command in the container of a build."""

    place: str
    """File and line, for errors."""
    argv: tuple[str, ...]
    cwd: str
    user: str
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyStep:
    """Files of the folder, put into the container of a build."""

    place: str
    sources: tuple[Path, ...]
    target: str
    """Absolute path."""
    into_folder: bool
    """Whether the target is a folder by how it is written."""
    owner: str
    mode: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePlan:
    """Steps of a build, and what containers of its image are started with."""

    base: str
    """Name of the image that it starts from."""
    steps: tuple[RunStep | CopyStep, ...]
    env: Mapping[str, str]
    workdir: str
    user: str


def plan_image(directory: Path, bases: Collection[str]) -> ImagePlan:
    """Return the plan by which the image of a folder is built, of one of these base images.

    Raises `ConfigError` with file and line for what is not played, and for a file that is not
    there.
    """
    file = directory / "Dockerfile"
    if (directory / ".dockerignore").exists():
        raise ConfigError(
            f"{directory / '.dockerignore'} is not read without an engine; remove it and what it "
            "leaves out, or use provider: docker"
        )
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    planner = _Planner(directory, bases)
    for instruction in parse_dockerfile(text, str(file)):
        place = f"{file}:{instruction.line}"
        try:
            planner.add(instruction, place)
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(f"{place}: {error}; change it, or use provider: docker") from error
    return planner.plan


@dataclass(slots=True)
class _Planner:
    """State of a plan: what the instructions so far say of the next."""

    directory: Path
    bases: Collection[str]
    base: str = ""
    before_from: dict[str, str] = field(default_factory=dict[str, str])
    arguments: dict[str, str] = field(default_factory=dict[str, str])
    env: dict[str, str] = field(default_factory=dict[str, str])
    workdir: str = "/"
    user: str = ""
    steps: list[RunStep | CopyStep] = field(default_factory=list[RunStep | CopyStep])

    @property
    def plan(self) -> ImagePlan:
        return ImagePlan(
            base=self.base,
            steps=tuple(self.steps),
            env=self.env,
            workdir=self.workdir,
            user=self.user,
        )

    def add(self, instruction: DockerInstruction, place: str) -> None:
        """Plan an instruction; `ValueError` says what of it is not played."""
        text, variables = instruction.text, {**self.arguments, **self.env}
        match instruction.keyword:
            case "FROM":
                self._set_base(expand_word(text, self.before_from), place)
            case "ARG":
                self._add_arguments(text, variables)
            case "ENV":
                pairs = parse_pairs(text, variables, needs_value=True)
                self.env |= {name: value or "" for name, value in pairs.items()}
            case "USER":
                self.user = expand_word(text, variables)
            case "WORKDIR":
                self.workdir = str(PurePosixPath(self.workdir, expand_word(text, variables)))
                make_folder = ("mkdir", "-p", "--", self.workdir)
                self.steps.append(
                    RunStep(place=place, argv=make_folder, cwd="/", user="0", env=variables)
                )
            case "RUN":
                self.steps.append(
                    RunStep(
                        place=place,
                        argv=parse_exec_form(text) or ("/bin/sh", "-c", text),
                        cwd=self.workdir,
                        user=self.user,
                        env=variables,
                    )
                )
            case "COPY" | "ADD":
                self.steps.append(self._plan_copy(instruction, variables, place))

    def _set_base(self, name: str, place: str) -> None:
        if name not in self.bases:
            raise ConfigError(
                f"{place}: FROM {name} is none of the base images of rootfs, which are "
                f"{', '.join(self.bases) or 'none'}; add it there (docs/harbor.md), or use "
                "provider: docker"
            )
        self.base = name

    def _add_arguments(self, text: str, variables: Mapping[str, str]) -> None:
        target = self.arguments if self.base else self.before_from
        scope = variables if self.base else self.before_from
        for name, value in parse_pairs(text, scope, needs_value=False).items():
            default = self.before_from.get(name) if value is None else value
            if default is not None:
                target[name] = default

    def _plan_copy(
        self, instruction: DockerInstruction, variables: Mapping[str, str], place: str
    ) -> CopyStep:
        listed = parse_exec_form(instruction.text) or instruction.text.split()
        *names, target = [expand_word(word, variables) for word in listed]
        if not names:
            raise ValueError(f"{instruction.keyword} needs a source and a target")
        sources = [path for name in names for path in self._find_sources(instruction, name)]
        flags = {key: expand_word(flag, variables) for key, flag in instruction.flags.items()}
        mode = flags.get("chmod", "")
        if mode and _OCTAL.fullmatch(mode) is None:
            raise ValueError(f"--chmod={mode} is no number such as 755")
        return CopyStep(
            place=place,
            sources=tuple(sources),
            target=str(PurePosixPath(self.workdir, target)),
            into_folder=target.endswith("/") or target in (".", "..") or len(sources) > 1,
            owner=flags.get("chown", ""),
            mode=int(mode, 8) if mode else None,
        )

    def _find_sources(self, instruction: DockerInstruction, name: str) -> Iterator[Path]:
        if instruction.keyword == "ADD" and ("://" in name or _ARCHIVE.search(name)):
            raise ValueError(f"ADD of {name!r} is not played without an engine: COPY and RUN tar")
        relative, root = name.lstrip("/") or ".", self.directory.resolve()
        has_pattern = any(mark in relative for mark in "*?[")
        if "**" in relative:
            raise ValueError(f"the pattern {name!r} is not played without an engine")
        paths = (
            sorted(self.directory.glob(relative)) if has_pattern else [self.directory / relative]
        )
        if not paths or not all(
            path.exists() and path.resolve().is_relative_to(root) for path in paths
        ):
            raise ValueError(f"{name!r} is not in {self.directory}")
        yield from paths
