"""Without a Docker engine a task is refused in its own words, before a run and when it is played.

Mutants seen caught: no word of the ways out, tasks that are not played named.
"""

from pathlib import Path

import pytest

from agentrl.config.load import load_config
from agentrl.errors import ConfigError
from agentrl.run.preflight import check_env
from agentrl_envs.harbor import HarborEnv
from tests.support.harbor_tasks import TOML, write_task

CONFIG = """
run: {{name: harbor, folder: {folder}}}
env: {{id: "harbor:{path}", kwargs: {{tasks: [two], splits: all}}}}
policy: {{make: {{}}}}
"""


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of two tasks, on a machine without an engine."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    write_task(tmp_path / "tasks" / "one", toml=TOML.replace("bookworm", "one"))
    write_task(tmp_path / "tasks" / "two")
    return tmp_path / "tasks"


def test_a_run_is_refused_before_it_begins(tasks: Path) -> None:
    file = tasks.parent / "run.yaml"
    file.write_text(CONFIG.format(folder=tasks.parent / "runs", path=tasks))
    with pytest.raises(ConfigError) as caught:
        check_env(load_config(file))
    why = str(caught.value)
    assert f"{tasks}/two/task.toml needs a container (environment.docker_image = " in why
    assert "other task" not in why
    for part in (
        "no Docker engine answers at unix:",
        "nobody.sock",
        "DOCKER_HOST",
        "start it",
        "provider: namespaces",
    ):
        assert part in why


async def test_an_episode_is_refused(tasks: Path) -> None:
    env = HarborEnv(str(tasks), splits="all")
    task = next(iter(env.tasks("train")))
    with pytest.raises(
        ConfigError, match=r"one/task.toml needs .*, as 1 other task does: no Docker"
    ):
        await env.reset(options={"task": task})
    await env.close()
