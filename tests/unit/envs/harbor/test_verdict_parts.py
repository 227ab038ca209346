"""Tampering, artefacts and the oracle's plan: rules without a container.

Mutants seen caught: `/usr` not watched, shadowing programs let through, folders taken for files,
the entry point not watched, a package beside a module let through, bytecode kept, folders on the
way to programs not watched, folders in the place of programs let through, the order of musl not
kept, entry points of other Pythons listed, links out of an artefact, set-id bits kept, a script's
flags dropped.
"""

import io
import tarfile
from pathlib import Path

import pytest

from agentrl.env import call, say
from agentrl.errors import ConfigError
from agentrl.message import Message
from agentrl.sandbox_provider import ChangeKind, FileChange
from agentrl_envs.harbor.archives import clean_artifact, pack_folders, pack_tree
from agentrl_envs.harbor.oracle import plan_oracle, play_oracle
from agentrl_envs.harbor.tampering import (
    find_tampering,
    list_caches,
    list_entry_points,
    list_hidden,
)
from agentrl_envs.harbor.task_folder import read_task
from agentrl_sandbox.provider.content import compute_digest, read_file
from tests.support.harbor_tasks import TOML, write_task


@pytest.mark.parametrize(
    ("path", "kind", "tampered"),
    [
        ("/usr/bin/cmp", "modified", True),
        ("/usr/bin/cmp", "deleted", True),
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", "modified", True),
        ("/lib64/ld-linux-x86-64.so.2", "modified", True),
        ("/usr/bin/jq", "added", False),
        ("/usr/lib/python3/dist-packages/numpy/core.py", "added", False),
        ("/usr/local/bin/cmp", "added", True),
        ("/usr/local/bin/report", "added", False),
        ("/usr/local/bin/python3", "modified", True),
        ("/usr/local/lib/python3.11/csv.py", "deleted", True),
        ("/opt/venv/bin/pytest", "modified", True),
        ("/opt/venv/lib/python3.11/site-packages/pytest/__init__.py", "modified", True),
        ("/opt/data/table", "modified", False),
        ("/app/tools/bin/make", "modified", False),
        ("/app/tools/lib/make.so", "modified", False),
        ("/usr/lib/python311.zip", "added", True),
        ("/usr/local/lib/python3.11/__pycache__/csv.cpython-311.pyc", "modified", False),
        ("/etc/ld.so.preload", "added", True),
        ("/usr/lib/python3/dist-packages/sitecustomize.py", "added", True),
        ("/usr/local/lib/python3.11/dist-packages/x.pth", "added", True),
        ("/app/x.pth", "added", False),
        ("/entry.sh", "modified", True),
        ("/app/bin/cmp", "modified", False),
        ("/usr/binary", "modified", False),
    ],
)
def test_what_prepares_a_verdict(path: str, kind: ChangeKind, tampered: bool) -> None:
    found = find_tampering(
        [FileChange(path, kind)],
        hiding=["/usr/local/bin/cmp"],
        watched=["/entry.sh"],
        search_path=["/opt/venv/bin", "/app/tools/bin"],
        workdir="/app",
    )
    assert found == ((path,) if tampered else ())


SITE = "lib/python3.11/site-packages/distutils-precedence.pth"


@pytest.mark.parametrize(
    ("root", "parts", "tampered"),
    [
        ("/app/v", ["pyvenv.cfg", "bin/python3"], False),
        ("/opt/mine", ["pyvenv.cfg", "bin/python"], False),
        ("/app/v", ["pyvenv.cfg"], True),
        ("/app/v", ["bin/python3"], True),
        ("/app/v/other", [], True),
        ("/root/.local", ["pyvenv.cfg", "bin/python3"], True),
        ("/usr/local", ["pyvenv.cfg", "bin/python3"], True),
        ("/opt/venv", ["pyvenv.cfg", "bin/python3"], True),
    ],
)
def test_a_new_virtual_environment_may_have_what_its_own_python_runs(
    root: str, parts: list[str], tampered: bool
) -> None:
    """Kills: `python -m venv` taken for tampering, and files of the image's Pythons let pass."""
    paths = [f"{root}/{part}" for part in [*parts, SITE]]
    changes = [FileChange(path, "added") for path in paths]
    found = find_tampering(changes, search_path=["/opt/venv/bin"], workdir="/app")
    assert found == ((paths[-1],) if tampered else ())


@pytest.mark.parametrize(
    ("path", "hidden"),
    [
        ("/usr/local/bin/cmp", "/usr/bin/cmp"),
        ("/usr/local/sbin/cmp", "/usr/bin/cmp"),
        ("/opt/venv/bin/cmp", "/usr/bin/cmp"),
        ("/usr/bin/cmp", None),
        ("/opt/tools/bin/cmp", None),
        ("/usr/lib/python3.11/csv/__init__.py", "/usr/lib/python3.11/csv.py"),
        ("/usr/lib/python3.11/csv.cpython-311-x86_64-linux-gnu.so", "/usr/lib/python3.11/csv.py"),
        (
            "/usr/lib/python3.11/json/__init__.cpython-311-x86_64-linux-gnu.so",
            "/usr/lib/python3.11/json/__init__.py",
        ),
        (
            "/usr/local/lib/python3.11/site-packages/pytest/__init__.abi3.so",
            "/usr/local/lib/python3.11/site-packages/pytest/__init__.py",
        ),
        (
            "/opt/venv/lib/python3.11/site-packages/x/_rust.cpython-311-x86_64-linux-gnu.so",
            "/opt/venv/lib/python3.11/site-packages/x/_rust.abi3.so",
        ),
        (
            "/usr/lib/python3.11/lib-dynload/_csv/__init__.py",
            "/usr/lib/python3.11/lib-dynload/_csv.cpython-311-x86_64-linux-gnu.so",
        ),
        (
            "/usr/lib/python3.11/_csv.py",
            "/usr/lib/python3.11/lib-dynload/_csv.cpython-311-x86_64-linux-gnu.so",
        ),
        ("/usr/lib/python3.11/pytest.py", "/usr/lib/python3/dist-packages/pytest/__init__.py"),
        (
            "/usr/local/lib/python3.11/pytest/__init__.py",
            "/usr/local/lib/python3.11/site-packages/pytest/__init__.py",
        ),
        (
            "/root/.local/lib/python3.11/site-packages/six.py",
            "/usr/lib/python3/dist-packages/six.py",
        ),
        ("/root/.local/lib/python3.11/site-packages/package/six.py", None),
        ("/usr/lib/python3/dist-packages/six.py", None),
        ("/usr/lib/python3.11/csv.txt", None),
        ("/app/csv/__init__.py", None),
        ("/tmp/copy/lib/python3.11/pytest.py", None),
        ("/opt/venv/bin/pyvenv.cfg", "/opt/venv/bin/python3"),
        ("/opt/venv/pyvenv.cfg", "/opt/venv/bin/python3"),
        ("/app/pyvenv.cfg", None),
    ],
)
def test_what_a_new_file_hides(path: str, hidden: str | None) -> None:
    found = list_hidden(path, ["/opt/venv/bin", "/usr/local/bin", "/usr/bin"])
    assert hidden in found if hidden is not None else found == ()
    assert path not in found


def test_a_new_library_hides_another_where_the_loader_is_told() -> None:
    libc = "/usr/lib/x86_64-linux-gnu/libc.so.6"
    assert libc in list_hidden("/opt/x/libc.so.6", is_cached=True)
    assert list_hidden("/opt/x/libc.so.6") == ()
    assert list_hidden(libc, is_cached=True) == ()
    assert list_hidden("/opt/x/libc.txt", is_cached=True) == ()


def test_musl_finds_a_new_library_before_another() -> None:
    places = ("/usr/local/lib", "/usr/lib")
    assert list_hidden("/lib/libz.so.1") == tuple(f"{place}/libz.so.1" for place in places)
    assert list_hidden("/usr/local/lib/libz.so") == ("/usr/lib/libz.so",)
    assert list_hidden("/usr/lib/libz.so") == ()
    assert list_hidden("/lib/libz.txt") == ()
    assert list_hidden("/lib/libz.so.1", has_cache=True) == (), "of another loader"


def test_bytecode_of_libraries_is_listed() -> None:
    paths = [
        "/usr/lib/python3.11/__pycache__/csv.cpython-311.pyc",
        "/opt/venv/lib/python3.11/site-packages/six/__pycache__/six.cpython-311.pyc",
        "/app/__pycache__/main.cpython-311.pyc",
        "/usr/lib/python3.11/csv.pyc",
    ]
    assert list_caches([FileChange(path, "added") for path in paths]) == (*paths[:2],)
    assert list_caches([FileChange(paths[0], "deleted")]) == ()


@pytest.mark.parametrize(
    ("path", "is_listed"),
    [
        ("/usr/local/lib/python3.11/site-packages/x-1.dist-info/entry_points.txt", True),
        ("/usr/lib/python3/dist-packages/x.EGG-INFO/entry_points.txt", True),
        ("/opt/venv/lib/python3.11/site-packages/x-1.dist-info/entry_points.txt", True),
        ("/home/u/.local/lib/python3.11/site-packages/x.egg-info/entry_points.txt", True),
        ("/usr/local/lib/python3.11/site-packages/x-1.dist-info", True),
        ("/usr/local/lib/python3.11/site-packages/x/entry_points.txt", False),
        ("/usr/local/lib/python3.11/site-packages/x-1.dist-info/METADATA", False),
        ("/app/venv/lib/python3.11/site-packages/x-1.dist-info/entry_points.txt", False),
        ("/tmp/venv/lib/python3.11/site-packages/x-1.dist-info/entry_points.txt", False),
    ],
)
def test_entry_points_of_the_images_pythons_are_listed(path: str, is_listed: bool) -> None:
    search_path = ["/opt/venv/bin", "/app/venv/bin"]
    listed = list_entry_points([FileChange(path, "added")], search_path, "/app")
    assert listed == ((path,) if is_listed else ())
    assert list_entry_points([FileChange(path, "deleted")], search_path, "/app") == ()


def test_a_folder_of_entry_points_is_read_by_its_file() -> None:
    folder = "/usr/local/lib/python3.11/site-packages/x-1.dist-info"
    changes = [FileChange(f"{folder}{name}", "added") for name in ("", "/entry_points.txt")]
    assert list_entry_points(changes) == (f"{folder}/entry_points.txt",)


def test_a_folder_is_not_its_content() -> None:
    changes = [
        FileChange("/usr", "modified"),
        FileChange("/usr/bin", "modified"),
        FileChange("/usr/bin/jq", "added"),
    ]
    assert find_tampering(changes) == ()
    assert find_tampering(changes[:2]) == ("/usr/bin",), "its own mode or owner"


@pytest.mark.parametrize("kind", ["modified", "deleted"])
@pytest.mark.parametrize(
    ("path", "tampered"),
    [
        ("/usr/local", True),
        ("/opt", True),
        ("/opt/venv", True),
        ("/usr/share", False),
        ("/opt/data", False),
        ("/app/tools", False),
    ],
)
def test_a_folder_on_the_way_to_programs_is_what_it_was(
    path: str, kind: ChangeKind, tampered: bool
) -> None:
    search_path = ["/opt/venv/bin", "/app/tools/bin"]
    changes = [FileChange("/srv/new", "added"), FileChange(path, kind)]
    tampering = find_tampering(changes, search_path=search_path, workdir="/app")
    assert tampering == ((path,) if tampered else ())
    within = [FileChange(path, "modified"), FileChange(f"{path}/new", "added")]
    assert find_tampering(within, search_path=search_path, workdir="/app") == ()


@pytest.mark.parametrize(
    ("path", "tampered"),
    [
        ("/opt/venv/bin/pytest", True),
        ("/usr/bin/cmp", True),
        ("/usr/local/bin/report", True),
        ("/usr/local/lib/python3.11/csv.py", True),
        ("/usr/lib/x86_64-linux-gnu/libz.so.1", True),
        ("/usr/lib/python3.11/json", False),
        ("/usr/lib/x86_64-linux-gnu", False),
        ("/opt/venv/bin/__pycache__", False),
        ("/opt/tools/bin", False),
        ("/app/tools/bin/make", False),
        ("/app/main.py", False),
    ],
)
def test_a_program_that_is_a_folder_now_is_another_one(path: str, tampered: bool) -> None:
    changes = [FileChange(path, "modified"), FileChange(f"{path}/x", "added")]
    search_path = ["/opt/venv/bin", "/opt/tools", "/opt/tools/bin", "/app/tools/bin"]
    tampering = find_tampering(changes, search_path=search_path, workdir="/app")
    assert tampering == ((path,) if tampered else ())


def archive_of(*members: tuple[str, bytes, str, int]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind, target, mode in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode, member.uid = kind, target, mode, 1000
            content = b"text" if kind == tarfile.REGTYPE else b""
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def test_of_an_artefact_only_what_is_harmless_crosses() -> None:
    archive = archive_of(
        ("out", tarfile.DIRTYPE, "", 0o755),
        ("out/a", tarfile.REGTYPE, "", 0o4755),
        ("out/sub", tarfile.DIRTYPE, "", 0o755),
        ("out/sub/near", tarfile.SYMTYPE, "../a", 0o777),
        ("out/sub/far", tarfile.SYMTYPE, "../../etc", 0o777),
        ("out/root", tarfile.SYMTYPE, "/tests", 0o777),
        ("out/hard", tarfile.LNKTYPE, "out/a", 0o644),
        ("out/device", tarfile.CHRTYPE, "", 0o644),
        ("out/../escape", tarfile.REGTYPE, "", 0o644),
        ("/abs", tarfile.REGTYPE, "", 0o644),
    )
    artifact = clean_artifact(archive, "/srv/x/out")
    assert artifact is not None
    assert artifact.is_folder
    with tarfile.open(fileobj=io.BytesIO(artifact.archive)) as cleaned:
        members = cleaned.getmembers()
    assert [member.name for member in members] == ["out", "out/a", "out/sub", "out/sub/near"]
    assert {member.uid for member in members} == {0}
    assert [member.mode for member in members[:3]] == [0o777, 0o755, 0o755]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_an_artefact_that_is_no_file_does_not_cross(kind: bytes) -> None:
    assert clean_artifact(archive_of(("a.txt", kind, "b", 0o777)), "/out/a.txt") is None
    file = archive_of(("a.txt", tarfile.REGTYPE, "", 0o644))
    artifact = clean_artifact(file, "/out/a.txt")
    assert artifact is not None
    assert not artifact.is_folder
    with tarfile.open(fileobj=io.BytesIO(artifact.archive)) as cleaned:
        assert cleaned.getnames() == ["a.txt"]


def test_a_tree_is_roots_and_its_scripts_run(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "task") / "tests"
    with tarfile.open(fileobj=io.BytesIO(pack_tree(folder, "tests"))) as archive:
        members = {member.name: member for member in archive}
    assert set(members) == {"tests", "tests/test.sh"}
    assert members["tests/test.sh"].mode & 0o111 == 0o111
    assert {member.uid for member in members.values()} == {0}
    with tarfile.open(fileobj=io.BytesIO(pack_folders(["logs"]))) as archive:
        assert [(member.name, member.mode) for member in archive] == [("logs", 0o777)]


def test_only_a_file_is_read_of_an_archive() -> None:
    assert read_file(archive_of(("a", tarfile.REGTYPE, "", 0o644))) == b"text"
    assert read_file(archive_of(("a", tarfile.SYMTYPE, "/etc/passwd", 0o777))) is None
    assert read_file(archive_of(("a", tarfile.DIRTYPE, "", 0o755))) is None


def test_a_digest_is_the_contents_alone(tmp_path: Path) -> None:
    one, other = write_task(tmp_path / "a"), write_task(tmp_path / "b")
    assert compute_digest(one) == compute_digest(other)
    (other / "tests" / "test.sh").chmod(0o755)
    assert compute_digest(one) != compute_digest(other)
    (other / "tests" / "test.sh").chmod(0o644)
    (other / "tests" / "more").touch()
    assert compute_digest(one) != compute_digest(other)


def test_an_oracle_of_one_script_is_a_command(tmp_path: Path) -> None:
    solve = "#!/bin/bash -e\ntouch /done\n"
    task = read_task(write_task(tmp_path / "task", solve=solve))
    action = call("bash", command="set -e\ntouch /done", timeout_s=9.0)
    assert plan_oracle(task, timeout_s=9.0) == (action,)
    seen = [Message("user", "x"), Message("tool", "ok", tool_call_id="1", name="bash")]
    assert play_oracle(task, seen[:1], timeout_s=9.0) == action
    assert play_oracle(task, seen, timeout_s=9.0) == say("The task is done.")


@pytest.mark.parametrize(
    "solve", ["#!/bin/sh\nx\n", "#!/bin/bash\ncat /solution/x\n", "#!/bin/bash\n$0"]
)
def test_any_other_is_run_where_it_belongs(solve: str, tmp_path: Path) -> None:
    toml = TOML + '[solution.env]\nA = "b c"\n'
    task = read_task(write_task(tmp_path / "task", solve=solve, toml=toml))
    write, run = plan_oracle(task, timeout_s=9.0)
    assert write == call("write_file", path="/solution/solve.sh", content=solve)
    command = run.tool_calls[0].arguments["command"]
    assert "export A='b c'\n" in command
    assert command.endswith("/solution/solve.sh")


def test_a_task_without_an_oracle_says_so(tmp_path: Path) -> None:
    task = read_task(write_task(tmp_path / "task", solve=None))
    with pytest.raises(ConfigError, match=r"solve.sh is missing: the task has no oracle"):
        plan_oracle(task, timeout_s=1)
    folder = write_task(tmp_path / "other")
    (folder / "solution" / "data.bin").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"data.bin is no text"):
        plan_oracle(read_task(folder), timeout_s=1)
