"""Harbor's tasks on a real engine: oracle 1, nothing done 0, cheats 0, failures never 0.

Mutants seen caught: processes of the agent that live on, old reward files and tests kept, changes
of the image not looked at, the reward of a late verifier taken.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agentrl.authoring.gold import play_gold
from agentrl.env import Action, Step, call, say
from agentrl.errors import ConfigError, SandboxError, VerifierError
from agentrl.runtime.run_id import using_run_id
from agentrl.task import Task
from agentrl.testing import check_env
from agentrl_envs.harbor import HarborEnv, inspect_harbor
from agentrl_sandbox.lease import LABEL_RUN
from agentrl_sandbox.provider import DockerProvider
from agentrl_sandbox.reaping.engine import containers, default_engine
from tests.support.examples import spread_cases
from tests.support.harbor_tasks import TOML, write_task

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]
TASKS = Path(__file__).parents[4] / "examples" / "harbor"
NAMES = sorted(folder.name for folder in TASKS.iterdir() if (folder / "task.toml").exists())
PAY = '{"reward": 1}'
REPLACED = "printf '#!/bin/bash\\nexit 0\\n' >{path} && chmod 755 {path}"
CHEATS: Mapping[str, Sequence[str]] = {
    "a reward of its own": [
        f"echo 1 >/logs/verifier/reward.txt; echo '{PAY}' >/logs/verifier/reward.json"
    ],
    "tests of its own": [
        "mkdir -p /x && printf '#!/bin/bash\\necho 1 >/logs/verifier/reward.txt\\n' >/x/test.sh && "
        "chmod 755 /x/test.sh && ln -sT /x /tests"
    ],
    "what is expected, read": [
        "cp /tests/expected.csv /app/clean.csv || find / -name expected.csv"
    ],
    "a process that goes on writing": [
        f"setsid nohup bash -c 'while :; do echo {json.dumps(PAY)} >/logs/verifier/reward.json; "
        "cp /tests/expected.csv /app/clean.csv; done' >/dev/null 2>&1 &"
    ],
    "a folder that leads elsewhere": [
        f"mv /logs /elsewhere && ln -s /elsewhere /logs && echo '{PAY}' >/logs/verifier/reward.json"
    ],
    "a program of the verifier's, replaced": [REPLACED.format(path="/usr/bin/cmp")],
    "a program found before the verifier's": [REPLACED.format(path="/usr/local/bin/cmp")],
    "a shell that pays": [
        "cp /usr/bin/bash /usr/bin/bash.real && printf '#!/usr/bin/bash.real\\n"
        f"echo {json.dumps(PAY)} >/logs/verifier/reward.json\\n' >/new && chmod 755 /new && "
        "mv /new /usr/bin/bash"
    ],
}
"""Ways to be paid for a table that was not cleaned."""
PROGRAM_CHEATS = {
    "a program that writes the reward": (
        f"open('/logs/verifier/reward.json', 'w').write('{PAY}')\n"
        "open('/logs/verifier/reward.txt', 'w').write('1')"
    ),
    "a program that reads what is expected": "print(open('/tests/expected').read(), end='')",
}


LOCAL_PYTHON = (
    "FROM agentrl-debian:bookworm\n"
    "RUN cp /usr/bin/python3.11 /usr/local/bin/python3 && "
    "cp -r /usr/lib/python3.11/. /usr/local/lib/python3.11/ && "
    "rm -rf /usr/local/lib/python3.11/__pycache__\n"
)
LIBRARY = "/usr/local/lib/python3.11"
PAYS = "import sys; sys.stdout.write('1'); sys.stdout.flush(); import os; os._exit(0)"
PYTHON_CHEATS = {
    "a Python that is another one": (
        "rm /usr/local/bin/python3; " + REPLACED.format(path="/usr/local/bin/python3")
    ),
    "bytecode of another source": (
        f"""echo "{PAYS}" >/tmp/csv.py && cat >/tmp/compile.py <<'END'
import os, py_compile
cache, source = "{LIBRARY}/__pycache__/csv.cpython-311.pyc", os.stat("{LIBRARY}/csv.py")
py_compile.compile("/tmp/csv.py", cache)
code = bytearray(open(cache, "rb").read())
code[8:16] = int(source.st_mtime).to_bytes(4, "little") + source.st_size.to_bytes(4, "little")
open(cache, "wb").write(code)
END
python3 /tmp/compile.py"""
    ),
    "a module of the library, changed": f'echo "{PAYS}" >>{LIBRARY}/csv.py',
    "a package beside a module": (
        f'mkdir {LIBRARY}/csv && echo "{PAYS}" >{LIBRARY}/csv/__init__.py'
    ),
    "an archive before the library": (
        f'cd /tmp && echo "{PAYS}" >csv.py && '
        "python3 -m zipfile -c /usr/local/lib/python311.zip csv.py"
    ),
}
"""Ways to be paid by a verifier that imports `csv`."""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def provider() -> AsyncIterator[DockerProvider]:
    provider = DockerProvider()
    yield provider
    await provider.close()


def task_of(env: HarborEnv, name: str) -> Task:
    (task,) = [task for task in env.tasks("train") if task.id == name]
    return task


async def play(env: HarborEnv, task: Task, *actions: Action) -> Step:
    """Do some actions, then say that it is done, and return the last step."""
    await env.reset(options={"task": task})
    step: Step | None = None
    try:
        for action in (*actions, say("done")):
            step = await env.step(action)
            if step[2] or step[3]:
                break
    finally:
        await env.close()
    assert step is not None
    return step


def bash(command: str) -> Action:
    return call("bash", command=command)


def made(folder: Path, provider: DockerProvider, **kwargs: Any) -> tuple[HarborEnv, Task]:
    env = HarborEnv(str(folder), splits="all", provider=provider, **kwargs)
    (task,) = env.tasks("train")
    return env, task


@pytest.mark.parametrize("name", spread_cases([*NAMES], 5))
@pytest.mark.timeout(120)
async def test_an_example_pays_its_oracle_and_nobody_else(
    name: str, provider: DockerProvider
) -> None:
    env, task = made(TASKS / name, provider, **EXTRA.get(name, {}))
    try:
        episode = await play_gold(env, task)
        assert episode.reward == 1.0, [message.text for message in episode.messages]
        assert (await play(env, task))[1] == 0.0
    finally:
        await env.close()


EXTRA: dict[str, dict[str, Any]] = {}


@pytest.mark.parametrize("way", CHEATS)
async def test_a_cheat_is_paid_nothing(way: str, provider: DockerProvider) -> None:
    env, task = made(TASKS / "clean-data", provider)
    step = await play(env, task, *map(bash, CHEATS[way]))
    assert step[1] == 0.0, step[4]


@pytest.mark.parametrize("way", PROGRAM_CHEATS)
async def test_a_program_that_cheats_is_paid_nothing(way: str, provider: DockerProvider) -> None:
    env, task = made(TASKS / "guarded-program", provider)
    write = call("write_file", path="roman.py", content=PROGRAM_CHEATS[way])
    assert (await play(env, task, write))[1] == 0.0


@pytest.mark.parametrize("way", spread_cases([*PYTHON_CHEATS], 2))
async def test_a_python_that_cheats_is_paid_nothing(
    way: str, tmp_path: Path, provider: DockerProvider
) -> None:
    folder = write_task(tmp_path / "task", toml=TOML.replace("docker_image", "# docker_image"))
    (folder / "environment").mkdir(exist_ok=True)
    (folder / "environment" / "Dockerfile").write_text(LOCAL_PYTHON)
    checks = "python3 -c 'import csv, os; print(int(os.path.exists(\"/done\")))'"
    (folder / "tests" / "test.sh").write_text(f"{checks} >/logs/verifier/reward.txt\n")
    env, task = made(folder, provider)
    step = await play(env, task, bash(PYTHON_CHEATS[way]))
    assert step[1] == 0.0, step[4]
    env, task = made(folder, provider)
    honest = f"python3 -c 'import csv, json' && mkdir {LIBRARY}/dist-packages/x && touch /done"
    assert (await play(env, task, bash(honest)))[1] == 1.0


async def test_what_changed_the_image_is_named(provider: DockerProvider) -> None:
    env, task = made(TASKS / "clean-data", provider)
    step = await play(env, task, *map(bash, CHEATS["a program of the verifier's, replaced"]))
    assert step[4]["harbor"]["tampered"] == ["/usr/bin/cmp"]
    env, task = made(TASKS / "clean-data", provider, changed_programs="allow")
    step = await play(env, task, *map(bash, CHEATS["a program of the verifier's, replaced"]))
    assert step[1] == 1.0, "the user took it upon himself"


@pytest.mark.parametrize(
    ("test", "reward", "rewards"),
    [
        ("echo 0.5 >/logs/verifier/reward.txt; exit 9", 0.5, {"reward": 0.5}),
        (
            'cd /logs/verifier; echo 0 >reward.txt; echo \'{"a": 2, "reward": 0.25}\' >reward.json',
            0.25,
            {"a": 2.0, "reward": 0.25},
        ),
        ("echo '{\"score\": -1}' >/logs/verifier/reward.json", -1.0, {"score": -1.0}),
    ],
)
async def test_a_reward_is_read_as_harbor_reads_it(
    test: str, reward: float, rewards: dict[str, float], tmp_path: Path, provider: DockerProvider
) -> None:
    env, task = made(write_task(tmp_path / "task", test=f"#!/bin/bash\n{test}\n"), provider)
    step = await play(env, task)
    assert (step[1], step[4]["harbor"]["rewards"]) == (reward, rewards)


@pytest.mark.parametrize(
    ("test", "why"),
    [
        ("echo nothing is written; exit 0", r"neither .*reward.json nor .*nothing is written"),
        ("echo nan >/logs/verifier/reward.txt", "finite"),
        ("echo 1 >/logs/verifier/reward.txt; touch /logs/verifier/reward.json", "is empty"),
        ("mkdir /logs/verifier/reward.json; echo 1 >/logs/verifier/reward.txt", "is no file"),
        ('echo \'{"a": 1, "b": 0}\' >/logs/verifier/reward.json', "set reward_key"),
    ],
)
async def test_no_verdict_is_a_failure_of_its_own(
    test: str, why: str, tmp_path: Path, provider: DockerProvider
) -> None:
    env, task = made(write_task(tmp_path / "task", test=f"#!/bin/bash\n{test}\n"), provider)
    with pytest.raises(VerifierError, match=why) as caught:
        await play(env, task)
    assert caught.value.kind == "verifier"


async def test_a_late_verifier_is_a_failure(tmp_path: Path, provider: DockerProvider) -> None:
    toml = TOML.replace("timeout_sec = 30.0", "timeout_sec = 1.0")
    test = "#!/bin/bash\necho 1 >/logs/verifier/reward.txt\nsleep 3600\n"
    env, task = made(write_task(tmp_path / "task", toml=toml, test=test), provider)
    with pytest.raises(VerifierError, match=r"longer than verifier.timeout_sec, 1 s"):
        await play(env, task)


async def test_an_agent_out_of_time_is_graded(tmp_path: Path, provider: DockerProvider) -> None:
    toml = TOML.replace("timeout_sec = 60.0", "timeout_sec = 2.0")
    env, task = made(write_task(tmp_path / "task", toml=toml), provider)
    step = await play(env, task, bash("touch /done; sleep 3600"))
    assert (step[1], step[2], step[3]) == (1.0, False, True)
    assert "[ended after" in step[0].messages[0].text


async def test_turns_are_bounded_and_the_last_is_graded(
    tmp_path: Path, provider: DockerProvider
) -> None:
    env, task = made(write_task(tmp_path / "task"), provider, max_turns=2)
    step = await play(env, task, bash("true"), bash("touch /done"), bash("rm /done"))
    assert (step[1], step[2], step[3]) == (1.0, False, True)


async def test_the_container_is_as_the_task_says(tmp_path: Path, provider: DockerProvider) -> None:
    toml = TOML.replace("[verifier]", 'user = "nobody"\n[verifier]').replace(
        "cpus = 1", 'cpus = 1\nworkdir = "/var/tmp"\nenv = {COLOUR = "${NO_SUCH_COLOUR:-blue}"}'
    )
    env, task = made(write_task(tmp_path / "task", toml=toml), provider)
    await env.reset(options={"task": task})
    try:
        command = (
            "id -un; pwd; echo $COLOUR; tail -n +3 /proc/net/dev | cut -d: -f1 | xargs; "
            "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null;"
            "ls -d /tests; echo /logs/*; touch /etc/x"
        )
        text = (await env.step(bash(command)))[0].messages[0].text
        assert text.startswith("nobody\n/var/tmp\nblue\nlo\n268435456\n/logs/agent"), text
        assert "cannot access '/tests'" in text
        assert "Permission denied" in text
        text = (await env.step(call("write_file", path="a/b.txt", content="x'\n$y")))[0]
        text = (await env.step(call("read_file", path="/var/tmp/a/b.txt")))[0].messages[0].text
        assert text == "x'\n$y"
        text = (await env.step(call("write_file", path="/etc/no", content="")))[0].messages[0].text
        assert "Permission denied" in text
        text = (await env.step(call("nothing")))[0].messages[0].text
        assert "The tools are: bash, read_file, write_file" in text
    finally:
        await env.close()


async def test_an_oracle_of_several_files_is_the_agents(
    tmp_path: Path, provider: DockerProvider
) -> None:
    toml = TOML.replace("[verifier]", 'user = "nobody"\n[verifier]')
    toml += '[solution]\nenv = {WORD = "it\'s"}\n'
    folder = write_task(
        tmp_path / "task",
        toml=toml,
        solve='#!/bin/bash\ncp "$(dirname "$0")/part.txt" /tmp/part; echo "$WORD" >>/tmp/part\n',
        test='#!/bin/bash\ngrep -qx "it\'s" /tmp/part && grep -qx part /tmp/part\n'
        "echo $((1 - $?)) >/logs/verifier/reward.txt\n",
    )
    (folder / "solution" / "part.txt").write_text("part\n")
    env, task = made(folder, provider)
    try:
        assert (await play_gold(env, task)).reward == 1.0
    finally:
        await env.close()


async def test_a_verifier_of_its_own_sees_artefacts_alone(
    tmp_path: Path, provider: DockerProvider
) -> None:
    toml = 'artifacts = ["/out/a.txt"]\n' + TOML.replace(
        "[verifier]", '[verifier]\nenvironment_mode = "separate"'
    )
    test = (
        '#!/bin/bash\n[ "$(cat /out/a.txt)" = a ] && [ -e /logs/artifacts/b ] && ! [ -e /done ]\n'
        "echo $((1 - $?)) >/logs/verifier/reward.txt\n"
    )
    env, task = made(write_task(tmp_path / "task", toml=toml, test=test), provider)
    cheat = REPLACED.format(path="/usr/bin/cat")
    work = "mkdir /out; echo a >/out/a.txt; touch /logs/artifacts/b /done"
    assert (await play(env, task, bash(f"{work}; {cheat}")))[1] == 1.0
    assert (await play(env, task, bash("mkdir /out; ln -s /etc/passwd /out/a.txt")))[1] == 0.0


async def test_kept_processes_can_be_asked(tmp_path: Path, provider: DockerProvider) -> None:
    test = '#!/bin/bash\nread -t 5 word </tmp/pipe\n[ "$word" = up ]\n'
    folder = write_task(
        tmp_path / "task", test=f"{test}echo $((1 - $?)) >/logs/verifier/reward.txt\n"
    )
    serve = bash("mkfifo /tmp/pipe; setsid bash -c 'while :; do echo up >/tmp/pipe; done' &")
    env, task = made(folder, provider, agent_processes="keep")
    assert (await play(env, task, serve))[1] == 1.0


async def test_a_missing_image_and_one_that_does_not_build(
    tmp_path: Path, provider: DockerProvider
) -> None:
    toml = TOML.replace("agentrl-debian:bookworm", "agentrl-no-such:image")
    env, task = made(write_task(tmp_path / "one", toml=toml), provider)
    with pytest.raises(ConfigError, match=r"docker_image.*docker pull agentrl-no-such:image"):
        await env.reset(options={"task": task})
    folder = write_task(tmp_path / "two", toml="")
    (folder / "environment").mkdir()
    (folder / "environment" / "Dockerfile").write_text(
        "FROM agentrl-debian:bookworm\nRUN echo why; exit 4\n"
    )
    env, task = made(folder, provider)
    with pytest.raises(SandboxError, match=r"does not build(?s:.*)why") as caught:
        await env.reset(options={"task": task})
    assert str(folder) in str(caught.value)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.nightly
async def test_the_environment_keeps_its_contract(tmp_path: Path) -> None:
    write_task(tmp_path / "one")
    write_task(tmp_path / "two", instruction="Make the file /done, please.")
    env = HarborEnv(str(tmp_path), heldout=["two"])
    with using_run_id("harbor-contract"):
        proven = await check_env(env, episodes=1, grace_s=10)
        left = containers(default_engine(), f"{LABEL_RUN}=harbor-contract")
    assert {"gold scores", "nothing is left after close"} <= {*proven}, proven
    assert left == []


async def test_the_examples_are_inspected() -> None:
    report = inspect_harbor(str(TASKS))
    assert [task.name for task in report.tasks] == [f"agentrl/{name}" for name in NAMES]
    assert all(task.has_oracle for task in report.tasks)
    (apart,) = [task for task in report.tasks if task.verifier == "separate"]
    assert apart.name == "agentrl/two-artefacts"
