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
from agentrl.runtime.distribution import install_command
from agentrl_sandbox.launch.container import EngineMachine

_SOCKET = "/var/run/docker.sock"
CALL_S = 60.0
REMOVE_S = 20.0
"""Time for which it may go on failing to remove a container."""
_PAUSE_S = 0.1
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

    def process(self, name: str) -> int:
        """Return the process id, on the engine's machine, of a container's first; 0 when ended."""
        from docker.errors import NotFound

        with _words("look at a container"):
            try:
                return int(self._api.inspect_container(name)["State"]["Pid"])
            except NotFound:  # it has ended, and was removed for it
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

        Its steps have no network unless `network` names one.
        """
        with _words(f"build the image {tag!r}"):
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
                    raise SandboxError(f"the Docker engine could not build {tag!r}: {why.strip()}")
                if line := str(event.get("stream", "")).strip():
                    yield line

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

    def remove_image(self, image: str) -> None:
        """Remove an image and what only it needed."""
        with _words(f"remove the image {image!r}"):
            self._api.remove_image(image, force=True)

    def close(self) -> None:
        """Close the connection."""
        self._api.close()


@contextmanager
def _words(what: str) -> Generator[None]:
    """Turn what the engine or the way to it raises into a `SandboxError`."""
    from docker.errors import DockerException
    from requests import RequestException

    try:
        yield
    except DockerException as error:
        why = getattr(error, "explanation", None) or error
        raise SandboxError(f"the Docker engine could not {what}: {why}") from error
    except RequestException as error:
        raise SandboxError(
            f"the Docker engine did not {what} within {CALL_S:g} s: {error}"
        ) from error
