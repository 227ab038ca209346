"""Declared artefacts: the files of an episode that count, taken as bytes and named by content.

Nothing an agent leaves in its session can make collecting fail: a link, a pipe or a file that is
too large is noted as refused, and whoever grades goes on without it. Only a broken sandbox raises.
"""

import asyncio
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self, cast

from agentrl.errors import ConfigError
from agentrl.runtime.atomic_files import write_text
from agentrl.sandbox import FileEntry, Sandbox

_WILD = frozenset("*?[")
REFUSED_MAX = 64
"""Refused paths that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtefactLimits:
    """Limits of what is taken of one episode."""

    files: int = 64
    file_bytes: int = 2**20
    total_bytes: int = 8 * 2**20
    entries: int = 4096
    """Directory entries looked at for the patterns."""


@dataclass(frozen=True, slots=True)
class ArtefactFile:
    """One file, as bytes."""

    path: str
    data: bytes = field(repr=False)

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of the bytes, in hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtefactSet:
    """Files that an episode left behind, in the order of the paths."""

    files: tuple[ArtefactFile, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    """Declared paths that were not taken, and why."""

    def get(self, path: str) -> bytes | None:
        """Return a file's bytes, or None if it was not taken."""
        return next((file.data for file in self.files if file.path == path), None)

    def manifest(self) -> dict[str, Any]:
        """Return paths, sizes and digests, in JSON's types."""
        files = [
            {"path": file.path, "size_bytes": len(file.data), "sha256": file.sha256}
            for file in self.files
        ]
        return {"files": files, "refused": dict(sorted(self.refused.items()))}

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the manifest: equal for equal artefacts."""
        return hashlib.sha256(self._manifest_text().encode()).hexdigest()

    def store(self, directory: Path) -> Path:
        """Keep them below `directory`, each content once, and return the manifest's path."""
        objects = directory / "objects"
        objects.mkdir(parents=True, exist_ok=True)
        for file in self.files:
            place = objects / file.sha256
            if not place.exists():
                partial = place.with_suffix(f".{id(file)}.partial")
                partial.write_bytes(file.data)
                partial.replace(place)
        manifest = directory / f"{self.digest}.json"
        write_text(manifest, self._manifest_text())
        return manifest

    @classmethod
    def load(cls, manifest: Path) -> Self:
        """Load what `store` kept; raise `ValueError` when an object does not match its name."""
        record = json.loads(manifest.read_text(encoding="utf-8"))
        files = tuple(
            ArtefactFile(
                entry["path"], (manifest.parent / "objects" / entry["sha256"]).read_bytes()
            )
            for entry in record["files"]
        )
        loaded = cls(files=files, refused=record["refused"])
        if loaded.manifest() != record or loaded.digest != manifest.stem:
            raise ValueError(f"{manifest} is damaged: its files do not match their digests")
        return loaded

    def _manifest_text(self) -> str:
        return json.dumps(self.manifest(), indent=1, sort_keys=True) + "\n"


async def collect(
    session: Sandbox, declared: Sequence[str], *, limits: ArtefactLimits | None = None
) -> ArtefactSet:
    """Take the declared files out of a session.

    A declaration is a relative path, or a pattern: `*`, `?` and `[...]` match within one component,
    and a component `**` any number of directories. A path that is not there is left out, links are
    never followed, and what is over a limit is refused.

    Raises `ConfigError` for a declaration that could leave the directory, and `SandboxError` when
    the session is gone.
    """
    taking = _Taking(session, limits or ArtefactLimits())
    for pattern in declared:
        parts = _split_pattern(pattern)
        if not _WILD.isdisjoint(pattern):
            await taking.walk(parts)
        else:
            await taking.take("/".join(parts))
    files = sorted(taking.files.items())
    return ArtefactSet(files=tuple(ArtefactFile(*file) for file in files), refused=taking.refused)


_ENTRIES_AT_ONCE = 1000
"""Entries matched before other tasks of the loop get their turn."""


@dataclass(slots=True)
class _Taking:
    """One collection in the making."""

    session: Sandbox
    limits: ArtefactLimits
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    refused: dict[str, str] = field(default_factory=dict[str, str])
    total_bytes: int = 0
    surplus_bytes: int = 0
    """Of files that were read in vain: they had grown since they were listed."""
    entries: int = 0

    async def walk(self, parts: Sequence[str]) -> None:
        """Take what a pattern matches. Without recursion: whoever made the directories chose how
        deep they are."""
        levels = [await self._steps("", parts)]
        while levels:
            step = next(levels[-1], None)
            if step is None:
                levels.pop()
                continue
            path, size_bytes, rest = step
            if rest:
                levels.append(await self._steps(path, rest))
            elif size_bytes is not None:
                await self.take(path, size_bytes)
            if self.entries % _ENTRIES_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _steps(
        self, directory: str, parts: Sequence[str]
    ) -> Iterator[tuple[str, int | None, list[str]]]:
        """Return the paths in a directory, with the size of a file to take, or the parts of the
        pattern that are left for a directory; neither for what does not match."""
        try:
            entries = await self.session.entries(directory or ".")
        except OSError as error:
            self._refuse(directory or ".", _describe_error(error))
            return iter(())
        return self._match(directory, entries, *parts)

    def _match(
        self, directory: str, entries: Sequence[FileEntry], first: str, *rest: str
    ) -> Iterator[tuple[str, int | None, list[str]]]:
        if first == "**" and rest:
            yield directory, None, [*rest]
        for entry in entries:
            self.entries += 1
            path = f"{directory}/{entry.name}" if directory else entry.name
            if self.entries > self.limits.entries:
                self._refuse(path, f"more than {self.limits.entries} entries to look at")
                return
            is_directory = entry.kind == "directory"
            matches = first == "**" or fnmatchcase(entry.name, first)
            if is_directory:
                below = ["**", *rest] if first == "**" else [*rest]
                yield path, None, below if matches else []
            else:
                yield path, entry.size_bytes if matches and not rest else None, []

    async def take(self, path: str, listed_bytes: int | None = None) -> None:
        """Take one file, or note why not; one that was listed as too large is not read."""
        if path in self.files or path in self.refused:
            return
        limits = self.limits
        if len(self.files) >= limits.files:
            self._refuse(path, f"more than {limits.files} files")
            return
        if not path.isprintable():
            self._refuse(path, "its name is not printable text")
            return
        if listed_bytes is not None and not self._fits(path, listed_bytes):
            return
        if listed_bytes is not None and self.surplus_bytes > limits.total_bytes:
            self._refuse(path, "it may have grown since it was listed, as others did")
            return
        try:
            data = await self.session.read(path)
        except FileNotFoundError:
            return
        except OSError as error:
            self._refuse(path, _describe_error(error))
            return
        if self._fits(path, len(data)):
            self.total_bytes += len(data)
            self.files[path] = data
        elif listed_bytes is not None:
            self.surplus_bytes += len(data)

    def _fits(self, path: str, size_bytes: int) -> bool:
        limits = self.limits
        if size_bytes > limits.file_bytes:
            self._refuse(path, f"{size_bytes} bytes, over {limits.file_bytes} for one file")
        elif self.total_bytes + size_bytes > limits.total_bytes:
            self._refuse(path, f"over {limits.total_bytes} bytes for all files")
        else:
            return True
        return False

    def _refuse(self, path: str, reason: str) -> None:
        if len(self.refused) >= REFUSED_MAX:
            path, reason = "...", f"more than {REFUSED_MAX} were refused"
        self.refused[path if path.isprintable() else ascii(path)] = reason


def _split_pattern(pattern: str) -> list[str]:
    parts = pattern.split("/")
    if pattern.startswith("/") or not pattern or {"", ".", ".."} & set(parts) or "\0" in pattern:
        raise ConfigError(
            f"artefact {pattern!r} is not a path below the session directory; declare a relative "
            "path such as 'solution.py' or 'out/*.json'"
        )
    return parts


def _describe_error(error: OSError) -> str:
    return cast("str", error.strerror) or str(error) or type(error).__name__
