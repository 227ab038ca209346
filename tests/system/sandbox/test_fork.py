"""Forks of a session are independent of each other, in every order of what happens to them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.errors import ForkUnsupported
from agentrl.sandbox import SandboxSettings
from agentrl_sandbox import ForkServerPool, SandboxSession
from tests.support.pools import opened

BARE = SandboxSettings(backend="process", allow_unisolated=True)
BACKENDS = [
    pytest.param(SandboxSettings(), id="namespaces", marks=pytest.mark.namespaces),
    pytest.param(
        SandboxSettings(backend="bubblewrap"), id="bubblewrap", marks=pytest.mark.bubblewrap
    ),
    pytest.param(BARE, id="process"),
]
both = pytest.mark.parametrize("how", BACKENDS)


@pytest.fixture
async def pool(how: SandboxSettings) -> AsyncIterator[ForkServerPool]:
    async with opened(how) as pool:
        yield pool


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["set", "append", "file", "fork", "close", "crash", "read"]),
        st.integers(0, 5),
        st.integers(0, 9),
    ),
    max_size=12,
)


@dataclass
class Model:
    """What a session should hold."""

    session: SandboxSession
    x: int | None = None
    items: list[int] = field(default_factory=list[int])
    text: str = ""

    @property
    def content(self) -> tuple[str, bytes]:
        """What `_content` of the session must be."""
        return repr((self.x, self.items, self.text)), self.text.encode()


@both
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=OPERATIONS)
async def test_sessions_behave_like_separate_copies(
    how: SandboxSettings, operations: list[tuple[str, int, int]]
) -> None:
    """Kills: a channel shared with the original, a copy that ends with its original.

    A shared directory is found only by some draws; the test of directories below always finds it.
    """
    async with opened(how) as pool:
        models = [await _start(await pool.open())]
        for name, which, value in operations:
            if models:
                await _apply(name, models, models[which % len(models)], value)
        for model in models:
            assert await _content(model.session) == model.content


async def _start(session: SandboxSession) -> Model:
    await session.write("text", b"")
    assert (await session.exec("x = None; items = []")).ok
    return Model(session)


async def _apply(name: str, models: list[Model], model: Model, value: int) -> None:
    session = model.session
    match name:
        case "set":
            assert (await session.exec(f"x = {value}")).ok
            model.x = value
        case "append":
            assert (await session.exec(f"items.append({value})")).ok
            model.items = [*model.items, value]
        case "file":
            assert (await session.exec(f"with open('text', 'a') as f: f.write('{value}')")).ok
            model.text += str(value)
        case "fork":
            models.append(replace(model, session=await session.fork()))
        case "close":
            await session.close()
            models.remove(model)
        case "crash":
            assert (await session.exec("import os; os.abort()")).status == "crash"
            assert (await session.exec("x = None; items = []")).ok
            model.x, model.items = None, []
        case _:
            assert await _content(session) == model.content


async def _content(session: SandboxSession) -> tuple[str | None, bytes]:
    """Return what a session's names and its file are, the file read from both sides."""
    result = await session.exec("x, items, open('text').read()")
    return result.value, await session.read("text")


@both
async def test_siblings_draw_different_random_numbers_unless_told(pool: ForkServerPool) -> None:
    session = await pool.open()
    await session.exec("import random; random.seed(1)")
    copies = [await session.fork() for _ in range(3)]
    drawn = {(await s.exec("random.random()")).value for s in (session, *copies)}
    assert len(drawn) == 4
    await session.exec("random.seed(1)")
    twin = await session.fork(keep_rng=True)
    assert (await twin.exec("random.random()")).value == "0.13436424411240122"
    assert (await session.exec("random.random()")).value == "0.13436424411240122"


@both
async def test_a_session_with_threads_is_not_forked(pool: ForkServerPool) -> None:
    session = await pool.open()
    await session.exec("import threading; stop = threading.Event()")
    await session.exec("thread = threading.Thread(target=stop.wait); thread.start()")
    with pytest.raises(ForkUnsupported, match="2 threads"):
        await session.fork()
    await session.exec("stop.set(); thread.join()")
    copy = await session.fork()
    assert (await copy.exec("stop.is_set()")).value == "True"


@both
async def test_a_fork_waits_for_a_thread_that_is_ending(pool: ForkServerPool) -> None:
    """Kills: a count of threads taken once (a joined one is listed for a moment)."""
    session = await pool.open()
    await session.exec("import _thread, time; _thread.start_new_thread(time.sleep, (0.05,))")
    copy = await session.fork()
    assert (await copy.exec("1 + 1")).value == "2"


@both
async def test_directory_and_working_directory_are_copied(
    how: SandboxSettings, pool: ForkServerPool
) -> None:
    """Kills: a copy that stays in the directory of its original."""
    session = await pool.open()
    code = """
import os
os.makedirs("deep/er"); os.chdir("deep/er")
open("here", "w").write("1"); os.symlink("here", "link"); os.mkfifo("pipe"); os.chmod("here", 0o640)
"""
    assert (await session.exec(code)).ok
    copy = await session.fork()
    await copy.exec("open('here', 'w').write('2')")
    look = "open('here').read(), open('link').read(), sorted(os.listdir()), os.stat('here').st_mode"
    assert (await copy.exec(look)).value == f"('2', '2', ['here', 'link'], {0o100640})"
    assert (await session.exec("open('here').read()")).value == "'1'"
    homes = {(await s.exec("os.environ['HOME']")).value for s in (session, copy)}
    assert len(homes) == (2 if how.backend == "process" else 1)  # the same path, apart


@both
async def test_a_copy_outlives_whatever_happens_to_the_original(pool: ForkServerPool) -> None:
    session = await pool.open()
    await session.exec("x = 1")
    copy = await session.fork()
    grandchild = await copy.fork()
    assert (await session.exec("while True: pass", timeout_s=0.2)).status == "timeout"
    assert (await copy.exec("x")).value == "1"
    await session.close()
    assert (await copy.exec("import os; os._exit(1)")).status == "crash"
    assert (await grandchild.exec("x + 1")).value == "2"
    fresh = await copy.fork()  # nothing runs in it: the copy is its files
    assert "NameError" in ((await fresh.exec("x")).error or "")


@both
async def test_long_chains_and_wide_fans(pool: ForkServerPool) -> None:
    session = await pool.open()
    await session.exec("depth = 0")
    last = session
    for _ in range(24):
        last = await last.fork()
        await last.exec("depth += 1")
    assert (await last.exec("depth")).value == "24"
    fan = await asyncio.gather(*(session.fork() for _ in range(24)))
    values = await asyncio.gather(*(s.exec(f"depth + {n}") for n, s in enumerate(fan)))
    assert [value.value for value in values] == [f"{n}" for n in range(24)]


@both
async def test_code_that_breaks_forking_harms_itself_only(pool: ForkServerPool) -> None:
    session, other = await pool.open(), await pool.open()
    await session.exec("import os\nos.register_at_fork(after_in_child=lambda: os._exit(1))")
    with pytest.raises(ForkUnsupported):
        await session.fork()
    assert (await session.exec("1")).status in ("ok", "crash")
    assert (await session.exec("1")).value == "1"
    assert (await other.exec("1")).value == "1"


@both
async def test_a_copy_that_dies_while_its_original_lives_is_named_rightly(
    pool: ForkServerPool,
) -> None:
    """Kills: leaving the copy a child of its original, where the keeper cannot learn its end."""
    session = await pool.open()
    copy = await session.fork()
    result = await copy.exec("import os; os._exit(3)")
    assert (result.status, "exit status 3" in (result.error or "")) == ("crash", True), result
    assert (await session.exec("1 + 1")).value == "2"


@pytest.mark.parametrize("how", BACKENDS[:1])
async def test_copies_that_are_cancelled_cost_later_ones_nothing(pool: ForkServerPool) -> None:
    """A copy that is killed while it asks for its namespaces leaves others their right to ask."""
    session = await pool.open()
    await session.exec("x = 1")
    for number in range(40):
        task = asyncio.create_task(session.fork())
        await asyncio.sleep(number * 0.0002)
        task.cancel()
        for copy in await asyncio.gather(task, return_exceptions=True):
            if not isinstance(copy, BaseException):
                await copy.close()
    copy = await session.fork()
    assert (await copy.exec("x")).value == "1"


GREET_AND_GO = """
import os, socket
from agentrl_sandbox.inside import interpreter
from agentrl_sandbox.inside.frames import encode
def fork(self, request):
    ends, self._fds = interpreter.InterpreterDescriptors(*self._fds), []
    pid = os.fork()
    if pid == 0:
        hello = encode({"nonce": request["nonce"], "hello": True})
        socket.socket(fileno=ends.channel).sendall(hello)
        os._exit(0)
    os.waitpid(pid, 0)
    globals()["held"] = ends
interpreter.CellInterpreter._fork = fork
"""
"""Planted in a session: for its copy greets a process that is gone when the keeper hears of it."""
LOWER_THE_LIMIT = """
import resource
resource.setrlimit(resource.RLIMIT_NPROC, (8, 8))
"""
"""Planted as well: a hard limit, above which the keeper cannot lift a session any more."""


@both
@pytest.mark.parametrize(
    "planted",
    [pytest.param(GREET_AND_GO, id="greet-and-go"), pytest.param(LOWER_THE_LIMIT, id="lower")],
)
async def test_what_is_planted_in_a_session_does_not_end_its_relatives(
    how: SandboxSettings, planted: str
) -> None:
    """Kills: holding a copy by its number alone, a keeper that ends with a refused call."""
    async with opened(replace(how, after_timeout="restore")) as pool:
        session = await pool.open()
        await session.exec("kept = 'kept'")
        relatives = [await session.fork() for _ in range(3)]
        assert (await session.exec(planted)).ok
        for _ in range(2):
            assert (await session.exec("1")).value == "1"
        assert (await session.exec("import os; os._exit(3)")).status == "crash"
        with suppress(ForkUnsupported):
            relatives.append(await relatives[0].fork())
        with suppress(ForkUnsupported):
            await session.fork()
        assert [(await one.exec("kept")).value for one in relatives] == ["'kept'"] * len(relatives)


GREET_TWICE = """
import os, socket, time
from agentrl_sandbox.inside import interpreter
from agentrl_sandbox.inside.frames import encode
def fork(self, request):
    ends, self._fds = interpreter.InterpreterDescriptors(*self._fds), []
    if os.fork() == 0:
        with socket.socket(fileno=ends.channel) as channel:
            channel.sendall(encode({"nonce": request["nonce"], "hello": True}))
            time.sleep(0.3)
            channel.sendall(encode({"nonce": "another"}))
            time.sleep(0.3)
        os._exit(0)
    globals()["held"] = ends
interpreter.CellInterpreter._fork = fork
"""
"""Planted in a session: its copy greets, and what it says next is no greeting."""


@both
async def test_a_copy_that_speaks_out_of_turn_is_none(how: SandboxSettings) -> None:
    """Kills: what the host hears of a copy before it is one being told as a fault of the pool."""
    async with opened(how) as pool:
        session = await pool.open()
        assert (await session.exec(GREET_TWICE)).ok
        with pytest.raises(ForkUnsupported, match="cannot be forked now"):
            await session.fork()
        assert (await (await pool.open()).exec("6 * 7")).value == "42"
