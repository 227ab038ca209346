"""The tasks of the desktop, where no desktop is needed: splits, settings, and what is imported."""

import os
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.task import SPLITS
from agentrl_envs.gui import GuiEnv
from agentrl_envs.gui.machine import list_points
from agentrl_envs.gui.tasks import template_pack
from agentrl_envs.gui.tasks.pack import HELD_OUT
from agentrl_sandbox.lease import LABEL_OWNER
from agentrl_sandbox.reaping.engine import containers, default_engine
from tests.support.desktops import BACKENDS
from tests.support.processes import children

GONE_S = 60.0


def test_templates_are_split_by_seed_and_by_name() -> None:
    for by in ("seed", "template"):
        pack = template_pack(heldout_by=by)
        found = {split: list(islice(pack.tasks(split, 0), 80)) for split in SPLITS}
        texts = {split: {task.fingerprint for task in tasks} for split, tasks in found.items()}
        assert not texts["train"] & texts["heldout"]
        assert all(len(one) == 80 for one in texts.values())
        kinds = {task.data["template"] for task in found["heldout"]}
        assert (kinds == HELD_OUT) is (by == "template")


def test_settings_are_checked() -> None:
    for wrong in (
        {"desktop": {"colour": 1}},
        {"desktop": {"width": 10}},
        {"desktop": {"still_s": -1}},
        {"desktop": {"memory_bytes": 0}},
        {"observation": "smell"},
        {"observation": ()},
        {"observation_kwargs": {"scale": 2}},
        {"observation_kwargs": {"max_nodes": 0}},
        {"coordinates": "miles"},
        {"max_turns": 0},
        {"fork": "copy"},
        {"programs": ["chess"]},
        {"templates": ["dance"]},
    ):
        with pytest.raises(ConfigError):
            GuiEnv(pack="agentrl_envs.gui.tasks:template_pack", **wrong)  # pyright: ignore[reportArgumentType]


def test_tasks_are_the_same_in_every_process(root: Path) -> None:
    """Whatever order Python's sets have there."""
    code = (
        "from itertools import islice; from agentrl_envs.gui.tasks import template_pack as pack; "
        "print([(t.id, t.prompt, t.data) for s in ('train', 'heldout') "
        "for t in islice(pack().tasks(s, 0), 120)])"
    )
    path = ":".join(filter(None, sys.path))
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
            cwd=root,
            env={"PYTHONPATH": path, "PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def test_nothing_of_the_desktop_is_imported_for_its_tasks(root: Path) -> None:
    """Tasks are listed where no desktop can be run, and quickly."""
    code = (
        "import sys, agentrl; from itertools import islice; env = agentrl.make('gui/Mix-v0'); "
        "print(len(list(islice(env.tasks('train'), 3))), 'playwright' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=root,
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    assert ran.stdout.split() == ["3", "False"]


def test_points_of_what_can_be_seen() -> None:
    assert list_points([10, 20, 9, 5], 100, 100)[0] == (14, 22)
    assert list_points([-50, 0, 60, 10], 100, 100)[0] == (4, 4), "of the part that is on the screen"
    assert list_points([99, 99, 50, 50], 100, 100)[0] == (99, 99)
    for off in ([100, 0, 5, 5], [0, 100, 5, 5], [-5, 0, 5, 5], [0, 0, 0, 5], [-1, -1, -1, -1]):
        assert list_points(off, 100, 100) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_outlives_a_killed_trainer(backend: str) -> None:
    code = (
        "import asyncio, sys\n"
        "from agentrl_envs.gui.desktop import DesktopSession, DesktopSettings\n"
        "async def main():\n"
        "    made = await DesktopSession.start(DesktopSettings(backend=sys.argv[1]))\n"
        "    print(made._process.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    environ = {**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))}
    command = [sys.executable, "-c", code, backend]
    trainer = subprocess.Popen(command, stdout=subprocess.PIPE, env=environ)
    try:
        assert trainer.stdout is not None
        first = int(trainer.stdout.readline())
        below = [first, *children(first)]
        assert len(below) > 1
    finally:
        trainer.kill()
        trainer.wait()
        if trainer.stdout is not None:
            trainer.stdout.close()
    deadline_s = time.monotonic() + GONE_S
    while left := [*(pid for pid in below if Path(f"/proc/{pid}").exists()), *labelled(trainer)]:
        assert time.monotonic() < deadline_s, f"{left} are still there"
        time.sleep(0.05)


def labelled(owner: "subprocess.Popen[bytes]") -> list[str]:
    """Return the containers that say they are a process's."""
    try:
        found = containers(default_engine(), LABEL_OWNER)
    except OSError:
        return []  # there is no engine
    return [one.id for one in found if one.labels[LABEL_OWNER].startswith(f"{owner.pid}-")]
