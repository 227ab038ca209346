"""Containers without an engine keep the contract; what is inside gets no right over this machine.

The engine is only asked for a root file system, once.
"""

import subprocess
from pathlib import Path

import pytest

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox_provider import ContainerLimits, ContainerSpec
from agentrl.testing import check_provider
from agentrl_sandbox.provider.namespaces import NamespaceProvider
from agentrl_sandbox.recipe import BASE

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("root") / "root.tar"
    made = subprocess.run(["docker", "create", BASE, "true"], check=True, capture_output=True)
    name = made.stdout.decode().strip()
    subprocess.run(["docker", "export", "-o", str(path), name], check=True)
    subprocess.run(["docker", "rm", name], check=True, capture_output=True)
    return str(path)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


@pytest.mark.timeout(300)
async def test_namespaces_keep_the_contract(root: str, cache: str) -> None:
    proven = await check_provider(NamespaceProvider(roots={BASE: root}, cache=cache), image=BASE)
    assert "a late command is ended with what it started" in proven
    assert "changes are told" in proven
    assert proven[-1] == "nothing is left after close"


async def test_root_inside_is_nobody_here(root: str, cache: str) -> None:
    provider = NamespaceProvider(roots={BASE: root}, cache=cache)
    refused = (
        "unshare -r true",
        "unshare -m true",
        "mount -t tmpfs none /mnt",
        "mount -o remount,rw /proc",
        "mknod /disk b 254 0",
        "echo 1 >/proc/sys/kernel/panic",
        "echo b >/proc/sysrq-trigger",
        "cat /proc/1/environ",
        "ls /proc/1/root/",
        "head -c 1 /proc/kcore",
        "chroot / true",
        "hostname other",
    )
    try:
        container = await provider.start(ContainerSpec(image=BASE))
        for command in refused:
            output = await container.exec(["bash", "-c", command], timeout_s=20)
            assert output.exit_code, command
        output = await container.exec(["cat", "/proc/self/uid_map"], timeout_s=20)
        first, outside, count = map(int, output.stdout.split())
        assert (first, count) == (0, 2**16)
        assert outside >= 2**30
    finally:
        await provider.close()


async def test_a_removed_folder_made_anew_is_told(root: str, cache: str) -> None:
    provider = NamespaceProvider(roots={BASE: root}, cache=cache)
    script = "rm -r /usr/share/perl5 && mkdir /usr/share/perl5 && echo x >/usr/share/perl5/new"
    try:
        container = await provider.start(ContainerSpec(image=BASE))
        await container.exec(["bash", "-c", script], timeout_s=20)
        await container.halt()
        rows = {change.path: change.kind for change in await container.changes()}
    finally:
        await provider.close()
    assert rows["/usr/share/perl5/new"] == "added"
    assert rows["/usr/share/perl5"] == "modified"
    assert "deleted" in rows.values()


async def test_what_cannot_be_had_is_refused(root: str, cache: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"debian is '/nowhere', which is not there"):
        NamespaceProvider(roots={"debian": "/nowhere"}, cache=cache)
    provider = NamespaceProvider(roots={BASE: root}, cache=cache)
    try:
        with pytest.raises(ConfigError, match=r"cpus=4096 does not fit"):
            await provider.start(ContainerSpec(image=BASE, limits=ContainerLimits(cpus=4096)))
        with pytest.raises(ConfigError, match=r"network 'public' cannot be had"):
            await provider.start(ContainerSpec(image=BASE, network="public"))
        with pytest.raises(SandboxError, match="No such image"):
            await provider.start(ContainerSpec(image="agentrl-no-such-image:none"))
        (tmp_path / "Dockerfile").write_text("FROM ubuntu:24.04\n")
        with pytest.raises(SandboxError, match=r"Dockerfile: FROM ubuntu:24.04 is no image here"):
            await provider.build(str(tmp_path), timeout_s=20)
    finally:
        await provider.close()
