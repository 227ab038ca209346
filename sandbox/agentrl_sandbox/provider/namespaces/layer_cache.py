"""Images without an engine: layers of files in a folder, bounded, shared by processes.

CACHE/            of root alone
├── lock          held while something below is looked for, added or removed
├── ids           first id of the users of every container
├── images/       one file per image: its layers, and what its containers are started with
├── layers/       files of the layers
└── containers/   what containers changed; also what is being unpacked or removed
"""

import fcntl
import os
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from agentrl.errors import ConfigError, SandboxError
from agentrl.runtime.atomic_files import check_folder, load_json, write_json
from agentrl_sandbox.launch.users import draw_block
from agentrl_sandbox.lease import ResourceLease, new_mark
from agentrl_sandbox.provider.namespaces.root_files import compute_root_digest, unpack_root

BUILT = "agentrl-built"
"""Of the images that are built here; a tag is the digest of a folder and its base."""
_ROOT = "agentrl-rootfs"
LEAST_FREE_BYTES = 2**26
"""A disk with less room takes no container and no image."""
_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class LayeredImage:
    """Layers of an image, the last one first, and what its containers are started with."""

    layers: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    workdir: str = "/"
    user: str = ""


@dataclass(slots=True)
class HeldImage:
    """An image that stays until it is let go of, by whoever holds it or by the end of a process."""

    name: str
    """Name of the image, or of the root file system by its content."""
    image: LayeredImage
    places: tuple[Path, ...]
    """Folders of its layers."""
    _fd: int

    def release(self) -> None:
        """Let go of it. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class LayerCache:
    """Images in a folder. Its methods block."""

    def __init__(self, folder: Path, *, rootfs: Mapping[str, str], images: int) -> None:
        self.folder = folder
        self._rootfs, self._images = dict(rootfs), images
        self._digests: dict[str, str] = {}

    def open(self) -> int:
        """Make the folder; return the first id of the users of its containers, drawn once.

        Raises `ConfigError` for a folder that is not root's, or that cannot be written into.
        """
        if why := check_folder(self.folder):
            raise ConfigError(f"cache: {why}; name another folder")
        try:
            for name in ("images", "layers", "containers"):
                (self.folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self.folder.lstat()
            if status.st_uid != os.geteuid():
                raise ConfigError(
                    f"cache: {self.folder} belongs to user {status.st_uid}, who could change its "
                    "images; name another folder"
                )
            self.folder.chmod(0o700)
            with self._locked(), (self.folder / "ids").open("a+") as file:
                file.seek(0)
                if not (text := file.read()):
                    text = f"{draw_block().start}"
                    file.write(text)
            return int(text)
        except (OSError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"cache: {error}; name another folder, or delete this one") from error

    def check_room(self) -> None:
        """Raise `SandboxError` where the disk has no room for another container."""
        if why := check_folder(self.folder, LEAST_FREE_BYTES):
            raise SandboxError(f"cache: {why}; make room, or name a folder of another disk")

    def hold(self, name: str, stop: threading.Event) -> HeldImage | None:
        """Return an image that stays until it is released; None where there is none.

        The root file system of a base image is unpacked where it is not there yet.
        """
        if (source := self._rootfs.get(name)) is None:
            with self._locked():
                return self._hold(name)
        if source not in self._digests:
            self._digests[source] = compute_root_digest(source, stop)
        record = f"{_ROOT}:{self._digests[source]}"
        first_id = self.open()
        with self._unpacking(stop):
            with self._locked():
                hold = self._hold(record)
            if hold is None:
                self.check_room()
                self._unpack(source, record, first_id, stop)
                with self._locked():
                    hold = self._hold(record)
        return hold

    def find(self, name: str) -> bool:
        """Return whether an image is there; it is used now."""
        with self._locked():
            hold = self._hold(name)
        if hold is not None:
            hold.release()
        return hold is not None

    def _unpack(self, source: str, record: str, first_id: int, stop: threading.Event) -> None:
        with self.new_folder() as folder:
            make_folder(folder / "upper", first_id)
            try:
                unpack_root(source, folder / "upper", first_id, stop)
            except OSError as error:
                raise SandboxError(f"rootfs: {source} cannot be unpacked: {error}") from error
            self.add(record, LayeredImage(layers=()), folder / "upper")

    def add(self, name: str, image: LayeredImage, upper: Path) -> None:
        """Add an image of a layer on top of others; those used longest ago go, beyond the bound.

        One that another process added meanwhile stays in its place.
        """
        layer = os.urandom(16).hex()
        try:
            with self._locked():
                if (hold := self._hold(name)) is not None:
                    return hold.release()
                upper.rename(self.folder / "layers" / layer)
                layers = (layer, *image.layers)
                values = {**asdict(image), "layers": layers}
                write_json(self.folder / "images" / name, values)
                self._evict(name)
                unused = self._find_unused_layers()
                trash = [self._move_away(path) for path in unused]
        except OSError as error:
            raise SandboxError(f"cache: an image cannot be kept: {error}; make room") from error
        for lease in trash:
            lease.clear()

    @contextmanager
    def new_folder(self) -> Generator[Path]:
        """Give a folder that is removed at the end of the block, and with this process."""
        lease = ResourceLease.take("directory", str(self.new_place()))
        folder = Path(lease.name)
        try:
            folder.mkdir(mode=0o700)
            yield folder
        finally:
            lease.clear()

    def new_place(self) -> Path:
        """Return the path of a folder to be made, by whose name its owner is known."""
        return self.folder / "containers" / f"agentrl-{new_mark()}"

    def _hold(self, name: str) -> HeldImage | None:
        """Return an image that no other process removes, while the lock is held."""
        record = self.folder / "images" / name.replace("/", "%2f")
        try:
            fd = os.open(record, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            values = load_json(record, dict, advice="delete it", error=SandboxError)
            image = LayeredImage(
                layers=tuple(values["layers"]),
                env=values["env"],
                workdir=values["workdir"],
                user=values["user"],
            )
            places = tuple(self.folder / "layers" / layer for layer in image.layers)
            if not all(place.is_dir() for place in places):
                os.close(fd)
                return None
            os.utime(record)
        except BaseException:
            os.close(fd)
            raise
        return HeldImage(name, image, places, fd)

    def _evict(self, newest: str) -> None:
        records = [path for path in (self.folder / "images").iterdir() if path.name[0] != "."]
        used_s = {path.name: path.stat().st_mtime for path in records}
        for name in choose_oldest(used_s, self._images, keep=newest):
            path = self.folder / "images" / name
            with path.open() as file, suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # which a container's lock stops
                path.unlink()

    def _find_unused_layers(self) -> list[Path]:
        used: set[str] = set()
        for path in (self.folder / "images").iterdir():
            if path.name[0] != ".":
                record = load_json(path, dict, advice="delete it", error=SandboxError)
                used.update(record["layers"])
        return [path for path in (self.folder / "layers").iterdir() if path.name not in used]

    def _move_away(self, path: Path) -> ResourceLease:
        lease = ResourceLease.take("directory", str(self.new_place()))
        path.rename(lease.name)
        return lease

    @contextmanager
    def _locked(self) -> Generator[None]:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.folder / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _unpacking(self, stop: threading.Event) -> Generator[None]:
        """Let one at a time unpack; whoever waits ends where the event is set."""
        with (self.folder / "unpacking").open("a") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if stop.is_set():
                        raise InterruptedError(str(self.folder)) from None
                    time.sleep(_POLL_S)
            yield


def choose_oldest(used_s: Mapping[str, float], most: int, *, keep: str) -> Sequence[str]:
    """Return the names of images beyond `most`, those used longest ago, but never `keep`."""
    names = sorted((name for name in used_s if name != keep), key=lambda name: used_s[name])
    return names[: max(0, len(names) + 1 - most)]


def make_folder(path: Path, owner: int) -> None:
    """Make a folder of a user of containers."""
    path.mkdir(mode=0o755, parents=True)
    path.chmod(0o755)
    os.chown(path, owner, owner)
