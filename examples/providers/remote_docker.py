"""A sandbox provider over the command `docker`: containers of an engine on another machine.

    env: {id: "harbor:TASKS", kwargs: {provider: "remote_docker:RemoteDocker",
          provider_kwargs: {host: "ssh://me@machine"}}}

It keeps the contract of `agentrl.sandbox_provider`; `agentrl.testing.check_provider` proves that.
What a killed run leaves on that machine has the label `agentrl.remote`.
"""

import asyncio
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress

from agentrl.errors import SandboxError
from agentrl.sandbox_provider import ChangeKind, ContainerOutput, ContainerSpec, FileChange
from agentrl_sandbox.provider.content import compute_digest

CALL_S, KEPT_BYTES = 120.0, 2**20
KINDS: Mapping[str, ChangeKind] = {"A ": "added", "C ": "modified", "D ": "deleted"}
KEEP_ALIVE = ("sh", "-c", "trap '' INT; while :; do command eval 'sleep 3600 & wait $!'; done")
# Output goes to files: what a command leaves running would hold a pipe of ours open.
RUN = f"""
exec 3>&1 4>&2; out=$(mktemp) err=$(mktemp)
exec >"$out" 2>"$err" </dev/null; "$@" 3>&- 4>&-; code=$?
head -c {KEPT_BYTES + 1} "$out" >&3; head -c {KEPT_BYTES + 1} "$err" >&4
exec 3>&- 4>&-; rm -f "$out" "$err"; exit "$code"
"""
# Ends the processes whose environment has a variable.
KILL = """
for entry in /proc/[0-9]*; do
    while IFS= read -r -d '' variable; do
        [ "$variable" = "$1" ] && kill -KILL "${entry#/proc/}"
    done <"$entry/environ"
done 2>/dev/null
"""


class RemoteContainer:
    """A container of another machine's engine."""

    def __init__(self, provider: "RemoteDocker", name: str, started_by: Sequence[str]) -> None:
        self._provider, self._name, self._stopped = provider, name, False
        self.started_by = started_by

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        user: str = "",
    ) -> ContainerOutput:
        """Run a command; see `ProviderContainer`."""
        mark = f"AGENTRL_EXEC={secrets.token_hex(8)}"
        variables = [mark, *(f"{name}={value}" for name, value in (env or {}).items())]
        options = [word for one in variables for word in ("-e", one)]
        options += ["-u", user] if user else []
        options += ["-w", cwd] if cwd else []
        words = ("exec", *options, self._alive, "bash", "-c", RUN, "bash", *argv)
        try:
            code, out, err = await self._provider.run(*words, timeout_s=timeout_s)
        except TimeoutError:
            with suppress(SandboxError, TimeoutError):
                kill = ("exec", "-u", "0", self._name, "bash", "-c", KILL, "bash", mark)
                await self._provider.run(*kill)
            return ContainerOutput(exit_code=None)
        if code and not await self._is_running():
            raise SandboxError(f"{self._name} does not run: {err.decode(errors='replace')}")
        return ContainerOutput(
            exit_code=code,
            stdout=out[:KEPT_BYTES],
            stderr=err[:KEPT_BYTES],
            truncated=max(len(out), len(err)) > KEPT_BYTES,
        )

    async def put(self, archive: bytes, directory: str = "/") -> None:
        """Unpack a tar archive; see `ProviderContainer`."""
        await self._provider.ask("cp", "-", f"{self._alive}:{directory}", stdin=archive)

    async def get(self, path: str, *, max_bytes: int) -> bytes:
        """Return a tar archive; see `ProviderContainer`."""
        words = ("cp", f"{self._alive}:{path}", "-")
        code, archive, error = await self._provider.run(*words, max_bytes=max_bytes)
        if len(archive) > max_bytes:
            raise OSError(f"{path} takes more than {max_bytes} bytes as an archive")
        if code and b"Could not find the file" in error:
            raise FileNotFoundError(path)
        if code:
            raise SandboxError(f"{path} of {self._name}: {error.decode(errors='replace')}")
        return archive

    async def halt(self) -> None:
        """End every process; see `ProviderContainer`."""
        await self._provider.run("kill", self._alive)
        await self._provider.ask("wait", self._name)

    async def changes(self) -> Sequence[FileChange]:
        """Return the paths that differ from the image; see `ProviderContainer`."""
        rows = (await self._provider.ask("diff", self._alive)).decode(errors="replace").split("\n")
        return [FileChange(row[2:], KINDS[row[:2]]) for row in rows if row[:2] in KINDS]

    async def resume(self) -> None:
        """Start it again; see `ProviderContainer`."""
        await self._provider.ask("start", self._alive)

    async def stop(self) -> None:
        """Remove it; see `ProviderContainer`."""
        if not self._stopped:
            await self._provider.ask("rm", "-f", "-v", self._name)
            self._stopped = True

    async def _is_running(self) -> bool:
        words = ("inspect", "-f", "{{.State.Running}}", self._name)
        return (await self._provider.run(*words))[1] == b"true\n"

    @property
    def _alive(self) -> str:
        if self._stopped:
            raise SandboxError(f"the container {self._name} was stopped")
        return self._name


class RemoteDocker:
    """Containers of the engine at `host`: `ssh://user@machine`, `tcp://...` or `unix://...`."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._containers: list[RemoteContainer] = []

    async def build(self, directory: str, *, timeout_s: float, network: str = "none") -> str:
        """Return the name of an image made of a folder; see `SandboxProvider`."""
        image = f"agentrl-remote:{compute_digest(directory)[:32]}"
        if not await self.find_image(image):
            try:
                words = ("build", "-q", "--force-rm", "--network", network, "-t", image, directory)
                await self.ask(*words, timeout_s=timeout_s)
            except TimeoutError as error:
                raise SandboxError(f"{directory} did not build in {timeout_s:g} s") from error
        return image

    async def find_image(self, image: str) -> bool:
        """Return whether the engine has an image."""
        return bool(await self.ask("images", "-q", image))

    async def start(self, spec: ContainerSpec) -> RemoteContainer:
        """Start a container; see `SandboxProvider`."""
        limits, name = spec.limits, f"agentrl-{secrets.token_hex(8)}"
        container = RemoteContainer(self, name, await self._find_entry(spec.image))
        variables = (word for one in spec.env.items() for word in ("-e", "=".join(one)))
        words = (
            *("run", "-d", "--name", name, "--label", "agentrl.remote", *variables),
            *("--network", "none" if spec.network == "none" else "bridge"),
            *("--cpus", str(limits.cpus), "--pids-limit", str(limits.processes)),
            *("--memory", str(limits.memory_bytes), "--memory-swap", str(limits.memory_bytes)),
            *("--no-healthcheck", "--log-driver", "none", spec.image, *KEEP_ALIVE),
        )
        try:
            await self.ask(*words)
        except BaseException:
            await self.run("rm", "-f", name)  # made, and not started
            raise
        self._containers.append(container)
        return container

    async def close(self) -> None:
        """Remove the containers that nobody stopped."""
        containers, self._containers = self._containers, []
        for container in containers:
            await container.stop()

    async def ask(self, *words: str, stdin: bytes = b"", timeout_s: float = CALL_S) -> bytes:
        """Return what the engine answers; `SandboxError` where it refuses."""
        code, out, err = await self.run(*words, stdin=stdin, timeout_s=timeout_s)
        if code:
            raise SandboxError(f"docker {words[0]} at {self._host}: {err.decode(errors='replace')}")
        return out

    async def run(
        self,
        *words: str,
        stdin: bytes = b"",
        timeout_s: float = CALL_S,
        max_bytes: int = 2**30,
    ) -> tuple[int, bytes, bytes]:
        """Return the exit code and output of the command, ended at `max_bytes` of it."""
        pipe = asyncio.subprocess.PIPE
        env = {**os.environ, "DOCKER_BUILDKIT": "0"}
        argv = ("docker", "-H", self._host, *words)
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=pipe, stdout=pipe, stderr=pipe, env=env
        )
        try:
            async with asyncio.timeout(timeout_s):
                return await _finish(process, stdin, max_bytes)
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()

    async def _find_entry(self, image: str) -> Sequence[str]:
        format_ = "{{range .Config.Entrypoint}}{{println .}}{{end}}"
        words = (await self.ask("image", "inspect", "-f", format_, image)).decode().split("\n")
        return [word for word in words if word.startswith("/")]


async def _finish(
    process: asyncio.subprocess.Process, stdin: bytes, max_bytes: int
) -> tuple[int, bytes, bytes]:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    errors = asyncio.ensure_future(process.stderr.read())
    try:
        with suppress(ConnectionError):  # it ended without reading it
            process.stdin.write(stdin)
            await process.stdin.drain()
        process.stdin.close()
        out = bytearray()
        while len(out) <= max_bytes and (chunk := await process.stdout.read(2**16)):
            out += chunk
        if len(out) > max_bytes:
            process.kill()
        return await process.wait(), bytes(out), await errors
    finally:
        errors.cancel()
