"""Docker keeps the contract of sandbox providers; what a machine cannot give is refused."""

import asyncio
import json
import socket
import tempfile
import threading
import time
from pathlib import Path

import pytest

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox_provider import ContainerLimits, ContainerSpec
from agentrl.testing import check_provider
from agentrl_sandbox.launch.engine import DockerEngine
from agentrl_sandbox.provider import DockerProvider
from agentrl_sandbox.provider.docker import REPOSITORY
from agentrl_sandbox.recipe import BASE

pytestmark = pytest.mark.docker


@pytest.mark.timeout(300)
async def test_docker_keeps_the_contract() -> None:
    proven = await check_provider(DockerProvider(), image=BASE)
    assert "a late command is ended with what it started" in proven
    assert "changes are told" in proven
    assert proven[-1] == "nothing is left after close"


async def test_what_a_machine_does_not_have_is_refused() -> None:
    provider = DockerProvider()
    try:
        with pytest.raises(ConfigError, match=r"cpus=4096 does not fit.*cores"):
            await provider.start(ContainerSpec(image=BASE, limits=ContainerLimits(cpus=4096)))
        with pytest.raises(SandboxError, match="No such image"):
            await provider.start(ContainerSpec(image="agentrl-no-such-image:none"))
    finally:
        await provider.close()


async def test_the_engines_own_files_outlive_a_halt() -> None:
    provider = DockerProvider()
    try:
        container = await provider.start(ContainerSpec(image=BASE))
        await container.exec(["bash", "-c", "echo 10.0.0.7 depot >>/etc/hosts"], timeout_s=20)
        await container.halt()
        await container.resume()
        output = await container.exec(["grep", "-c", "depot", "/etc/hosts"], timeout_s=20)
        assert output.stdout == b"1\n"
    finally:
        await provider.close()


async def test_only_a_container_that_ran_all_along_can_be_halted() -> None:
    provider, engine = DockerProvider(), DockerEngine()
    try:
        container = await provider.start(ContainerSpec(image=BASE))
        signals = "for name in HUP INT QUIT USR1 ALRM TERM; do kill -$name 1; done; sleep 0.3"
        await container.exec(["bash", "-c", signals], timeout_s=20)
        await container.halt()
        await container.resume()
        engine.kill(container.name)
        for start in (False, True):
            if start:
                engine.start(container.name)
            with pytest.raises(SandboxError, match="ended while it was in use"):
                await container.halt()
    finally:
        await provider.close()
        engine.close()


FULL = """
import os, time

def fill():
    try:
        while os.fork():
            pass
        time.sleep(1000)
    except OSError:
        pass

end_s = time.monotonic() + 2
fill()
while time.monotonic() < end_s:
    for child in open("/proc/1/task/1/children").read().split():
        try:
            if open(f"/proc/{child}/cmdline").read().startswith("sleep"):
                os.kill(int(child), 9)
        except OSError:
            pass
        fill()
"""
"""Takes every process that a container may have, and ends those that its first one waits for."""


async def test_a_container_outlives_a_full_limit_of_processes() -> None:
    provider = DockerProvider()
    try:
        spec = ContainerSpec(image=BASE, limits=ContainerLimits(processes=32))
        container = await provider.start(spec)
        output = await container.exec(["python3", "-c", FULL], timeout_s=20)
        assert output.exit_code == 0
        await container.halt()
        await container.resume()
        assert (await container.exec(["true"], timeout_s=20)).exit_code == 0
    finally:
        await provider.close()


async def test_a_container_that_cannot_be_removed_keeps_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    provider, engine = DockerProvider(), DockerEngine()
    remove = DockerEngine.remove
    stuck = ""

    def remove_others(engine: DockerEngine, name: str) -> None:
        if name == stuck:
            raise SandboxError(f"{name} is stuck")
        remove(engine, name)

    monkeypatch.setattr(DockerEngine, "remove", remove_others)
    for _ in range(3):
        await (await provider.start(ContainerSpec(image=BASE))).stop()
    containers = [await provider.start(ContainerSpec(image=BASE)) for _ in range(3)]
    try:
        assert provider._containers == {*containers}  # pyright: ignore[reportPrivateUsage]
        first = next(iter(provider._containers))  # pyright: ignore[reportPrivateUsage]
        stuck = first.name
        with pytest.raises(SandboxError, match=f"{stuck} is stuck"):
            await provider.close()
        others = {container.name for container in containers} - {stuck}
        assert [engine.process(name) for name in others] == [0, 0]
    finally:
        engine.close()
        for container in containers:
            container._lease.clear()  # pyright: ignore[reportPrivateUsage]


async def test_a_file_that_is_too_large_does_not_hold_its_container() -> None:
    provider = DockerProvider()
    try:
        container = await provider.start(ContainerSpec(image=BASE))
        await container.exec(["bash", "-c", "head -c 8000000 /dev/zero >/large"], timeout_s=20)
        with pytest.raises(OSError, match="/large takes more than 1000 bytes") as caught:
            await container.get("/large", max_bytes=1000)
        # Its error is still there, and so is whatever it refers to.
        await asyncio.wait_for(container.stop(), timeout=30)
        del caught
    finally:
        await provider.close()


async def test_images_are_built_once_and_bounded(tmp_path: Path) -> None:
    engine = DockerEngine()
    kept = [name for name, _ in engine.images(REPOSITORY)]
    provider = DockerProvider(images=len(kept) + 1)
    built: list[str] = []
    try:
        for text in ("one", "two"):
            (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\nCOPY text /text\n")
            (tmp_path / "text").write_text(text)
            built.append(await provider.build(str(tmp_path), timeout_s=60))
        names = [name for name, _ in engine.images(REPOSITORY)]
        assert built[1] in names
        assert len(names) <= len(kept) + 1
    finally:
        await provider.close()
        for name in built:
            if engine.find_image(name):
                engine.remove_image(name)
        engine.close()


@pytest.mark.parametrize("late", [True, False])
async def test_a_silent_build_ends_at_its_deadline_and_with_its_caller(
    tmp_path: Path, late: bool
) -> None:
    # A step that prints nothing, named by the folder: no earlier build of it is found again.
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\nRUN sleep 300 # {tmp_path}\n")
    provider = DockerProvider()
    engine = DockerEngine()
    try:
        begun_s = time.monotonic()
        if late:
            with pytest.raises(SandboxError, match=r"took longer than 2 s\n(.*\n)*.*RUN sleep 300"):
                await provider.build(str(tmp_path), timeout_s=2)
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(provider.build(str(tmp_path), timeout_s=300), timeout=2)
        assert time.monotonic() - begun_s < 15
        while str(tmp_path) in str(engine._api.containers(all=True)):  # pyright: ignore[reportPrivateUsage]
            assert time.monotonic() - begun_s < 30, "the engine goes on building"
            await asyncio.sleep(0.2)
    finally:
        await provider.close()
        engine.close()


async def test_a_full_disk_for_temporary_files_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\nRUN true # {tmp_path}\n")
    monkeypatch.setattr(tempfile, "tempdir", "/proc")  # which never has a free byte
    provider = DockerProvider()
    try:
        with pytest.raises(SandboxError, match=r"/proc.* are packed there; .* set TMPDIR"):
            await provider.build(str(tmp_path), timeout_s=60)
    finally:
        await provider.close()


async def test_an_engine_that_dies_in_a_build_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = json.dumps({"ApiVersion": "1.41"}).encode()
    whole = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(version)
    broken = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n13\r\n" + b'{"stream": "Step 1"'

    def serve() -> None:
        for answer in (b"", whole + version, broken):  # the first connection is a probe
            connection, _ = listener.accept()
            with connection:
                if answer and connection.recv(2**20):
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                while connection.recv(2**20):
                    pass

    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "engine"))
        listener.listen()
        server = threading.Thread(target=serve, daemon=True)
        server.start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine")
        engine = DockerEngine()
        with pytest.raises(SandboxError, match="the connection to the Docker engine broke"):
            list(engine.build(str(tmp_path), "agentrl-nothing:none"))
        engine.close()
        server.join()
