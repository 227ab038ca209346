"""`check_provider`: a sandbox provider's promises, proven on yours."""

import contextlib
import io
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.errors import SandboxError
from agentrl.sandbox_provider import (
    ContainerLimits,
    ContainerOutput,
    ContainerSpec,
    ProviderContainer,
    SandboxProvider,
)
from agentrl.testing.leaks import ProcessHoldings, check_no_leak
from agentrl.testing.promises import PromiseCheck

_COMMAND_S = 30.0
_SHORT_S = 1.0
_BUILD_S = 300.0
_MEMORY_BYTES = 256 * 2**20
_FLOOD_BYTES = 4 * 2**20
_ARCHIVE_BYTES = 2**20


async def check_provider(provider: SandboxProvider, *, image: str) -> tuple[str, ...]:
    """Prove a provider's promises and return them. The provider is closed at the end.

    Args:
        provider: A provider that has started nothing yet.
        image: Image that it has, with bash and coreutils, whose user is root.

    Returns:
        The promises that were proven, in words, such as `a command has a deadline`.

    Raises:
        CheckError: A promise is broken; the text begins with it.
        SandboxError: The provider broke.
    """
    before = ProcessHoldings.take()
    check = _Check(provider=provider, image=image)
    try:
        await check.run()
    finally:
        await provider.close()
    await provider.close()
    await check_no_leak(before)
    return (*check.proven, "nothing is left after close")


@dataclass(slots=True, kw_only=True)
class _Check(PromiseCheck):
    provider: SandboxProvider
    image: str

    async def run(self) -> None:
        await self.check_images()
        limits = ContainerLimits(cpus=1, memory_bytes=_MEMORY_BYTES, processes=64)
        spec = ContainerSpec(image=self.image, env={"COLOUR": "blue"}, limits=limits)
        one = await self.provider.start(spec)
        other = await self.provider.start(spec)
        whole = isinstance(one, ProviderContainer)  # pyright: ignore[reportUnnecessaryIsInstance]
        self.expect(whole, "start returns a ProviderContainer", f"got {type(one).__name__}")
        await self.check_commands(one)
        await self.check_deadlines(one)
        await self.check_files(one, other)
        await self.check_limits(one)
        await self.check_halt(one)
        await self.check_stop(one, other)

    async def check_images(self) -> None:
        has_image = await self.provider.find_image(self.image)
        self.expect(has_image, "an image that is there is found", f"{self.image!r} was not")
        missing = await self.provider.find_image("agentrl-no-such-image:none")
        self.expect(not missing, "an image that is not there is not found", "it was")
        with tempfile.TemporaryDirectory(prefix="agentrl-build-") as folder:
            _write(folder, f"FROM {self.image}\nCOPY made /made\n")
            built = await self.provider.build(folder, timeout_s=_BUILD_S)
            again = await self.provider.build(folder, timeout_s=_BUILD_S)
            self.expect(built == again, "an equal directory is one image", f"{built}, {again}")
            container = await self.provider.start(ContainerSpec(image=built))
            try:
                output = await self._run(container, "cat /made")
            finally:
                await container.stop()
            self.expect(output.stdout == b"built\n", "an image has its files", f"got {output}")
            _write(folder, f"FROM {self.image}\nRUN exit 3\n")
            failing = "an image that does not build raises SandboxError"
            with contextlib.suppress(SandboxError):
                await self.provider.build(folder, timeout_s=_BUILD_S)
                self.expect(False, failing, "it raised nothing")
            self.note(failing)

    async def check_commands(self, one: ProviderContainer) -> None:
        output = await one.exec(
            ["bash", "-c", 'echo "$COLOUR $SIZE $PWD"; echo "$1" >&2; exit 7', "bash", "a b"],
            timeout_s=_COMMAND_S,
            cwd="/tmp",
            env={"SIZE": "9"},
        )
        got = (output.exit_code, output.stdout, output.stderr)
        want = (7, b"blue 9 /tmp\n", b"a b\n")
        promise = "a command has arguments, environment, directory, output, exit code"
        self.expect(got == want, promise, f"got {got}")
        output = await one.exec(["id", "-u"], timeout_s=_COMMAND_S, user="65534")
        self.expect(output.stdout == b"65534\n", "a command has a user", f"got {output}")
        output = await self._run(one, f"head -c {_FLOOD_BYTES} /dev/zero")
        bounded = output.truncated and len(output.stdout) < _FLOOD_BYTES
        self.expect(bounded, "output is bounded", f"{len(output.stdout)} bytes came back")
        output = await one.exec(["no-such-program"], timeout_s=_COMMAND_S)
        failed = output.exit_code not in (0, None)
        self.expect(failed, "a program that is missing is a result", f"got {output}")
        output = await self._run(one, "sleep 3600 & echo started")
        self.expect(
            output.exit_code == 0 and output.stdout == b"started\n",
            "what is left in the background keeps nobody waiting",
            f"got {output}",
        )

    async def check_deadlines(self, one: ProviderContainer) -> None:
        script = "(sleep 4321 & exec sleep 4321)"
        output = await one.exec(["bash", "-c", script], timeout_s=_SHORT_S)
        self.expect(output.timed_out, "a command has a deadline", f"got {output}")
        count = await self._run(one, _COUNT.format(word="4321"))
        ended = count.stdout.strip() == b"0"
        self.expect(ended, "a late command is ended with what it started", f"got {count}")

    async def check_files(self, one: ProviderContainer, other: ProviderContainer) -> None:
        data = bytes(range(256))
        await one.put(_pack("note.bin", data, uid=65534, mode=0o640), "/tmp")
        output = await self._run(one, "stat -c '%u %a %s' /tmp/note.bin")
        self.expect(
            output.stdout == b"65534 640 256\n", "files keep owner and mode", f"got {output}"
        )
        archive = await one.get("/tmp/note.bin", max_bytes=_ARCHIVE_BYTES)
        self.expect(_unpack(archive) == data, "a file comes back as it was put", "it differs")
        missing = "a missing file is FileNotFoundError"
        for container, path in ((one, "/nothing"), (other, "/tmp/note.bin")):
            try:
                await container.get(path, max_bytes=_ARCHIVE_BYTES)
            except FileNotFoundError:
                self.note(missing, "containers share no files")
            else:
                self.expect(False, missing, f"{path} was found")
        try:
            await one.get("/tmp/note.bin", max_bytes=64)
        except OSError:
            self.note("an archive over the limit is OSError")
        else:
            self.expect(False, "an archive over the limit is OSError", "it came back")

    async def check_limits(self, one: ProviderContainer) -> None:
        output = await self._run(one, "cut -d: -f1 /proc/net/dev | tail -n +3 | tr -d ' '")
        self.expect(
            output.stdout in (b"lo\n", b""), "a container has no network of itself", f"got {output}"
        )
        script = f"head -c {2 * _MEMORY_BYTES} /dev/zero | tail >/dev/null; true"
        output = await self._run(one, f"bash -c '{script}'; echo alive")
        killed = await self._run(one, f"head -c {2 * _MEMORY_BYTES} /dev/zero | tail | wc -c")
        bounded = killed.stdout.strip() != str(2 * _MEMORY_BYTES).encode()
        self.expect(bounded, "memory is bounded", f"got {killed}")
        self.expect(
            output.stdout.endswith(b"alive\n"), "a container outlives its limit", f"got {output}"
        )

    async def check_halt(self, one: ProviderContainer) -> None:
        await self._run(one, "sleep 9876 >/dev/null 2>&1 & echo kept >/kept; rm -f /usr/bin/yes")
        await one.halt()
        changes = await one.changes()
        rows = None if changes is None else {change.path: change.kind for change in changes}
        if rows is not None:
            got = (rows.get("/kept"), rows.get("/usr/bin/yes"))
            self.expect(got == ("added", "deleted"), "changes are told", f"got {got}")
        await one.resume()
        count = await self._run(one, _COUNT.format(word="9876"))
        self.expect(count.stdout.strip() == b"0", "halt ends every process", f"got {count}")
        output = await self._run(one, "cat /kept")
        self.expect(output.stdout == b"kept\n", "files outlive a halt", f"got {output}")

    async def check_stop(self, one: ProviderContainer, other: ProviderContainer) -> None:
        await one.stop()
        await one.stop()
        self.note("stop can be repeated")
        try:
            await self._run(one, "true")
        except SandboxError:
            self.note("a command after stop raises SandboxError")
        else:
            self.expect(False, "a command after stop raises SandboxError", "it ran")
        output = await self._run(other, "echo here")
        self.expect(output.stdout == b"here\n", "containers end alone", f"got {output}")

    async def _run(self, container: ProviderContainer, script: str) -> ContainerOutput:
        argv: Sequence[str] = ["bash", "-c", script]
        return await container.exec(argv, timeout_s=_COMMAND_S)


_COUNT = """
count=0
for entry in /proc/[0-9]*; do
    while IFS= read -r -d '' argument; do
        [ "$argument" = {word} ] && count=$((count + 1))
    done <"$entry/cmdline"
done 2>/dev/null
echo "$count"
"""
"""Counts the processes with an argument."""


def _write(folder: str, dockerfile: str) -> None:
    Path(folder, "Dockerfile").write_text(dockerfile)
    Path(folder, "made").write_text("built\n")


def _pack(name: str, content: bytes, *, uid: int, mode: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.size, member.uid, member.gid, member.mode = len(content), uid, uid, mode
        archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _unpack(archive: bytes) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        content = opened.extractfile(opened.getmembers()[0])
        return b"" if content is None else content.read()
