"""Agentrl as a user meets it: the README's first example, and a project of one's own."""

import json
import os
import subprocess
import sys
import sysconfig
import textwrap
import venv
from pathlib import Path

import pytest

TINY = """
run: {name: mine, folder: runs, steps: 2}
env: {id: "my_envs.double:DoubleEnv"}
policy: {make: {hidden_size: 32, layers: 1, heads: 2, kv_heads: 2, head_dim: 16}}
warmstart: {steps: 5, batch_size: 8, demonstrations: 40}
engine: {slots: 8, context_tokens: 256}
sampling: {max_turn_tokens: 16}
rollout: {tasks_per_step: 2, group_size: 2, max_turns: 2}
evaluate: {tasks: 4}
metrics: {tensorboard: false}
"""


def run(command: list[str], *, cwd: Path, timeout_s: float) -> str:
    """Run a command without our checkout on the path; return its output, or fail showing it."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=env, timeout=timeout_s, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.nightly
def test_the_readme_example_is_short_and_its_reward_rises(root: Path, tmp_path: Path) -> None:
    source = (root / "examples/hello.py").read_text()
    assert len(source.strip().splitlines()) <= 25
    assert source.strip() in (root / "README.md").read_text()
    (tmp_path / "configs").symlink_to(root / "configs")
    (tmp_path / "hello.py").write_text(source)
    run([sys.executable, "hello.py"], cwd=tmp_path, timeout_s=560)
    summary = json.loads((tmp_path / "runs/hello/summary.json").read_text())
    assert summary["after"]["pass@1"] > summary["before"]["pass@1"]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_project_with_its_own_tools_and_envs_trains_from_the_wheel(
    root: Path, tmp_path: Path
) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir"]
    run([*build, str(tmp_path / "dist"), str(root)], cwd=tmp_path, timeout_s=120)
    python = environment(tmp_path / "venv")
    wheel = next((tmp_path / "dist").glob("*.whl"))
    pip = [str(python), "-m", "pip", "install", "--no-deps", "--no-index", str(wheel)]
    run(pip, cwd=tmp_path, timeout_s=120)
    project = tmp_path / "project"
    write_project(project)
    where = "import agentrl, envs, tools; print(agentrl.__file__, envs.__file__, tools.__file__)"
    places = run([str(python), "-c", where], cwd=project, timeout_s=60).split()
    assert str(tmp_path / "venv") in places[0]
    assert all(str(project) in place for place in places[1:])
    agentrl = python.parent / "agentrl"
    run([str(python), str(agentrl), "train", "mine.yaml"], cwd=project, timeout_s=200)
    summary = json.loads((project / "runs/mine/summary.json").read_text())
    assert summary["after"]["n"] == 4


def environment(folder: Path) -> Path:
    """Make a virtual environment that has our dependencies, and agentrl not yet."""
    venv.create(folder, with_pip=True)
    site = next(folder.glob("lib/python*/site-packages"))
    # A path in a .pth file is searched, but its own .pth files are not run: an editable install of
    # agentrl beside the dependencies stays out.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def write_project(project: Path) -> None:
    """Write a project that calls its packages what ours are called at the top of the checkout."""
    for package in ("tools", "envs", "my_envs"):
        (project / package).mkdir(parents=True)
        (project / package / "__init__.py").write_text("")
    (project / "tools" / "double.py").write_text(
        textwrap.dedent('''
            import agentrl

            @agentrl.tool
            def double(number: int) -> int:
                """Return twice the number."""
                return 2 * number
        ''')
    )
    (project / "my_envs" / "double.py").write_text(
        textwrap.dedent("""
            import agentrl
            from agentrl.task import split_of
            from agentrl.authoring.tool_env import ToolEnv
            from tools.double import double

            def tasks(split, seed):
                for number in range(1000):
                    if split_of(str(number)) == split:
                        yield agentrl.Task(prompt=f"Double {number}", answer=str(2 * number))

            def gold(task, seen):
                if len(seen) == 1:
                    return agentrl.call("double", number=int(task.answer) // 2)
                return agentrl.say(seen[-1].text)

            class DoubleEnv(ToolEnv):
                def __init__(self):
                    reward = agentrl.rewards.exact_answer
                    super().__init__(tasks=tasks, tools=[double], reward=reward, gold=gold)
        """)
    )
    (project / "mine.yaml").write_text(TINY)
