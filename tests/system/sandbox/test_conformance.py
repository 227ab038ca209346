"""Every back-end keeps the contract; what is refused is refused with the way out."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentrl.errors import CheckError, ConfigError, SandboxError
from agentrl.runtime.scope import run_scope
from agentrl.sandbox import ExecResult, Sandbox, SandboxPool, SandboxSettings, using_sandbox
from agentrl.testing.leaks import ProcessHoldings, check_no_leak
from agentrl.testing.sandbox import InMemorySandboxPool, check_sandbox
from agentrl_sandbox import ForkServerPool, SandboxSession, layers, open_session
from tests.support.pools import opened

BARE = SandboxSettings(backend="process", allow_unisolated=True)
BACKENDS = [
    pytest.param(SandboxSettings(), id="namespaces", marks=pytest.mark.namespaces),
    pytest.param(
        SandboxSettings(backend="bubblewrap"), id="bubblewrap", marks=pytest.mark.bubblewrap
    ),
    pytest.param(SandboxSettings(backend="docker"), id="docker", marks=pytest.mark.docker),
    pytest.param(BARE, id="process"),
]


@asynccontextmanager
async def no_leak() -> AsyncGenerator[None]:
    before = ProcessHoldings.take()
    yield
    await check_no_leak(before)


@pytest.fixture
async def bare_session() -> AsyncIterator[SandboxSession]:
    async with opened(BARE) as pool:
        yield await pool.open()


@pytest.mark.parametrize("settings", BACKENDS)
async def test_a_back_end_keeps_the_contract(settings: SandboxSettings) -> None:
    proven = await check_sandbox(ForkServerPool(settings))
    assert "usable after timeout" in proven
    assert proven[-1] == "nothing is left after close"


async def test_the_check_names_a_broken_promise() -> None:
    answers = {"x = 41": ExecResult(status="ok"), "x + 1": ExecResult(status="ok", value="43")}
    with pytest.raises(CheckError, match="names live on, the last expression is echoed"):
        await check_sandbox(InMemorySandboxPool(answers))


async def test_the_scripted_sandbox_answers_keeps_files_and_forks() -> None:
    pool: SandboxPool = InMemorySandboxPool({"1": ExecResult(status="ok", value="1")})
    session = await pool.open()
    assert isinstance(session, Sandbox)
    assert (await session.exec("1")).value == "1"
    assert (await session.exec("2")).status == "error"
    await session.write("a", b"1")
    copy = await session.fork()
    await copy.write("a", b"2")
    assert await session.read("a") == b"1"
    with pytest.raises(PermissionError):
        await copy.read("../a")
    await pool.close()
    with pytest.raises(SandboxError, match="closed"):
        await session.exec("1")
    with pytest.raises(SandboxError, match="closed"):
        await pool.open()


def test_a_bare_process_must_be_allowed_by_name() -> None:
    with pytest.raises(ConfigError, match=r"allow_unisolated: true.*sandbox.backend: namespaces"):
        ForkServerPool(SandboxSettings(backend="process"))


@pytest.mark.parametrize("allow", [False, True])
def test_a_missing_bubblewrap_is_refused_with_both_ways_out(
    allow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ConfigError) as refusal:
        ForkServerPool(SandboxSettings(backend="bubblewrap", allow_unisolated=allow))
    for part in ("no bwrap", "apt-get install bubblewrap", "sandbox.backend: namespaces"):
        assert part in str(refusal.value)


async def test_a_bubblewrap_that_cannot_unshare_is_refused_with_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'No permissions to create a new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    async with no_leak(), opened(SandboxSettings(backend="bubblewrap")) as pool:
        with pytest.raises(ConfigError, match=r"No permissions.*user namespaces.*: process"):
            await pool.open()


@pytest.mark.parametrize("settings", BACKENDS)
async def test_sessions_of_a_scope_share_one_supervisor(
    settings: SandboxSettings,
) -> None:
    with using_sandbox(settings):
        async with no_leak(), run_scope():
            one, other = await open_session(), await open_session()
            await one.close()
            assert (await other.exec("1 + 1")).value == "2"
        with pytest.raises(SandboxError):
            await other.exec("1")


@pytest.mark.parametrize("settings", BACKENDS)
async def test_a_session_without_a_scope_closes_its_pool_with_its_last_fork(
    settings: SandboxSettings,
) -> None:
    async with no_leak():
        with using_sandbox(settings):
            session = await open_session()
        copy = await session.fork()
        await session.close()
        assert (await copy.exec("1 + 1")).value == "2"
        await copy.close()


async def test_an_error_shows_the_cell_and_nothing_of_ours(bare_session: SandboxSession) -> None:
    session = bare_session
    await session.exec("def half(x):\n    return x / 0")
    result = await session.exec("y = 1\nhalf(2)")
    assert result.error == (
        "Traceback (most recent call last):\n"
        '  File "<cell 2>", line 2, in <module>\n'
        "    half(2)\n"
        '  File "<cell 1>", line 2, in half\n'
        "    return x / 0\n"
        "           ~~^~~\n"
        "ZeroDivisionError: division by zero"
    )


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("", None),
        ("# nothing", None),
        ("None", None),
        ("1;", None),
        ("x = 3\nx", "3"),
        ("for i in range(3): i", None),
        ("'é\\n'", "'é\\n'"),
        ("__name__", "'__main__'"),
        ("import pickle\nclass A: pass\npickle.loads(pickle.dumps(A)) is A", "True"),
    ],
)
async def test_the_last_expression_is_echoed_as_in_a_notebook(
    bare_session: SandboxSession, code: str, value: str | None
) -> None:
    result = await bare_session.exec(code)
    assert (result.status, result.value) == ("ok", value)


async def test_hostile_reprs_and_exceptions_are_results(bare_session: SandboxSession) -> None:
    code = "class A:\n    def __repr__(self): raise ValueError('no')\nA()"
    assert "ValueError: no" in ((await bare_session.exec(code)).error or "")
    code = "class E(Exception):\n    def __str__(self): raise KeyboardInterrupt\nraise E"
    result = await bare_session.exec(code)
    assert result.status == "error"
    assert "E" in (result.error or "")
    long = await bare_session.exec("'a' * 10**6")
    assert long.truncated
    assert len(long.value or "") < 20_000


def test_every_layer_says_what_it_is_and_how_to_get_it() -> None:
    found = {layer.name: layer for layer in layers()}
    assert set(found) == {
        "bubblewrap",
        "user namespaces",
        "user id per session",
        "seccomp",
        "landlock",
        "cgroup v1",
        "cgroup v2",
        "docker engine",
    }
    assert all(layer.detail and layer.get_it for layer in found.values())
