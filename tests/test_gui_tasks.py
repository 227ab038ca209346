"""The tasks of the desktop, where no desktop is needed: splits, settings, and what is imported."""

import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.task import SPLITS
from agentrl_envs.gui import GuiEnv
from agentrl_envs.gui.tasks import template_pack
from agentrl_envs.gui.tasks.catalogue import HELD_OUT


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
