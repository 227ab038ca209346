"""Containers without an engine keep the contract; inside is no right over this machine.

Mutants seen caught: folders made anew not looked into, images in use removed, no image removed,
servers of names that stay in an image, owners of --chown not asked for.
"""

import asyncio
import os
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox_provider import ContainerLimits, ContainerSpec
from agentrl.testing import check_provider
from agentrl_sandbox.provider.namespaces import NamespaceProvider, layer_cache
from tests.support.processes import find_processes
from tests.support.root_folder import BASE, make_root

pytestmark = [
    pytest.mark.namespaces,
    pytest.mark.cgroup,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root maps the users of containers"),
    pytest.mark.asyncio(loop_scope="module"),
]
SPEC = ContainerSpec(image=BASE)
RESOLV_CONF = Path("/etc/resolv.conf")
NAMES = RESOLV_CONF.read_bytes() if RESOLV_CONF.exists() else b""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_root(tmp_path_factory.mktemp("root"))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def provider(
    root: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[NamespaceProvider]:
    cache = tmp_path_factory.mktemp("cache")
    provider = NamespaceProvider(rootfs={BASE: root}, cache=str(cache))
    assert provider.explain_missing() == ""
    yield provider
    await provider.close()
    assert list((cache / "containers").iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_namespaces_keep_the_contract(root: str, tmp_path: Path) -> None:
    provider = NamespaceProvider(rootfs={BASE: root}, cache=str(tmp_path))
    proven = await check_provider(provider, image=BASE)
    assert "a late command is ended with what it started" in proven
    assert "changes are told" in proven
    assert proven[-1] == "nothing is left after close"


async def test_root_inside_is_nobody_here(provider: NamespaceProvider) -> None:
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
        "kill -9 $(cat /outside)",
    )
    container = await provider.start(SPEC)
    await container.exec(["bash", "-c", f"echo {os.getpid()} >/outside"], timeout_s=20)
    for command in refused:
        output = await container.exec(["bash", "-c", command], timeout_s=20)
        assert output.exit_code, command
    output = await container.exec(["cat", "/proc/self/uid_map"], timeout_s=20)
    first, outside, count = map(int, output.stdout.split())
    assert (first, count) == (0, 2**16)
    assert outside >= 2**30
    await container.stop()


async def test_changes_are_those_of_the_container(provider: NamespaceProvider) -> None:
    script = (
        "rm -r /usr/share/words; mkdir /usr/share/words; echo x >/usr/share/words/new; "
        "echo x >>/etc/passwd; mkdir /root/new; rm -r /root/new; "
        "cd /tmp; name=$(printf 'n%.0s' {1..250}); "
        "for at in {1..30}; do mkdir $name && cd $name || exit 1; done; touch end"
    )
    container = await provider.start(SPEC)
    output = await container.exec(["bash", "-c", script], timeout_s=20)
    assert output.exit_code == 0, output
    await container.halt()
    rows = {change.path: change.kind for change in await container.changes()}
    assert rows["/usr/share/words/new"] == "added"
    assert rows["/usr/share/words"] == "modified"
    assert rows["/usr/share/words/one"] == "deleted"
    assert rows["/etc/passwd"] == "modified"
    assert "/root" not in rows, "nothing in it is another"
    assert sum(path.endswith("n" * 250) for path in rows) >= 14
    await container.stop()


async def test_what_a_folder_made_anew_lacks_is_deleted(
    provider: NamespaceProvider, tmp_path: Path
) -> None:
    script = (
        "cd /srv; rm -r lib; mkdir -p lib/python/site/kept lib/other; "
        "echo x >lib/python/site/kept/__init__.py"
    )
    (tmp_path / "lib/python/site/kept").mkdir(parents=True)
    (tmp_path / "lib/python/site/gone").mkdir()
    for name in ("site/kept/__init__.py", "site/kept/part.py", "site/gone/__init__.py"):
        (tmp_path / "lib/python" / name).write_text("x")
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\nCOPY lib /srv/lib\n")
    image = await provider.build(str(tmp_path), timeout_s=60)
    container = await provider.start(ContainerSpec(image=image))
    output = await container.exec(["bash", "-c", script], timeout_s=20)
    assert output.exit_code == 0, output
    await container.halt()
    rows = {change.path: change.kind for change in await container.changes()}
    assert {path for path, kind in rows.items() if kind == "deleted"} == {
        "/srv/lib/python/site/kept/part.py",
        "/srv/lib/python/site/gone",
    }
    assert rows["/srv/lib/python/site/kept/__init__.py"] == "modified"
    assert rows["/srv/lib/other"] == "added"
    await container.stop()


async def test_an_image_is_what_its_dockerfile_says(
    provider: NamespaceProvider, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one.txt").write_text("one")
    (tmp_path / "two.txt").write_text("two")
    (tmp_path / "Dockerfile").write_text(
        f"FROM {BASE}\nENV A='x y'\nENV B=\"$A\"\nWORKDIR /srv/app\nCOPY data two.txt ./\n"
        'COPY --chown=clerk --chmod=640 two.txt /tmp/\nRUN echo "$A" >made && rm \\\n /bin/yes\n'
        "USER clerk\n"
    )
    image = await provider.build(str(tmp_path), timeout_s=60)
    container = await provider.start(ContainerSpec(image=image))
    script = 'pwd; echo "$B"; cat one.txt two.txt made; stat -c "%u %g %a" /tmp/two.txt; id -u'
    output = await container.exec(["bash", "-c", script], timeout_s=20)
    assert output.stdout == b"/srv/app\nx y\nonetwox y\n1000 1000 640\n1000\n", output
    assert await container.changes() == []
    with pytest.raises(FileNotFoundError):
        await container.get("/usr/bin/yes", max_bytes=2**20)
    await container.stop()


async def test_a_root_may_be_an_archive(root: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "root.tar", "w") as archive:
        archive.add(root, ".")
    provider = NamespaceProvider(
        rootfs={"archived": str(tmp_path / "root.tar")}, cache=str(tmp_path / "cache")
    )
    container = await provider.start(ContainerSpec(image="archived"))
    output = await container.exec(["stat", "-c", "%u %a", "/", "/bin/sh", "/tmp"], timeout_s=20)
    assert output.stdout.split() == [b"0", b"755", b"0", b"755", b"0", b"1777"]
    await provider.close()


async def test_images_are_bounded_but_those_in_use_stay(root: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    provider = NamespaceProvider(rootfs={BASE: root}, cache=str(cache), images=2)
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\nCOPY text /text\n")

    async def build(text: str) -> str:
        (tmp_path / "text").write_text(text)
        return await provider.build(str(tmp_path), timeout_s=60)

    one = await build("one")
    container = await provider.start(ContainerSpec(image=one))
    two, three = await build("two"), await build("three")
    assert [await provider.find_image(name) for name in (one, two, three)] == [True, False, True]
    output = await container.exec(["cat", "/text"], timeout_s=20)
    assert output.stdout == b"one"
    layers = len(list((cache / "layers").iterdir()))
    assert layers == 3  # the root and two images
    await provider.close()


@pytest.mark.parametrize("is_late", [True, False])
async def test_a_build_ends_at_its_deadline_and_with_its_caller(
    provider: NamespaceProvider, tmp_path: Path, is_late: bool
) -> None:
    sleep = f"sleep 300.{os.getpid()}{is_late:d}"
    # Neither a variable of the environment nor a parent tells whose it is.
    text = f"FROM {BASE}\nRUN env -i setsid {sleep} & {sleep}\n"
    (tmp_path / "Dockerfile").write_text(text)
    build = asyncio.create_task(
        provider.build(str(tmp_path), timeout_s=3 if is_late else 60), name="build"
    )
    while len(find_processes(sleep)) < 2:
        assert not build.done(), build
        await asyncio.sleep(0.05)
    if is_late:
        with pytest.raises(SandboxError, match=r"does not build: it took longer than 3 s"):
            await build
    else:
        build.cancel()
        with pytest.raises(asyncio.CancelledError):
            await build
    assert find_processes(sleep) == []


async def test_a_build_with_a_network_knows_the_servers_of_names(
    provider: NamespaceProvider, tmp_path: Path
) -> None:
    text = f"FROM {BASE}\nRUN cat /etc/resolv.conf >/names\n"
    (tmp_path / "Dockerfile").write_text(text)
    image = await provider.build(str(tmp_path), timeout_s=60, network="host")
    container = await provider.start(ContainerSpec(image=image))
    output = await container.exec(["cat", "/names", "/etc/resolv.conf"], timeout_s=20)
    assert output.stdout == NAMES
    assert b"/etc/resolv.conf: No such file" in output.stderr
    await container.stop()


async def test_a_full_disk_is_named(
    provider: NamespaceProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_cache, "LEAST_FREE_BYTES", 2**62)
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\nRUN true # {tmp_path}\n")
    for work in (provider.start(SPEC), provider.build(str(tmp_path), timeout_s=60)):
        with pytest.raises(SandboxError, match=r"cache: the disk of .* is full: .* make room"):
            await work


async def test_what_cannot_be_had_is_refused(provider: NamespaceProvider, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"debian is '/nowhere', which is not there"):
        NamespaceProvider(rootfs={"debian": "/nowhere"})
    with pytest.raises(ConfigError, match=r"images must be at least 1"):
        NamespaceProvider(rootfs={}, images=0)
    with pytest.raises(ConfigError, match=r"cpus=4096 does not fit"):
        await provider.start(ContainerSpec(image=BASE, limits=ContainerLimits(cpus=4096)))
    with pytest.raises(ConfigError, match=r"network 'public' cannot be had"):
        await provider.start(ContainerSpec(image=BASE, network="public"))
    with pytest.raises(SandboxError, match="No such image"):
        await provider.start(ContainerSpec(image="agentrl-no-such-image:none"))
    (tmp_path / "Dockerfile").write_text("FROM ubuntu:24.04\n")
    with pytest.raises(ConfigError, match=r"Dockerfile:1: FROM ubuntu:24.04 is none of the base"):
        await provider.build(str(tmp_path), timeout_s=20)
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\n\nRUN echo no; exit 3\n")
    with pytest.raises(SandboxError, match=r"Dockerfile:3 ended with exit code 3:\nno"):
        await provider.build(str(tmp_path), timeout_s=20)
