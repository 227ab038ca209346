"""Task folders: what is read of them, and what is refused with file and key.

Mutants seen caught: GPUs not refused, a network without the key, links that lead out of a task,
`allow_internet` ignored, endless times taken, what the system refuses not caught, links followed.
"""

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ConfigError
from agentrl_envs.harbor import HarborEnv, inspect_harbor
from agentrl_envs.harbor.settings import decide_limits, decide_networks
from agentrl_envs.harbor.task_config import EnvironmentSection, parse_size_mb, parse_task_config
from agentrl_envs.harbor.task_folder import find_tasks, read_task, resolve_env, strip_canary
from tests.support.harbor_features import FEATURES, REFUSED
from tests.support.harbor_tasks import TOML, write_task

FULL = """
version = "1.0"
artifacts = ["/app/out", {source = "/app/b", destination = "b"}]
unknown = 3
[task]
name = "org/full"
[metadata]
difficulty = "easy"
[agent]
timeout_sec = 120
user = 1000
[verifier]
timeout_sec = 30.5
env = {KEY = "${KEY:-none}"}
user = "checker"
[environment]
docker_image = "some:image"
memory = "2G"
storage = "512M"
allow_internet = false
cpus = 2
os = "Linux"
mystery = {a = 1}
[environment.healthcheck]
command = "true"
retries = 5
[solution.env]
A = "b"
"""


def test_every_key_is_read(tmp_path: Path) -> None:
    task = read_task(write_task(tmp_path / "task", toml=FULL))
    config, section = task.config, task.config.environment
    assert task.name == "org/full"
    assert config.schema_version == "1.0"
    assert (config.agent.timeout_sec, config.agent.user) == (120.0, 1000)
    assert (config.verifier.timeout_sec, config.verifier.user) == (30.5, "checker")
    assert (section.memory_mb, section.storage_mb, section.cpus) == (2048, 512, 2.0)
    assert (section.network_mode, section.os) == ("no-network", "linux")
    assert section.healthcheck is not None
    assert (section.healthcheck.retries, section.healthcheck.interval_sec) == (5, 5.0)
    assert [artifact.source for artifact in config.artifacts] == ["/app/out", "/app/b"]
    assert config.solution.env == {"A": "b"}
    assert not config.verifier.separate


def test_what_is_left_out_has_harbors_defaults() -> None:
    config = parse_task_config("", "task.toml")
    assert config.agent.timeout_sec is None
    assert config.verifier.timeout_sec == 600
    assert config.environment.build_timeout_sec == 600
    assert config.environment.network_mode == "public"
    assert config.environment.cpus is config.environment.memory_mb is None


@pytest.mark.parametrize(
    ("size", "mb"), [("2G", 2048), ("1.5g", 1536), ("512M", 512), ("2048K", 2)]
)
def test_sizes(size: str, mb: int) -> None:
    assert parse_size_mb(size) == mb


@pytest.mark.parametrize(
    ("toml", "why"),
    [
        ("= 3", r"task.toml is not valid TOML"),
        ("[agent]\ntimeout_sec = 'soon'", r"task.toml: agent.timeout_sec: .*number"),
        ("[agent]\ntimeout_sec = 0", r"agent.timeout_sec: .*greater than 0"),
        ("[agent]\ntimeout_sec = 1e400", r"agent.timeout_sec: .*finite"),
        ("[verifier]\ntimeout_sec = inf", r"verifier.timeout_sec: .*finite"),
        ("[verifier]\ntimeout_sec = -1", r"verifier.timeout_sec: .*greater than 0"),
        ("[environment]\nbuild_timeout_sec = nan", r"environment.build_timeout_sec: "),
        ("[environment]\nstorage_mb = -5", r"environment.storage_mb: .*greater than 0"),
        ("[environment]\nmemory_mb = 0", r"environment.memory_mb: .*greater than 0"),
        ("[environment]\nmemory = '0G'", r"environment.memory_mb: .*greater than 0"),
        ("[environment]\ncpus = -1", r"environment.cpus: .*greater than 0"),
        ("[environment]\ngpus = -1", r"environment.gpus = -1"),
        (
            "[environment.healthcheck]\ncommand = 'true'\nretries = 0",
            r"environment.healthcheck.retries: .*greater than or equal to 1",
        ),
        (
            "[environment.healthcheck]\ncommand = 'true'\ninterval_sec = -1",
            r"environment.healthcheck.interval_sec: ",
        ),
        (
            "[[verifier.collect]]\ncommand = 'x'\ntimeout_sec = inf",
            r"verifier.collect.0.timeout_sec: .*finite",
        ),
        (
            "artifacts = ['//']\n[verifier]\nenvironment_mode = 'separate'",
            r"artifacts\[0\].source = '//'",
        ),
        ("[environment]\nmemory = '2T'", r"environment: .*no unit"),
        ("[environment]\nmemory = '2G'\nmemory_mb = 1", r"'2G' is 2048 MB, but memory_mb is 1"),
        ("[environment]\nnetwork_mode = 'some'", r"environment.network_mode"),
        ("[environment]\nallowed_hosts = ['a.org']", r"only valid with network_mode"),
        ("[environment]\nos = 'windows'", r"environment.os = 'windows' is not supported"),
        ("[environment]\ngpus = 1", r"environment.gpus = 1 is not supported"),
        ("[environment.tpu]\ntype = 'v6e'\ntopology = '2x2'", r"environment.tpu = "),
        ("[[environment.mcp_servers]]\nname = 'x'", r"environment.mcp_servers = "),
        ("[[steps]]\nname = 'one'", r"steps = \['one'\] is not supported"),
        ("[[verifier.collect]]\ncommand = 'x'\nservice = 'db'", r"verifier.collect\[0\].service"),
        ("[[artifacts]]\nsource = '/a'\nservice = 'db'", r"artifacts\[0\].service = 'db'"),
        ("artifacts = ['/a/../b']", r"artifacts.0: .*must not contain"),
        (
            "artifacts = ['a']\n[verifier]\nenvironment_mode = 'separate'",
            r"artifacts\[0\].source = 'a'",
        ),
        (
            "[verifier]\nenvironment_mode = 'shared'\n[verifier.environment]\ncpus = 1",
            r"'shared' does not go with",
        ),
        ("[verifier.environment]\ngpus = 1", r"verifier.environment.gpus = 1"),
        ("[task]\nname = 'plain'", r"task.name"),
        ("", r"Dockerfile is missing.*docker_image"),
    ],
)
def test_what_is_refused_is_named(toml: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        read_task(write_task(tmp_path / "task", toml=toml))
    assert str(tmp_path / "task") in str(caught.value)


@pytest.mark.parametrize("name", REFUSED)
def test_a_feature_that_is_not_played_is_refused_by_name(name: str, tmp_path: Path) -> None:
    feature = FEATURES[name]
    folder = feature.write(tmp_path / "task")
    with pytest.raises(ConfigError, match=feature.refused) as caught:
        HarborEnv(str(folder), network=feature.network)  # pyright: ignore[reportArgumentType]
    assert str(folder) in str(caught.value)


def test_no_gpu_is_no_wish(tmp_path: Path) -> None:
    toml = TOML + "gpus = 0\n"
    assert read_task(write_task(tmp_path / "task", toml=toml)).config.environment.gpus == 0


def test_a_folder_lacks_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"test.sh is missing; it is what writes the reward"):
        read_task(write_task(tmp_path / "a", test=None))
    with pytest.raises(ConfigError, match=r"instruction.md is empty"):
        read_task(write_task(tmp_path / "b", instruction=" \n"))
    folder = write_task(tmp_path / "c")
    (folder / "instruction.md").unlink()
    with pytest.raises(ConfigError, match=r"instruction.md is missing"):
        read_task(folder)
    folder = write_task(tmp_path / "d")
    (folder / "environment").mkdir()
    (folder / "environment" / "docker-compose.yaml").touch()
    with pytest.raises(ConfigError, match=r"docker-compose.yaml: tasks of several containers"):
        read_task(folder)
    folder = write_task(tmp_path / "e")
    os.symlink("/etc/passwd", folder / "tests" / "link")
    with pytest.raises(ConfigError, match=r"link leads out of the task"):
        read_task(folder)
    folder = write_task(tmp_path / "f")
    (folder / "tests" / ".harborignore").touch()
    with pytest.raises(ConfigError, match=r".harborignore is not supported"):
        read_task(folder)


def test_a_verifier_image_brings_its_own_tests(tmp_path: Path) -> None:
    toml = TOML + '[verifier.environment]\ndocker_image = "checks:1"\n'
    task = read_task(write_task(tmp_path / "a", toml=toml, test=None))
    assert task.config.verifier.separate
    assert task.verifier_image == ("checks:1", None)
    toml = TOML.replace("[verifier]", '[verifier]\nenvironment_mode = "separate"')
    folder = write_task(tmp_path / "b", toml=toml, test=None)
    with pytest.raises(ConfigError, match=r"test.sh is missing"):
        read_task(folder)
    (folder / "tests" / "Dockerfile").touch()
    assert read_task(folder).verifier_image == ("", folder / "tests")


def test_tasks_are_found_below_a_folder(tmp_path: Path) -> None:
    write_task(tmp_path / "b" / "two")
    write_task(tmp_path / "a")
    write_task(tmp_path / ".hidden" / "three")
    assert [task.name for task in find_tasks(tmp_path)] == ["a", "b/two"]
    assert [task.name for task in find_tasks(tmp_path / "a")] == ["a"]
    with pytest.raises(ConfigError, match="holds no Harbor task"):
        find_tasks(tmp_path / "a" / "tests")
    with pytest.raises(ConfigError, match="is no folder"):
        find_tasks(tmp_path / "nowhere")
    named = '[task]\nname = "org/same"\n' + TOML
    write_task(tmp_path / "c", toml=named)
    write_task(tmp_path / "d", toml=named)
    with pytest.raises(ConfigError, match="are both the task 'org/same'"):
        find_tasks(tmp_path)


def test_a_canary_is_not_shown() -> None:
    canary = "<!-- harbor-canary GUID x -->\n# a CANARY string\n\n"
    assert strip_canary(f"{canary}Do it.\n# canary\n") == "Do it.\n# canary\n"
    assert strip_canary("# Title\nDo it.") == "# Title\nDo it."


def test_variables_are_taken_of_those_that_are_passed() -> None:
    variables = {"A": "plain", "B": "${B:-two}", "C": "${C:-three}", "D": "x${D}", "E": "${E:-}"}
    resolved = resolve_env(variables, {"C": "3", "D": "4"}, "f: env")
    assert resolved == {"A": "plain", "B": "two", "C": "3", "D": "x${D}", "E": ""}
    with pytest.raises(ConfigError, match=r"f: env.K asks for the variable K .*pass_env: \[K\]"):
        resolve_env({"K": "${K}"}, {}, "f: env")


def test_limits_are_the_tasks_and_never_above_ours() -> None:
    ours: dict[str, Any] = {"cpus": 1.0, "memory_mb": 100, "max_cpus": None, "max_memory_mb": None}
    limits = decide_limits(EnvironmentSection(), **ours, processes=7)
    assert (limits.cpus, limits.memory_bytes, limits.processes) == (1.0, 100 * 2**20, 7)
    section = EnvironmentSection(cpus=4, memory_mb=4096)
    limits = decide_limits(section, **ours, processes=7)
    assert (limits.cpus, limits.memory_bytes) == (4.0, 2**32)
    ours |= {"max_cpus": 2.0, "max_memory_mb": 512}
    limits = decide_limits(section, **ours, processes=7)
    assert (limits.cpus, limits.memory_bytes) == (2.0, 2**29)


@pytest.mark.parametrize(
    ("toml", "networks"),
    [
        ("", ("public", "public")),
        ("[environment]\nnetwork_mode = 'no-network'", ("none", "none")),
        (
            "[environment]\nnetwork_mode = 'no-network'\n[verifier]\nnetwork_mode = 'public'\n"
            "environment_mode = 'separate'",
            ("none", "public"),
        ),
        ("[agent]\nnetwork_mode = 'no-network'", "agent's network_mode is 'no-network'"),
        (
            "[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['pypi.org']",
            "agent's network_mode is 'allowlist'",
        ),
    ],
)
def test_a_network_is_had_only_by_the_key(
    toml: str, networks: tuple[str, str] | str, tmp_path: Path
) -> None:
    image = "docker_image = 'some:image'\n"
    head = "[environment]\n"
    whole = toml.replace(head, head + image) if head in toml else f"{toml}\n{head}{image}"
    task = read_task(write_task(tmp_path / "task", toml=whole))
    assert decide_networks(task, "none") == ("none", "none")
    if isinstance(networks, str):
        with pytest.raises(ConfigError, match=networks):
            decide_networks(task, "task")
    else:
        assert decide_networks(task, "task") == networks


def test_an_environment_splits_its_tasks(tmp_path: Path) -> None:
    for number in range(12):
        write_task(tmp_path / f"t{number}", instruction=f"Task {number}.")
    env = HarborEnv(str(tmp_path), heldout_fraction=0.4)
    train, heldout = ({task.id for task in env.tasks(s)} for s in ("train", "heldout"))
    assert train
    assert heldout
    assert train | heldout == {f"t{number}" for number in range(12)}
    assert not train & heldout
    assert [t.id for t in env.tasks("train")] == [t.id for t in env.tasks("train")]
    env = HarborEnv(str(tmp_path), heldout=["t3"])
    assert [task.id for task in env.tasks("heldout")] == ["t3"]
    env = HarborEnv(str(tmp_path), splits="all", tasks=["t1", "t2"])
    assert {task.id for task in env.tasks("heldout")} == {"t1", "t2"}


@pytest.mark.parametrize(
    ("kwargs", "why"),
    [
        ({"provider": "bubblewrap"}, "provider must be docker, namespaces or module:name"),
        ({"tasks": ["t9"]}, r"tasks names \['t9'\], but the tasks of .* are task"),
        ({"heldout": "task"}, "heldout must be a list of names"),
        ({"network": "public"}, "network must be one of none, task, got 'public'"),
        ({"agent_processes": "x"}, "agent_processes must be one of end, keep"),
        ({"max_turns": 0}, "max_turns must be at least 1"),
        ({"pass_env": ["AGENTRL_NO_SUCH"]}, "no such variable is set"),
        ({"heldout_fraction": 2}, "from 0 to 1"),
    ],
)
def test_a_wrong_key_is_refused(kwargs: dict[str, object], why: str, tmp_path: Path) -> None:
    write_task(tmp_path / "task")
    with pytest.raises(ConfigError, match=why):
        HarborEnv(str(tmp_path), **kwargs)  # pyright: ignore[reportArgumentType]


def test_a_report_says_what_is_not_as_the_task_says(tmp_path: Path) -> None:
    toml = TOML + 'storage_mb = 10\nskills_dir = "/skills"\ncpu = 3\n'
    write_task(tmp_path / "task", toml=toml, solve=None)
    (report,) = inspect_harbor(str(tmp_path)).tasks
    notes = " | ".join(report.notes)
    for part in (
        "network: task",
        "storage_mb = 10",
        "skills_dir",
        "no oracle",
        "servers too",
        "environment.cpu",
    ):
        assert part in notes
    assert (report.network_mode, report.verifier, report.has_oracle) == ("public", "shared", False)


def test_a_pipe_in_a_task_is_refused_and_not_read(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "task")
    os.mkfifo(folder / "tests" / "pipe")
    with pytest.raises(ConfigError, match="tests/pipe is neither a file nor a folder"):
        read_task(folder)


@pytest.mark.parametrize("part", ["instruction.md", "tests", "task.toml"])
def test_a_part_that_is_a_link_out_is_refused(part: str, tmp_path: Path) -> None:
    folder, other = write_task(tmp_path / "task"), write_task(tmp_path / "other")
    (folder / part).rename(tmp_path / "kept")
    os.symlink(other / part, folder / part)
    with pytest.raises(ConfigError, match=rf"task/{part} leads out of the task"):
        read_task(folder)


def test_a_name_that_is_no_text_and_a_huge_file_are_refused(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "a")
    Path(os.fsdecode(os.fsencode(folder / "tests") + b"/\xff")).touch()
    with pytest.raises(
        ConfigError, match=r"tests/\\udcff' has a name that is not UTF-8; rename it"
    ):
        read_task(folder)
    folder = write_task(tmp_path / "b")
    with (folder / "tests" / "model.bin").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ConfigError, match=r"4294967296 bytes, with .*tests/model.bin; let the"):
        read_task(folder)


@contextmanager
def as_nobody() -> Generator[None]:
    """Be a user who may not read everything, where we are root."""
    own = os.geteuid()
    if own == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if own == 0:
            os.seteuid(own)


@pytest.mark.parametrize("hidden", ["", "set", "set/task", "set/task/tests", "set/task/task.toml"])
def test_what_cannot_be_read_is_named(hidden: str) -> None:
    with tempfile.TemporaryDirectory(prefix="agentrl-harbor-") as folder:
        root = Path(folder)
        root.chmod(0o755)
        write_task(root / "set" / "task")
        (root / hidden).chmod(0)
        with as_nobody(), pytest.raises(ConfigError, match=r"cannot be read: .*Permission denied"):
            inspect_harbor(str(root / "set"))
        (root / hidden).chmod(0o755)


def test_links_are_followed_to_a_task_and_no_further(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "elsewhere" / "task")
    (tmp_path / "set").mkdir()
    os.symlink(folder, tmp_path / "set" / "task")
    os.symlink(tmp_path, tmp_path / "set" / "loop")
    assert [task.name for task in find_tasks(tmp_path / "set")] == ["task"]
    os.symlink("loop", folder / "tests" / "loop")
    with pytest.raises(ConfigError, match=r"loop"):
        find_tasks(tmp_path / "set")


def test_a_folder_of_other_things_is_no_set_of_tasks() -> None:
    with pytest.raises(ConfigError, match="/proc"):
        inspect_harbor("/proc")
