"""The Docker engine, by way of its SDK: every call has a deadline, every failure has words.

The SDK is an optional part and is imported when an engine is first asked for.
"""

import os
import socket
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

from agentrl.errors import ConfigError, SandboxError
from agentrl.runtime.extras import install_command
from agentrl_sandbox.launch.container import EngineMachine
from agentrl_sandbox.launch.exec_stream import ExecEnd, ExecReader, ExecRequest

_SOCKET = "/var/run/docker.sock"
CALL_S = 60.0
REMOVE_S = 20.0
"""Time for which it may go on failing to remove a container."""
_PAUSE_S = 0.1
_LOOK_S = 0.5
"""Silence of a command after which the engine is asked whether it has ended."""
_CHUNK_BYTES = 2**16
BUILD_S = 600.0
"""Longest silence of the engine while it builds an image."""
INSTALL_SDK = install_command("docker")
INSTALL_ENGINE = "apt-get install docker.io"
BUILD = "agentrl image build"


@dataclass(frozen=True, slots=True)
class ContainerImage:
    """An image, the setting that names it, and what the command that builds it is told beside."""

    setting: str
    tag: str
    kind: str = ""

    @property
    def build(self) -> str:
        """Return the command that builds it."""
        return f"{' '.join(filter(None, (BUILD, self.kind)))} --tag {self.tag}"


def check_sdk() -> None:
    """Raise `ConfigError` when the SDK is not installed."""
    try:
        # Not the package alone: any folder of that name would do.
        import_module("docker.api")
    except ImportError as error:
        raise ConfigError(
            "containers require the Docker SDK for Python, which is not installed; install it "
            f"({INSTALL_SDK})"
        ) from error


class DockerEngine:
    """A connection to the engine that DOCKER_HOST names, or to the one of this machine."""

    def __init__(self) -> None:
        check_sdk()
        import docker
        from docker.errors import DockerException

        self._responses: list[Any] = []
        self._aborted = False
        where = os.environ.get("DOCKER_HOST") or f"unix://{_SOCKET}"
        try:
            if where.startswith("unix://"):
                # Asked for here, because the SDK leaves a socket open when nobody answers.
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.settimeout(CALL_S)
                    probe.connect(where.removeprefix("unix://"))
            self._api = docker.from_env(timeout=int(CALL_S)).api
        except (DockerException, OSError) as error:
            raise ConfigError(
                f"no Docker engine answers at {where}: {error}; install one ({INSTALL_ENGINE}), "
                "start it (`systemctl start docker`, or `dockerd` without systemd), and run as "
                "root or as a member of the group docker"
            ) from error

    def machine(self) -> EngineMachine:
        """Return the engine's description of its machine."""
        with _words("describe its machine"):
            return EngineMachine.from_info(self._api.info())

    def check_image(self, image: ContainerImage) -> None:
        """Raise `ConfigError` for an image that is missing or cannot be used."""
        if (image_info := self.find_image(image.tag)) is None:
            raise ConfigError(
                f"{image.setting} is {image.tag!r}, but the Docker engine has no such image; "
                f"build it with `{image.build}`"
            )
        if volumes := (image_info.get("Config") or {}).get("Volumes"):
            raise ConfigError(
                f"{image.setting} is {image.tag!r}, whose volumes {sorted(volumes)} would be "
                "writable and shared; use an image without VOLUME"
            )

    def create(self, name: str, body: dict[str, Any]) -> None:
        """Make a container."""
        with _words("make a container"):
            self._api.create_container_from_config(body, name)

    @contextmanager
    def errors_of(self, name: str) -> Generator[Iterator[bytes]]:
        """Yield what a container writes to standard error from now on, until it ends."""
        with _words("attach to a container"):
            stream = self._api.attach(name, stdout=False, stderr=True, stream=True, logs=False)
        try:
            yield stream
        finally:
            with suppress(OSError):  # it has ended
                stream.close()
            # The stream shuts its socket down and leaves it open.
            cast("Any", stream)._response.close()

    def start(self, name: str) -> None:
        """Start a container."""
        with _words("start a container"):
            self._api.start(name)

    def process(self, name: str, *, must_exist: bool = False) -> int:
        """Return the process id, on the engine's machine, of a container's first; 0 when ended.

        One that was removed has ended as well, unless it must exist.
        """
        from docker.errors import NotFound

        with _words("look at a container"):
            try:
                return int(self._api.inspect_container(name)["State"]["Pid"])
            except NotFound:
                if must_exist:
                    raise
                return 0

    def remove(self, name: str) -> None:
        """Kill a container, remove it and wait until it is gone; nothing when there is none.

        A container that ends of itself between the engine's look and its kill makes the engine
        fail (500, "Could not kill running container ... is not running"): it is asked again.
        """
        from docker.errors import APIError, NotFound

        deadline_s = time.monotonic() + REMOVE_S
        with _words(f"remove the container {name}"), suppress(NotFound):
            while True:
                try:
                    self._api.remove_container(name, force=True, v=True)
                except APIError as error:
                    if error.status_code == 409:  # being removed already
                        break
                    if not error.is_server_error() or time.monotonic() > deadline_s:
                        raise
                    time.sleep(_PAUSE_S)
                else:
                    break
            self._api.wait(name, timeout=int(CALL_S), condition="removed")

    def build(
        self,
        directory: str,
        tag: str,
        *,
        arguments: Mapping[str, str] | None = None,
        network: str = "none",
    ) -> Iterator[str]:
        """Yield what the engine says while it builds a directory with a Dockerfile.

        Its steps have no network unless `network` names one. `abort_build` ends it.
        """
        with _words(f"build the image {tag!r}"):
            self._api.hooks["response"] = [self._keep_response]
            try:
                for event in self._api.build(
                    path=directory,
                    tag=tag,
                    rm=True,
                    forcerm=True,
                    decode=True,
                    buildargs=dict(arguments or {}),
                    network_mode=network,
                    timeout=int(BUILD_S),
                ):
                    if (why := event.get("error")) is not None:
                        raise SandboxError(
                            f"the Docker engine could not build {tag!r}: {why.strip()}"
                        )
                    if line := str(event.get("stream", "")).strip():
                        yield line
            finally:
                self._api.hooks["response"] = []
                # An answer that is not read to its end keeps its socket.
                for response in self._responses:
                    response.close()

    def _keep_response(self, response: Any, **_: object) -> None:
        """Keep the answer to a build for `abort_build`, whoever of the two comes first."""
        self._responses.append(response)
        if self._aborted:
            self.abort_build()

    def abort_build(self) -> None:
        """End the build that another thread waits for: without a reader the engine gives it up."""
        self._aborted = True
        for response in self._responses:
            # A connection that is closed, or was given back, is left alone.
            with suppress(OSError, RuntimeError, ValueError):
                response.raw.shutdown()

    def exec(self, name: str, request: ExecRequest, *, deadline_s: float) -> ExecEnd:
        """Run a command in a container, and return how it ended, or that it has not.

        `deadline_s` is on the monotonic clock. A command that is late goes on running, and so does
        what it leaves in the background, which does not keep us waiting.
        """
        with _words("run a command in a container"):
            exec_id = self._api.exec_create(
                name,
                [*request.argv],
                user=request.user,
                environment=dict(request.env),
                workdir=request.cwd or None,
            )["Id"]
            connection = cast("Any", self._api.exec_start(exec_id, socket=True))
            sock: socket.socket = connection._sock
            try:
                reader = ExecReader(max_bytes=request.max_bytes)
                exit_code = self._read_output(exec_id, connection, reader, deadline_s)
            finally:
                # Its buffer belongs to the response, which closes it before the stream below; the
                # stream leaves its socket open.
                connection._response.close()
                connection.close()
                sock.close()
        return ExecEnd(exit_code, bytes(reader.stdout), bytes(reader.stderr), reader.truncated)

    def _read_output(
        self, exec_id: str, connection: Any, reader: ExecReader, deadline_s: float
    ) -> int | None:
        """Read what a command writes until it ends; return its exit code, None when it is late."""
        sock: socket.socket = connection._sock
        sock.setblocking(False)
        # What came with the head of the answer was read along with it.
        buffered = connection._response.raw._fp.fp
        if head := buffered.peek():
            reader.feed(buffered.read1(len(head)))
        look_s = time.monotonic() + _LOOK_S
        while not reader.ended and (now_s := time.monotonic()) < deadline_s:
            # What it left in the background may hold its output open.
            if now_s >= look_s:
                if (code := self._exit_code(exec_id)) is not None:
                    return code
                look_s = now_s + _LOOK_S
            sock.settimeout(max(min(look_s, deadline_s) - now_s, _PAUSE_S / 10))
            with suppress(TimeoutError):
                reader.feed(sock.recv(_CHUNK_BYTES))
        while (code := self._exit_code(exec_id)) is None and time.monotonic() < deadline_s:
            time.sleep(_PAUSE_S / 10)
        return code

    def _exit_code(self, exec_id: str) -> int | None:
        described = self._api.exec_inspect(exec_id)
        return None if described["Running"] else int(described["ExitCode"])

    def put_archive(self, name: str, directory: str, archive: bytes) -> None:
        """Unpack a tar archive into a directory of a container."""
        with _words(f"put files into {directory} of a container"):
            self._api.put_archive(name, directory, archive)

    def get_archive(self, name: str, path: str, *, max_bytes: int) -> bytes:
        """Return a tar archive of a path; `FileNotFoundError`, `OSError` for one too large."""
        from docker.errors import NotFound

        with _words(f"read {path} of a container"):
            try:
                chunks, stat = self._api.get_archive(name, path)
            except NotFound:
                self.process(name, must_exist=True)
                raise FileNotFoundError(path) from None
            archive = bytearray()
            # A file with a hole in it is sent whole: the engine's word saves us from reading it.
            too_large = int(stat.get("size", 0)) > max_bytes
            while not too_large and (chunk := next(chunks, None)) is not None:
                archive += chunk
                too_large = len(archive) > max_bytes
            # An answer that is not read to its end holds the container while it is referred to.
            chunks.close()
            del chunks
        if too_large:
            raise OSError(f"{path} takes more than {max_bytes} bytes as an archive")
        return bytes(archive)

    def kill(self, name: str) -> None:
        """End every process of a container, and wait for it; its files stay."""
        from docker.errors import APIError

        with _words("end a container's processes"):
            try:
                self._api.kill(name)
            except APIError as error:
                if error.status_code != 409:  # it runs no more
                    raise
            self._api.wait(name, timeout=int(CALL_S), condition="not-running")

    def changes(self, name: str) -> list[tuple[str, int]]:
        """Return the paths of a container that differ from its image; 0 modified, 1 new, 2 gone."""
        with _words("compare a container with its image"):
            return [(row["Path"], int(row["Kind"])) for row in self._api.diff(name) or ()]

    def images(self, repository: str) -> list[tuple[str, str]]:
        """Return the names of a repository's images, and when each got its name, oldest first."""
        with _words(f"list the images of {repository!r}"):
            names = {
                name
                for image in self._api.images(name=repository)
                for name in image.get("RepoTags") or ()
            }
        images = ((name, self.find_image(name)) for name in names)
        dated = [
            (name, str((image.get("Metadata") or {}).get("LastTagTime", "")))
            for name, image in images
            if image is not None
        ]
        return sorted(dated, key=lambda row: row[1])

    def find_image(self, image: str) -> Mapping[str, Any] | None:
        """Return the engine's description of an image, None where it has none."""
        from docker.errors import ImageNotFound

        with _words(f"look up the image {image!r}"), suppress(ImageNotFound):
            return self._api.inspect_image(image)
        return None

    def tag(self, image: str, name: str) -> None:
        """Give an image another name, too."""
        repository, _, tag = name.partition(":")
        with _words(f"name the image {image!r} {name!r}"):
            self._api.tag(image, repository, tag or "latest")

    def remove_image(self, image: str, *, force: bool = True) -> None:
        """Remove an image and what only it needed; without `force` not one that is in use."""
        with _words(f"remove the image {image!r}"):
            self._api.remove_image(image, force=force)

    def close(self) -> None:
        """Close the connection."""
        self._api.close()


@contextmanager
def _words(what: str) -> Generator[None]:
    """Turn what the engine or the way to it raises into a `SandboxError`."""
    from docker.errors import DockerException
    from requests import RequestException, Timeout
    from urllib3.exceptions import HTTPError, ReadTimeoutError

    try:
        yield
    except DockerException as error:
        why = getattr(error, "explanation", None) or error
        raise SandboxError(f"the Docker engine could not {what}: {why}") from error
    except (Timeout, ReadTimeoutError) as error:
        raise SandboxError(f"the Docker engine did not {what} in time: {error}") from error
    except (RequestException, HTTPError, ConnectionError) as error:
        raise SandboxError(
            f"the connection to the Docker engine broke, asked to {what}: {error}"
        ) from error
