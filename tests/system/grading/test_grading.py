"""Isolated grading: what counts as equal, what is collected, and what no graded program can do.

Every attack runs in real sessions against an answer nobody can guess. The search for that answer is
first seen to find it where it is planted.

Mutants seen to fail here: types not compared, Python's own equality, lengths and keys not compared,
NaN read, what is wanted written into the session or into its cell, one session for all tests, the
status ignored, timeouts not counted, each limit of collecting left out, a pattern that skips a
directory, one that is matched by recursion, digests not checked, a verdict that names more or comes
from a program that failed, and artefacts placed beside the verdict.
"""

import json
import math
import os
import pickle
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError, EnvError, SandboxError
from agentrl.grading import (
    ArtefactChecker,
    ArtefactFile,
    ArtefactLimits,
    ArtefactSet,
    CallTest,
    GradeReport,
    OpenSession,
    TestResult,
    collect,
    grade_calls,
    judge_with,
    same,
)
from agentrl.grading.artefacts import REFUSED_MAX
from agentrl.grading.equality import read_json
from agentrl.grading.grade import ERROR_CHARACTERS
from agentrl.sandbox import ExecResult, Limits, SandboxSettings
from agentrl.testing import InMemorySandboxPool
from agentrl_sandbox import ForkServerPool
from tests.support.watchdog import watched

LIMITS = Limits(
    wall_s=20.0,
    cpu_s=1.0,
    memory_bytes=192 * 2**20,
    processes=8,
    file_bytes=2**20,
    disk_bytes=8 * 2**20,
    output_bytes=1000,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture
async def pool() -> AsyncIterator[ForkServerPool]:
    opened = ForkServerPool(SandboxSettings(limits=LIMITS))
    yield opened
    await opened.close()


@pytest.fixture
def fresh(pool: ForkServerPool) -> OpenSession:
    return pool.open


def program(source: str, **others: str) -> ArtefactSet:
    files = {"solution.py": source, **others}
    return ArtefactSet(
        files=tuple(ArtefactFile(path, files[path].encode()) for path in sorted(files))
    )


def pwned() -> bool:
    """Whether an attack that ran on the host left its mark."""
    return os.path.exists("/tmp/agentrl-pwned")


def secret_test() -> CallTest:
    return CallTest(id="secret", arguments=(3,), wanted=f"SECRET-{secrets.token_hex(16)}")


# What is equal.


@pytest.mark.parametrize(
    ("wanted", "got", "equal"),
    [
        (1, 1, True),
        (1, True, False),
        (True, 1, False),
        (0, False, False),
        (1, 1.0, False),
        (1.0, 1, False),
        (1.0, 1.0 + 1e-10, True),
        (1.0, 1.0 + 1e-8, False),
        (1e20, 1e20 * (1 + 1e-10), True),
        (0.0, 1e-10, True),
        (math.nan, math.nan, False),
        ("1", 1, False),
        ("a", "a", True),
        (None, None, True),
        (None, False, False),
        ([], None, False),
        ([1, [2, "x"]], [1, [2, "x"]], True),
        ([1, 2], [1, 2, 3], False),
        ([1, 2, 3], [1, 2], False),
        ([True], [1], False),
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({}, [], False),
    ],
)
def test_same(wanted: object, got: object, equal: bool) -> None:
    assert same(wanted, got) is equal


@given(JSON)
def test_a_value_equals_itself_after_crossing(value: Any) -> None:
    assert same(value, json.loads(json.dumps(value)))


@given(JSON, JSON)
def test_equality_is_symmetric_and_never_looser_than_pythons(one: Any, other: Any) -> None:
    equal = same(one, other, tolerance=0.0)
    assert equal == same(other, one, tolerance=0.0)
    assert not equal or one == other


def test_an_object_that_equals_everything_equals_nothing() -> None:
    class Everything:
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    class Text(str):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = str.__hash__

    assert not same("x", Everything())
    assert not same(Everything(), Everything())
    assert not same("x", Text("y"))


@pytest.mark.parametrize(
    "data",
    [
        *(b"NaN", b"[Infinity]", b"-Infinity", b"", b"{", b"\xff\xfe\x00", b"1" * 5000),
        *(b"[" * 10**5, b'"' + b"x" * 200_000 + b'"'),
    ],
)
def test_what_is_no_value(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_json(data, limit_bytes=150_000)


@pytest.mark.parametrize("value", [{1: 2}, float("nan"), object(), {1, 2}, b"x"])
def test_a_test_that_cannot_cross_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="what test 't' wants"):
        CallTest(id="t", arguments=(), wanted=value)
    with pytest.raises(ValueError, match="the arguments of test 't'"):
        CallTest(id="t", arguments=([value],), wanted=0)


# What a grade is.


def test_a_grade_is_data_and_no_clock_is_in_it() -> None:
    fast = TestResult(id="a", status="ok", seconds=0.1)
    assert fast == TestResult(id="a", status="ok", seconds=9.9)
    failed = TestResult(id="b", status="wrong", error="x" * 1000)
    assert len(failed.error) == ERROR_CHARACTERS
    grade = GradeReport(tests=(fast, failed), artefacts=program("x = 1").manifest())
    assert grade.score == 0.5
    record = json.loads(json.dumps(grade.to_json()))
    assert record["score"] == 0.5
    assert [test["passed"] for test in record["tests"]] == [True, False]
    assert record["artefacts"]["files"][0]["path"] == "solution.py"
    assert record["artefacts"]["files"][0]["size_bytes"] == 5


def test_a_grade_needs_tests_with_ids_of_their_own() -> None:
    one = TestResult(id="a", status="ok")
    for tests in ((), (one, one)):
        with pytest.raises(ValueError, match="distinct ids"):
            GradeReport(tests=tests, artefacts={})


@given(st.lists(st.binary(max_size=50), max_size=4))
def test_artefacts_come_back_from_a_directory(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("store")
    files = tuple(ArtefactFile(f"out/{at}.bin", data) for at, data in enumerate(contents))
    kept = ArtefactSet(files=files, refused={"link": "links are not followed"})
    manifest = kept.store(folder)
    assert ArtefactSet.load(manifest) == kept
    assert len(list((folder / "objects").iterdir())) == len(set(contents))
    assert kept.store(folder) == manifest


def test_damaged_artefacts_are_refused(tmp_path: Path) -> None:
    manifest = program("def solve(): return 1").store(tmp_path)
    (blob,) = (tmp_path / "objects").iterdir()
    blob.write_bytes(b"def solve(): return 2")
    with pytest.raises(ValueError, match="is damaged"):
        ArtefactSet.load(manifest)


# What is collected.


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", "a//b", "./a", "a\0b"])
async def test_a_declaration_stays_below_the_directory(path: str) -> None:
    session = await InMemorySandboxPool({}).open()
    with pytest.raises(ConfigError, match="declare a relative path"):
        await collect(session, [path])


async def test_what_is_not_there_is_left_out() -> None:
    session = await InMemorySandboxPool({}).open()
    await session.write("solution.py", b"x")
    await session.write("big", b"x" * 11)
    found = await collect(session, ["solution.py", "nothing", "big"], limits=limits(file_bytes=10))
    assert [file.path for file in found.files] == ["solution.py"]
    assert found.refused == {"big": "11 bytes, over 10 for one file"}
    assert found.get("big") is None


def limits(**changed: int) -> ArtefactLimits:
    return ArtefactLimits(**changed)


@watched
async def test_counts_and_sums_are_capped() -> None:
    session = await InMemorySandboxPool({}).open()
    for name in "abcd":
        await session.write(name, b"1234")
    found = await collect(session, list("abcd"), limits=limits(total_bytes=10))
    assert [file.path for file in found.files] == ["a", "b"]
    assert set(found.refused) == {"c", "d"}
    found = await collect(session, list("abcd"), limits=limits(files=3))
    assert set(found.refused) == {"d"}


async def test_a_lost_session_is_no_missing_file() -> None:
    session = await InMemorySandboxPool({}).open()
    await session.close()
    with pytest.raises(SandboxError):
        await collect(session, ["solution.py"])


HOSTILE_DIRECTORY = """
import os
os.makedirs('out/deep/er')
for path in ('out/a.json', 'out/deep/b.json', 'out/deep/er/c.json', 'out/d.txt', 'e.json'):
    open(path, 'w').write(path)
os.symlink('/etc/passwd', 'out/link.json')
os.symlink('/usr', 'out/usr')
os.mkdir('out/folder.json')
os.mkfifo('out/pipe.json')
"""


@pytest.mark.namespaces
async def test_patterns_take_regular_files_only(fresh: OpenSession) -> None:
    session = await fresh()
    assert (await session.exec(HOSTILE_DIRECTORY)).ok
    flat = await collect(session, ["out/*.json"])
    assert [file.path for file in flat.files] == ["out/a.json"]
    assert set(flat.refused) == {"out/link.json", "out/pipe.json"}
    deep = await collect(session, ["**/*.json"])
    paths = ["e.json", "out/a.json", "out/deep/b.json", "out/deep/er/c.json"]
    assert [file.path for file in deep.files] == paths
    assert all(file.data.decode() == file.path for file in deep.files)
    assert [file.path for file in (await collect(session, ["out/deep/**"])).files] == paths[2:]
    few = await collect(session, ["**/*.json"], limits=limits(entries=2))
    assert few.refused


async def test_directories_of_any_depth_do_not_end_the_collection() -> None:
    """An agent that made some would choose whether its episode has a reward."""
    session = await InMemorySandboxPool({}).open()
    deepest = "a/" * 1500 + "b.py"
    await session.write(deepest, b"1")
    await session.write("c.py", b"2")
    found = await collect(session, ["**/*.py"])
    assert [file.path for file in found.files] == [deepest, "c.py"]


ODD_NAMES = r"""
import os
os.mkdir('out')
os.chdir('out')
for number in range(12_000):
    os.close(os.open(b'\xff' * 240 + b'%d' % number, os.O_CREAT | os.O_WRONLY))
open('zz', 'w').write('kept')
"""


@pytest.mark.namespaces
@watched
async def test_names_of_any_bytes_and_number_cost_neither_the_session_nor_the_collection(
    fresh: OpenSession,
) -> None:
    """Kills: all names in one frame, which ended the keeper and raised here."""
    session = await fresh()
    assert (await session.exec(ODD_NAMES)).ok
    entries = await session.entries("out")
    assert len(entries) == 12_001
    assert sorted(entry.name for entry in entries) == [entry.name for entry in entries]
    found = await collect(session, ["out/*"])
    assert len(found.refused) == REFUSED_MAX + 1
    assert len(found.digest) == 64
    assert [file.path for file in (await collect(session, ["out/zz"])).files] == ["out/zz"]


@pytest.mark.namespaces
async def test_files_that_are_listed_as_too_large_are_refused_unread(fresh: OpenSession) -> None:
    """Sparse files are made at once, and reading thousands of them takes the trainer minutes."""
    session = await fresh()
    code = "import os\nopen('big', 'w').truncate(2**20)\nos.utime('big', ns=(1, 2))"
    assert (await session.exec(code)).ok
    found = await collect(session, ["*"], limits=limits(file_bytes=2**10))
    assert found.refused == {"big": f"{2**20} bytes, over 1024 for one file"}
    read_ns = "os.stat('big').st_atime_ns"
    assert (await session.exec(read_ns)).value == "1"
    assert not (await collect(session, ["*"])).refused
    assert (await session.exec(read_ns)).value != "1"


# What a graded program cannot do.


GOOD = "def solve(x):\n    return x * x\n"
SQUARES = [CallTest(id=f"n{n}", arguments=(n,), wanted=n * n) for n in (0, 3, -7)]


@pytest.mark.namespaces
async def test_the_right_program_passes(fresh: OpenSession) -> None:
    grade = await grade_calls(program(GOOD), SQUARES, open_session=fresh)
    assert grade.score == 1.0, grade
    half = await grade_calls(program("def solve(x): return 9"), SQUARES, open_session=fresh)
    assert [test.status for test in half.tests] == ["wrong", "ok", "wrong"]
    assert half.tests[0].error == "returned 9"


@pytest.mark.namespaces
async def test_a_program_may_have_modules_of_its_own(fresh: OpenSession) -> None:
    source = "from lib.square import square\ndef solve(x): return square(x)"
    module = {"lib/__init__.py": "", "lib/square.py": "def square(x): return x * x"}
    grade = await grade_calls(program(source, **module), SQUARES, open_session=fresh)
    assert grade.score == 1.0, grade


SEARCH = """
import builtins, gc, json, os, re, sys
KNOWN = re.compile('SECRET-[0-9a-f]{32}')
def texts():
    frame = sys._getframe()
    while frame is not None:
        yield repr(frame.f_locals); yield repr(frame.f_globals); yield repr(frame.f_code.co_consts)
        frame = frame.f_back
    for thing in gc.get_objects():
        try: yield repr(thing)[:10**6]
        except BaseException: pass
    yield repr(dict(os.environ)); yield repr(sys.argv)
    for top in ('/home/agent', '/tmp', '/run', '/dev/shm', '/proc', '.'):
        for folder, _, names in os.walk(top):
            for name in names:
                if '/proc/' in folder and name not in ('cmdline', 'environ'): continue
                path = os.path.join(folder, name)
                if os.path.isfile(path) and os.path.getsize(path) < 10**6:
                    try: yield open(path, errors='replace').read(10**6)
                    except OSError: pass
def solve(*arguments):
    for text in texts():
        found = KNOWN.search(text)
        if found: return found[0]
    return 'nothing'
"""

ATTACKS = {
    "exit before the tests": "import sys; sys.exit(0)",
    "exit in the call": "import sys\ndef solve(x): sys.exit(0)",
    "leave at once": "import os; os._exit(0)",
    "leave in the call": "import os\ndef solve(x): os._exit(0)",
    "say so": "print('ALL TESTS PASSED\\n1 passed\\n{\"score\": 1.0}')",
    "say so in the call": "def solve(x):\n    print('SECRET ok, passed')\n    return None",
    "raise success": "class Success(Exception): pass\nraise Success('passed')",
    "assertions are off": """
import builtins, json, sys, unittest
builtins.AssertionError = None
unittest.TestCase.assertEqual = lambda *a: None
json.dump = lambda value, file: file.write('true')
json.loads = lambda text: [1]
def solve(x): return x
""",
    "everything is equal": """
class Any:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
def solve(x): return Any()
""",
    "text that equals everything": """
class Text(str):
    def __eq__(self, other): return True
    __hash__ = str.__hash__
def solve(x): return Text('SECRET')
""",
    "a pickle": """
import os
class Bomb:
    def __reduce__(self): return (os.mkdir, ('/tmp/agentrl-pwned',))
def solve(x): return Bomb()
""",
    "search everything": SEARCH,
    "write the result and leave": """
import os
def solve(x):
    for name in ('.agentrl-result.json', 'verdict.json', 'reward.txt', 'result.json'):
        open(name, 'w').write('{"score": 1.0, "passed": true}')
    os._exit(0)
""",
    "a link for a result": """
import os
def solve(x):
    os.symlink('/etc/passwd', '.agentrl-result.json'); os._exit(0)
""",
    "a pipe for a result": """
import json, os
def dump(value, file):
    os.remove('.agentrl-result.json'); os.mkfifo('.agentrl-result.json')
json.dump = dump
def solve(x): return 'x'
""",
    "a link after the result": """
import json, os
def dump(value, file):
    os.remove('.agentrl-result.json'); os.symlink('/etc/hostname', '.agentrl-result.json')
json.dump = dump
def solve(x): return 'x'
""",
    "output without end": "while True: print('PASSED ' * 10**5)",
    "work without end": "def solve(x):\n    while True: pass",
    "memory without end": "def solve(x):\n    s = [0]\n    while True: s = s + s",
    "processes without end": "import os\ndef solve(x):\n    while True: os.fork()",
    "kill all": "import os\ndef solve(x):\n    os.kill(-1, 9); return 'killed'",
    "a crash": "import ctypes\ndef solve(x): return ctypes.string_at(0)",
    "nesting": "def solve(x):\n    v = []\n    for _ in range(10**5): v = [v]\n    return v",
    "nesting by hand": """
import json
json.dump = lambda value, file: file.write('[' * 10**5)
def solve(x): return 1
""",
    "a huge value": "def solve(x): return 'x' * 900_000",
    "not a number": "def solve(x): return float('nan')",
    "threads that go on": """
import threading, time
def work():
    while True:
        try: open('.agentrl-result.json', 'w').write('"SECRET"')
        except BaseException: pass
        time.sleep(0.0001)
for _ in range(3): threading.Thread(target=work, daemon=True).start()
def solve(x): return 'SECRET'
""",
    "nothing there": "",
    "no Python": "\x00\xff ((",
}


@pytest.mark.namespaces
@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_earns_nothing(name: str, fresh: OpenSession) -> None:
    grade = await grade_calls(program(ATTACKS[name]), [secret_test()], open_session=fresh)
    (test,) = grade.tests
    assert grade.score == 0.0, test
    assert not pwned()
    # And the sandbox that it ran in serves the next grading.
    assert (await grade_calls(program(GOOD), SQUARES, open_session=fresh)).score == 1.0


@pytest.mark.namespaces
async def test_the_search_finds_what_is_there_to_find(fresh: OpenSession) -> None:
    test = secret_test()
    planted = program(SEARCH, **{"tests/expected.txt": test.wanted})
    assert (await grade_calls(planted, [test], open_session=fresh)).score == 1.0
    told = CallTest(id="told", arguments=(test.wanted,), wanted=test.wanted)
    assert (await grade_calls(program(SEARCH), [told], open_session=fresh)).score == 1.0


STARTUP = {
    "sitecustomize.py": "open('ran', 'w').write('x')\nimport builtins\nbuiltins.len = lambda x: 7",
    "usercustomize.py": "open('ran', 'w').write('x')",
    "conftest.py": "open('ran', 'w').write('x')",
    "evil.pth": "import os; open('ran', 'w').write('x')",
    "json.py": "dump = lambda value, file: file.write('\"hidden\"')",
    "pytest.ini": "[pytest]\naddopts = --collect-only",
}


@pytest.mark.namespaces
async def test_files_that_run_at_startup_elsewhere_do_not_run_here(fresh: OpenSession) -> None:
    source = "import os\ndef solve(x): return [os.path.exists('ran'), len('abc')]"
    wanted = [CallTest(id="clean", arguments=(1,), wanted=[False, 3])]
    grade = await grade_calls(program(source, **STARTUP), wanted, open_session=fresh)
    assert grade.score == 1.0, grade


@pytest.mark.namespaces
async def test_one_test_leaves_nothing_for_the_next(fresh: OpenSession) -> None:
    source = """
import builtins, os, sys
def solve(x):
    seen = [name for name in os.listdir('.') if name.startswith('left')]
    seen += [name for name in vars(builtins) if name.startswith('left')]
    open(f'left-{x}', 'w').write(str(x))
    setattr(builtins, f'left_{x}', x)
    return seen
"""
    tests = [CallTest(id=str(n), arguments=(n,), wanted=[]) for n in range(4)]
    grade = await grade_calls(program(source), tests, open_session=fresh)
    assert grade.score == 1.0, grade


@pytest.mark.namespaces
async def test_an_episode_cannot_reach_its_grading(fresh: OpenSession) -> None:
    """What the episode's interpreter was turned into stays behind with it."""
    episode = await fresh()
    await episode.write("solution.py", GOOD.replace("x * x", "abs(x)").encode())
    changed = "import builtins, json\nbuiltins.abs = lambda x: 49\njson.dump = None"
    assert (await episode.exec(changed)).ok
    artefacts = await collect(episode, ["solution.py"])
    tests = [CallTest(id="n", arguments=(-7,), wanted=7)]
    assert (await grade_calls(artefacts, tests, open_session=fresh)).score == 1.0


# Statuses, and what is nobody's grade.


@pytest.mark.namespaces
async def test_failures_of_the_program_are_failed_tests(fresh: OpenSession) -> None:
    cases = {
        "def solve(x): return 1 / 0": "error",
        "import os\ndef solve(x): os._exit(3)": "crash",
        "def solve(x): return bytearray(2**40)": "oom",
        "def solve(): return 1": "error",
        "x = 1": "error",
        "def solve(x): return {1: 2}": "error",
    }
    for source, status in cases.items():
        grade = await grade_calls(program(source), SQUARES[:1], open_session=fresh)
        assert [test.status for test in grade.tests] == [status], (source, grade)
        assert grade.tests[0].error


@pytest.mark.namespaces
async def test_limits_that_take_no_time_do_not_end_the_tests(fresh: OpenSession) -> None:
    """Kills: every limit counted as time that ran out."""
    source = "def solve(n):\n    if n < 3:\n        raise OSError(24, 'files')\n    return n"
    tests = [CallTest(id=str(n), arguments=(n,), wanted=n) for n in range(5)]
    grade = await grade_calls(program(source), tests, open_session=fresh)
    assert [test.status for test in grade.tests] == ["limit", "limit", "limit", "ok", "ok"]


async def test_after_two_timeouts_the_rest_is_not_run(fresh: OpenSession) -> None:
    source = "import time\ndef solve(x):\n    time.sleep(60 if x else 0)\n    return x * x"
    tests = [CallTest(id=f"t{n}", arguments=(n,), wanted=n * n) for n in (0, 1, 2, 3, 0 - 1)]
    grade = await grade_calls(program(source), tests, open_session=fresh, timeout_s=3.0)
    statuses = [test.status for test in grade.tests]
    assert statuses == ["ok", "timeout", "timeout", "skipped", "skipped"]
    assert grade.score == 0.2
    source = "def solve(x):\n    while x:\n        pass\n    return 0"
    grade = await grade_calls(program(source), tests, open_session=fresh, timeout_s=15.0)
    assert [test.status for test in grade.tests] == ["ok", "limit", "limit", "skipped", "skipped"]


async def test_no_artefact_no_session() -> None:
    pool = InMemorySandboxPool({})
    grade = await grade_calls(ArtefactSet(), SQUARES, open_session=pool.open)
    assert (grade.score, pool.sessions) == (0.0, [])
    assert grade.tests[0].error == "solution.py: the file does not exist"
    refused = ArtefactSet(refused={"solution.py": "it is a link"})
    grade = await grade_calls(refused, SQUARES, open_session=pool.open)
    assert grade.tests[0].error == "solution.py: it is a link"


async def test_a_broken_sandbox_is_nobodys_grade() -> None:
    pool = InMemorySandboxPool({})
    await pool.close()
    with pytest.raises(SandboxError):
        await grade_calls(program(GOOD), SQUARES, open_session=pool.open)


async def test_sessions_are_closed_when_grading_breaks() -> None:
    pool = InMemorySandboxPool({})

    async def broken() -> Any:
        session = await pool.open()
        session.write = fail  # type: ignore[method-assign]
        return session

    async def fail(path: str, data: bytes) -> None:
        raise SandboxError(f"the sandbox is gone, {path} of {len(data)} bytes with it")

    with pytest.raises(SandboxError):
        await grade_calls(program(GOOD), SQUARES, open_session=broken)
    assert [session.closed for session in pool.sessions] == [True]


async def test_nothing_to_grade_by_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="at least one CallTest"):
        await grade_calls(program(GOOD), [], open_session=InMemorySandboxPool({}).open)


@pytest.mark.namespaces
async def test_grading_again_gives_the_same_grade(fresh: OpenSession, tmp_path: Path) -> None:
    source = "def solve(x):\n    if x < 0: raise ValueError(x)\n    return x + x"
    artefacts = program(source)
    first = await grade_calls(artefacts, SQUARES, open_session=fresh)
    stored = ArtefactSet.load(artefacts.store(tmp_path))
    assert await grade_calls(stored, SQUARES, open_session=fresh) == first


# A checker's own program.


COUNT = ArtefactChecker(
    program="""
import json
rows = open('artefacts/report.csv').read().split()
hidden = open('checker/rows.txt').read().split()
right, short = rows == hidden, len(rows) < 9
verdict = {'rows': '' if right else f'{len(rows)} rows', 'short': '' if short else 'too long'}
json.dump(verdict, open('verdict.json', 'w'))
""",
    tests=("rows", "short"),
    files={"rows.txt": b"a\nb\nc\n"},
)


def report(text: bytes, **others: bytes) -> ArtefactSet:
    files = {"report.csv": text, **others}
    return ArtefactSet(files=tuple(ArtefactFile(path, files[path]) for path in sorted(files)))


@pytest.mark.namespaces
async def test_a_checkers_program_judges_files(fresh: OpenSession) -> None:
    good = await judge_with(COUNT, report(b"a b c"), open_session=fresh)
    assert good.score == 1.0
    bad = await judge_with(COUNT, report(b"a b"), open_session=fresh)
    assert (bad.score, bad.tests[0].error, bad.tests[1].passed) == (0.5, "2 rows", True)


@pytest.mark.namespaces
async def test_planted_files_do_not_reach_the_checker(fresh: OpenSession) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (os.mkdir, ("/tmp/agentrl-pwned",))

    planted = report(
        b"a b",
        **{
            "verdict.json": b'{"rows": "", "short": ""}',
            "json.py": b'def dump(verdict, file): file.write(\'{"rows": "", "short": ""}\')',
            "sitecustomize.py": b"import os; os._exit(0)",
            "model.pkl": pickle.dumps(Bomb()),
        },
    )
    assert (await judge_with(COUNT, planted, open_session=fresh)).score == 0.5
    assert not pwned()


@pytest.mark.namespaces
@pytest.mark.parametrize(
    "ending",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "print('passed')",
        "1 / 0",
        "open('verdict.json', 'w').write('{}')",
        'open("verdict.json", "w").write(\'{"rows": "", "short": ""}\'); 1 / 0',
        "open('verdict.json', 'w').write('[true, true]')",
        'open("verdict.json", "w").write(\'{"rows": "", "short": "", "more": ""}\')',
        'open("verdict.json", "w").write(\'{"rows": true, "short": ""}\')',
    ],
)
@watched
async def test_only_a_whole_verdict_counts(ending: str, fresh: OpenSession) -> None:
    broken = ArtefactChecker(program=ending, tests=COUNT.tests)
    with pytest.raises(EnvError, match="the checker's"):
        await judge_with(broken, report(b"a"), open_session=fresh)


@pytest.mark.namespaces
async def test_artefacts_that_do_not_fit_in_the_checkers_session_pass_nothing(
    fresh: OpenSession,
) -> None:
    """Kills: an `OSError` in the trainer, for directories as deep as an episode may have them."""
    deep = report(b"a b c", **{"d/" * 255 + "f": b""})
    grade = await judge_with(COUNT, deep, open_session=fresh)
    assert [(test.id, test.status) for test in grade.tests] == [
        ("rows", "missing"),
        ("short", "missing"),
    ]
    assert "do not fit in the checker's session" in grade.tests[0].error
    wide = ArtefactChecker(program=COUNT.program, tests=COUNT.tests, files={"../x": b""})
    with pytest.raises(EnvError, match=r"the checker's files .* '?checker/\.\./x"):
        await judge_with(wide, report(b"a"), open_session=fresh)


async def test_a_checker_without_a_sandbox_is_nobodys_grade() -> None:
    pool = InMemorySandboxPool({COUNT.program: ExecResult(status="ok")})
    with pytest.raises(EnvError, match=r"wrote no verdict\.json"):
        await judge_with(COUNT, report(b"a"), open_session=pool.open)
    assert pool.sessions[0].files.keys() == {"checker/rows.txt", "artefacts/report.csv"}
    assert pool.sessions[0].closed
    await pool.close()
    with pytest.raises(SandboxError):
        await judge_with(COUNT, report(b"a"), open_session=pool.open)
