"""A machine with an engine of containers, whoever runs it: what an environment asks of it.

    provider = ...                                     SandboxProvider
    image = await provider.build(folder, timeout_s=600)
    container = await provider.start(ContainerSpec(image=image))
    output = await container.exec(["bash", "-c", "ls"], timeout_s=10)
    await container.stop()

Whatever a *command* does (an exit code, too much time) is a `ContainerOutput`. Whatever the
provider breaks raises `SandboxError`; a setting it cannot keep raises `ConfigError`.
`check_provider` in `agentrl.testing` proves the promises of an implementation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

NetworkAccess = Literal["none", "public"]
"""Network of a container: only its own loopback, or whatever the engine's machine reaches."""
ChangeKind = Literal["modified", "added", "deleted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLimits:
    """Limits of one container, all of its processes together."""

    cpus: float = 2.0
    """Number of cores that it may keep busy."""
    memory_bytes: int = 4 * 2**30
    """Memory; it has no swap beyond."""
    processes: int = 2048
    """Processes and threads that live at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """Image, variables, network and limits of a container to start."""

    image: str
    """Name of an image that the provider has."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables of every command, beside the image's."""
    network: NetworkAccess = "none"
    """Network that it reaches."""
    limits: ContainerLimits = field(default_factory=ContainerLimits)
    """Limits that the provider enforces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerOutput:
    """End of one command."""

    exit_code: int | None
    """Exit code; None where the command was ended at its deadline."""
    stdout: bytes = b""
    """Beginning of the standard output."""
    stderr: bytes = b""
    """Beginning of the standard error."""
    truncated: bool = False
    """Whether more was written than is kept."""

    @property
    def timed_out(self) -> bool:
        """Whether the command was ended at its deadline."""
        return self.exit_code is None


@dataclass(frozen=True, slots=True)
class FileChange:
    """One path that differs from the image."""

    path: str
    """Absolute path. A directory is `modified` when something in it changed, too."""
    kind: ChangeKind
    """Kind of the difference. A file in the place of a directory, or the other way round, is
    `deleted` where the provider can tell."""


@runtime_checkable
class ProviderContainer(Protocol):
    """A running container. Files stay until it is stopped; processes stay until `halt`."""

    started_by: Sequence[str]
    """Absolute paths of the image's programs that run when it is started, and again by `resume`."""

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        user: str = "",
    ) -> ContainerOutput:
        """Run a command and return how it ended.

        A command that misses its deadline is ended with what it started. What it leaves running in
        the background lives on.

        Args:
            argv: Program and arguments; no shell reads them.
            timeout_s: Deadline.
            cwd: Absolute directory; the image's where it is empty.
            env: Variables beside those of the container.
            user: Name or number; the image's where it is empty.

        Returns:
            Exit code and the beginning of the output.

        Raises:
            SandboxError: The container is gone, or the provider does not answer.
        """
        ...

    async def put(self, archive: bytes, directory: str = "/") -> None:
        """Unpack a tar archive into a directory that is there, with the owners and modes it says.

        Args:
            archive: The archive, uncompressed.
            directory: Absolute path.

        Raises:
            SandboxError: There is no such directory, or the container is gone.
        """
        ...

    async def get(self, path: str, *, max_bytes: int) -> bytes:
        """Return a tar archive of a file or a directory, whose first member is itself.

        Args:
            path: Absolute path; a link is returned as a link.
            max_bytes: Largest archive.

        Returns:
            The archive, uncompressed.

        Raises:
            FileNotFoundError: There is nothing at the path.
            OSError: The archive is larger than `max_bytes`.
            SandboxError: The container is gone.
        """
        ...

    async def halt(self) -> None:
        """End every process, at once; files stay, and nothing runs until `resume`.

        Raises:
            SandboxError: The container is gone, or ended before.
        """
        ...

    async def changes(self) -> Sequence[FileChange] | None:
        """Return the paths that differ from the image; None where the provider cannot tell.

        Nothing in the container is asked for it.

        Returns:
            Every path that was added, modified or deleted.

        Raises:
            SandboxError: The container is gone.
        """
        ...

    async def resume(self) -> None:
        """Start a halted container again, on the files it has, as a new one is started.

        Raises:
            SandboxError: The container is gone.
        """
        ...

    async def stop(self) -> None:
        """End and remove it. Idempotent.

        Raises:
            SandboxError: It could not be removed.
        """
        ...


@runtime_checkable
class SandboxProvider(Protocol):
    """Makes images and starts containers of them."""

    async def build(self, directory: str, *, timeout_s: float, network: str = "none") -> str:
        """Return the name of an image made of a directory with a Dockerfile.

        An equal directory is built once: the image is found again by its content. The build ends
        at its deadline, and with a caller that is cancelled.

        Args:
            directory: Folder on this machine.
            timeout_s: Deadline of the build.
            network: Network of its steps, in the provider's words.

        Returns:
            Name of the image.

        Raises:
            SandboxError: The image does not build, or not in time.
        """
        ...

    async def find_image(self, image: str) -> bool:
        """Return whether the provider has an image.

        Args:
            image: Name of the image.

        Returns:
            Whether a container can be started of it.

        Raises:
            SandboxError: The provider does not answer.
        """
        ...

    async def start(self, spec: ContainerSpec) -> ProviderContainer:
        """Start a container in which nothing runs but what keeps it alive.

        Args:
            spec: Image, variables, network and limits.

        Returns:
            The running container.

        Raises:
            ConfigError: A limit or the network cannot be had here.
            SandboxError: It did not start.
        """
        ...

    async def close(self) -> None:
        """Let go of everything. Idempotent; its images stay."""
        ...
