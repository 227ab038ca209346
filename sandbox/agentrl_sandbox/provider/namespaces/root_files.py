"""Root file systems of base images: an archive or a folder, named by its content and unpacked."""

import hashlib
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from agentrl.errors import SandboxError
from agentrl_sandbox.launch.users import BLOCK

_CHUNK_BYTES = 2**22
_POLL_S = 0.1
_KEPT_BITS = 0o1777
"""Permission bits that stay: no program of a root makes anybody more than he is."""
_HOSTS = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\tcontainer\n"
"""Names of a root file system that has none: an engine writes them into its containers."""
_OPTIONS = ("--numeric-owner", "--exclude=./dev/*", "--exclude=dev/*")


def compute_root_digest(source: str, stop: threading.Event) -> str:
    """Return 32 hex digits of an archive's content, or of what the entries of a folder say.

    Of a folder's files the size and the time of the last change count, not the bytes.
    """
    digest = hashlib.sha256()
    try:
        for piece in _read_archive(source) if os.path.isfile(source) else _read_entries(source):
            if stop.is_set():
                raise InterruptedError(source)
            digest.update(piece)
    except OSError as error:
        raise SandboxError(f"rootfs: {source} cannot be read: {error}") from error
    return digest.hexdigest()[:32]


def _read_archive(source: str) -> Iterator[bytes]:
    with open(source, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def _read_entries(source: str) -> Iterator[bytes]:
    for folder, folders, files in os.walk(source, onerror=_raise):
        folders.sort()
        for name in sorted((*folders, *files)):
            path = os.path.join(folder, name)
            status = os.lstat(path)
            numbers = (status.st_mode, status.st_uid, status.st_gid)
            if not os.path.isdir(path) or os.path.islink(path):
                numbers += (status.st_size, status.st_mtime_ns)
            yield os.fsencode(f"{os.path.relpath(path, source)}\0{numbers}\0")


def _raise(error: OSError) -> None:
    raise error


def unpack_root(source: str, target: Path, first_id: int, stop: threading.Event) -> None:
    """Fill a folder with a root file system, whose users are moved to those of containers.

    Raises `SandboxError` for what tar does not unpack; it is ended where the event is set.
    """
    unpack = ["tar", "-x", "-p", "-C", str(target), *_OPTIONS]
    if os.path.isdir(source):
        pack = ["tar", "-c", "-C", source, *_OPTIONS, "."]
        _run_pipe(source, (pack, [*unpack, "-f", "-"]), stop)
    else:
        _run_pipe(source, ([*unpack, "-f", source],), stop)
    _write_hosts(target)
    _move_owner(str(target), first_id)  # which the archive may have changed
    for folder, folders, files in os.walk(target, onerror=_raise):
        if stop.is_set():
            raise InterruptedError(source)
        for name in (*folders, *files):
            _move_owner(f"{folder}/{name}", first_id)


def _write_hosts(target: Path) -> None:
    path = target / "etc" / "hosts"
    if not path.parent.is_dir() or path.parent.is_symlink() or path.is_symlink():
        return
    if not path.exists() or path.stat().st_size == 0:
        path.write_text(_HOSTS)
        path.chmod(0o644)


def _move_owner(path: str, first_id: int) -> None:
    status = os.lstat(path)
    if first_id <= status.st_uid:  # a second name of a file whose owner was moved
        return
    uid, gid = (first_id + number % BLOCK for number in (status.st_uid, status.st_gid))
    os.chown(path, uid, gid, follow_symlinks=False)
    if not os.path.islink(path):
        os.chmod(path, status.st_mode & _KEPT_BITS)


def _run_pipe(source: str, commands: Sequence[Sequence[str]], stop: threading.Event) -> None:
    """Run programs, each of which reads what the one before it writes."""
    with ExitStack() as stack:
        running: list[subprocess.Popen[bytes]] = []
        for at, command in enumerate(commands):
            is_last = at == len(commands) - 1
            process = subprocess.Popen(
                command,
                stdin=running[-1].stdout if running else subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if is_last else subprocess.PIPE,
                stderr=subprocess.PIPE if is_last else subprocess.DEVNULL,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            if running and running[-1].stdout is not None:
                running[-1].stdout.close()
            running.append(process)
        errors = b""
        while True:
            try:
                errors = running[-1].communicate(timeout=_POLL_S)[1]
                break
            except subprocess.TimeoutExpired:
                if stop.is_set():
                    raise InterruptedError(source) from None
        if any(process.wait() for process in running):
            why = errors.decode(errors="replace")[-500:].strip()
            raise SandboxError(f"rootfs: {source} cannot be unpacked: {why or 'tar failed'}")
