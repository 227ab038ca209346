"""Harbor's tasks without an engine: oracle 1, nothing done 0, cheats 0, refused by file and line.

No test asks an engine, and DOCKER_HOST names nobody.

Mutants seen caught: networks and images of a name not looked at, only the first task planned, a run
that begins without being asked, plugins of pytest and links to them kept, the cache of the
loader not looked at.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from agentrl.authoring.gold import play_gold
from agentrl.cli.import_env import import_env
from agentrl.config.load import load_config
from agentrl.env import Action, Step, call, say
from agentrl.errors import ConfigError
from agentrl.registry import make
from agentrl.run.preflight import check_env
from tests.support.harbor_tasks import write_task
from tests.support.root_folder import BASE, make_root

pytestmark = [
    pytest.mark.namespaces,
    pytest.mark.cgroup,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root maps the users of containers"),
]
TOML = """
[verifier]
timeout_sec = 30.0
[environment]
cpus = 1
memory_mb = 256
"""
CONFIG = """
run: {{name: harbor, folder: {folder}/runs}}
env:
  id: harbor
  kwargs:
    path: {folder}/tasks
    splits: all
    provider: namespaces
    provider_kwargs:
      rootfs: {{"{base}": {folder}/root}}
      cache: {folder}/cache
policy: {{make: {{}}}}
"""
VERDICT = (
    "#!/bin/bash\ncmp -s /tests/expected /srv/words && echo 1 >/logs/verifier/reward.txt || "
    "echo 0 >/logs/verifier/reward.txt\n"
)
PAY = "echo 1 >/logs/verifier/reward.txt"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a root file system, a task and a config of a run on it."""
    folder = tmp_path_factory.mktemp("harbor")
    make_root(folder / "root")
    task = write_task(
        folder / "tasks" / "sort",
        toml=TOML,
        test=VERDICT,
        solve="#!/bin/bash\necho two >>words\n",
        instruction="Add a line that says two to the file words.",
    )
    (task / "tests" / "expected").write_text("one\ntwo\n")
    write_dockerfile(task, f"FROM {BASE}\nWORKDIR /srv\nCOPY words .\n")
    (task / "environment" / "words").write_text("one\n")
    (folder / "run.yaml").write_text(CONFIG.format(folder=folder, base=BASE))
    return folder


@pytest.fixture(autouse=True)
def no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")


def write_dockerfile(task: Path, text: str) -> None:
    (task / "environment").mkdir(exist_ok=True)
    (task / "environment" / "Dockerfile").write_text(text)


def read_kwargs(folder: Path) -> dict[str, Any]:
    return dict(load_config(folder / "run.yaml").env.kwargs)


async def play(kwargs: dict[str, Any], *actions: Action) -> Step:
    env = make("harbor", **kwargs)
    try:
        await env.reset()
        for action in actions:
            await env.step(action)
        return await env.step(say("done"))
    finally:
        await env.close()


def bash(command: str) -> Action:
    return call("bash", command=command)


async def test_the_oracle_is_paid_and_nothing_done_is_not(folder: Path) -> None:
    check_env(load_config(folder / "run.yaml"))
    env = make("harbor", **read_kwargs(folder))
    (task,) = env.tasks("train")
    assert (await play_gold(env, task)).reward == 1.0
    await env.close()
    step = await play(read_kwargs(folder))
    assert (step[1], step[2]) == (0.0, True)


@pytest.mark.parametrize(
    "command",
    [
        PAY,
        f"setsid nohup bash -c 'while :; do {PAY}; done' >/dev/null 2>&1 &",
        "printf '#!/bin/bash\\nexit 0\\n' >/usr/bin/cmp && chmod 755 /usr/bin/cmp",
        "rm -r /usr/bin; mkdir /usr/bin",
        "cp -r /usr /other && printf '#!/bin/bash\\nexit 0\\n' >/other/bin/cmp && rm -r /usr && "
        "/other/bin/ln -s /other /usr",
    ],
)
async def test_a_cheat_is_paid_nothing(folder: Path, command: str) -> None:
    step = await play(read_kwargs(folder), bash(command))
    assert step[1] == 0.0


async def test_plugins_of_pytest_that_an_agent_installed_are_not_loaded(
    folder: Path, tmp_path: Path
) -> None:
    site = "/usr/local/lib/python3.11/site-packages"
    install = (
        f"mkdir -p {site} && cd {site} && mkdir plugin.dist-info tool.dist-info /srv/linked && "
        "printf '[pytest11]\\nx = x\\n' >plugin.dist-info/entry_points.txt && "
        "echo x >plugin.dist-info/METADATA && cp plugin.dist-info/entry_points.txt /srv/linked && "
        "ln -s /srv/linked linked.dist-info && "
        "ln -s /srv/linked/entry_points.txt tool.dist-info/entry_points.txt && "
        "mkdir other.dist-info && printf '[console_scripts]\\nx = x\\n' "
        ">other.dist-info/entry_points.txt && mkdir -p /srv/venv/lib && cp -r . /srv/venv/lib"
    )
    test = (
        f"#!/bin/bash\ncd {site} && set -- *.dist-info/* /srv/venv/lib/plugin.dist-info/*\n"
        'echo "$@" && [ "$*" = "other.dist-info/entry_points.txt plugin.dist-info/METADATA '
        '/srv/venv/lib/plugin.dist-info/METADATA /srv/venv/lib/plugin.dist-info/entry_points.txt" '
        "]\necho $((1 - $?)) >/logs/verifier/reward.txt\n"
    )
    task = write_task(tmp_path / "tasks" / "plugin", toml=TOML, test=test)
    write_dockerfile(task, f"FROM {BASE}\nWORKDIR /srv\n")
    kwargs = {**read_kwargs(folder), "path": str(tmp_path / "tasks")}
    step = await play(kwargs, bash(install))
    assert step[1] == 1.0, step[4]
    step = await play({**kwargs, "changed_programs": "allow"}, bash(install))
    assert step[1] == 0.0, "the user took it upon himself"


@pytest.mark.parametrize(
    ("made", "changed", "tampered"),
    [
        ("", "/lib/libz.so.1", ["/lib/libz.so.1"]),
        ("/etc/ld.so.cache", "/lib/libz.so.1", []),
        ("/etc/ld.so.cache", "/opt/libz.so.1 /etc/ld-musl-x86_64.path", ["/opt/libz.so.1"]),
    ],
)
async def test_a_library_that_is_found_before_the_images_is_tampering(
    made: str, changed: str, tampered: list[str], folder: Path, tmp_path: Path
) -> None:
    task = write_task(tmp_path / "tasks" / "library", toml=TOML, test=f"#!/bin/bash\n{PAY}\n")
    write_dockerfile(
        task, f"FROM {BASE}\nRUN mkdir -p /opt /usr/lib && touch /usr/lib/libz.so.1 {made}\n"
    )
    kwargs = {**read_kwargs(folder), "path": str(tmp_path / "tasks")}
    step = await play(kwargs, bash(f"touch {changed}"))
    assert step[4]["harbor"]["tampered"] == tampered
    assert step[1] == float(not tampered)


def refuse(folder: Path, **changes: Any) -> str:
    """Return why a run is refused before it begins."""
    config = load_config(folder / "run.yaml")
    config.env.kwargs.update(changes)
    with pytest.raises(ConfigError) as caught:
        check_env(config)
    return str(caught.value)


def test_what_needs_an_engine_is_refused_before_a_run(folder: Path, tmp_path: Path) -> None:
    one = write_task(tmp_path / "tasks" / "one", toml=TOML)
    write_dockerfile(one, f"FROM {BASE}\nRUN true\nENTRYPOINT x\n")
    write_task(tmp_path / "tasks" / "two", toml=TOML + 'docker_image = "nobody:1"\n')
    three = write_task(tmp_path / "tasks" / "three", toml=TOML)
    write_dockerfile(three, "FROM ubuntu:24.04\n")
    why = refuse(folder, path=str(tmp_path / "tasks"))
    for part in (
        "one/environment/Dockerfile:3: ENTRYPOINT is not played without an engine",
        "two/task.toml: environment.docker_image is 'nobody:1', which is none of the base images",
        "three/environment/Dockerfile:1: FROM ubuntu:24.04 is none of the base images of rootfs",
    ):
        assert part in why
    kwargs = {name: read_kwargs(folder)[name] for name in ("provider", "provider_kwargs", "splits")}
    with pytest.raises(ConfigError, match="Dockerfile:3: ENTRYPOINT"):
        import_env(f"harbor:{one}", kwargs=json.dumps(kwargs))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"network": "task"}, r"sort/task.toml: its network is 'public', which there is not"),
        ({"build_network": "bridge"}, r"build_network must be one of none, host"),
        ({"provider_kwargs": {}}, r"Dockerfile:1: FROM local-root:1 .*which are none; add it"),
        ({"provider_kwargs": {"images": 0}}, r"images must be at least 1"),
        ({"provider_kwargs": {"roots": {}}}, r"provider_kwargs of provider: namespaces: .*'roots'"),
        ({"provider_kwargs": {"rootfs": ["x"]}}, r"rootfs must be paths by the names"),
        ({"provider_kwargs": {"rootfs": {"x": "/no"}}}, r"x is '/no', which is not there"),
        ({"provider_kwargs": {"cache": "/proc/x"}}, r"cache: .*/proc.*name another folder"),
    ],
)
def test_settings_that_cannot_be_had_are_refused(
    folder: Path, changes: dict[str, Any], why: str
) -> None:
    if "provider_kwargs" in changes:
        changes["provider_kwargs"].setdefault("cache", f"{folder}/cache")
    assert re.search(why, refuse(folder, **changes)) is not None
