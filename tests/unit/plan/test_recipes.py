"""Recipes as files: each loads, says its machine, and is in the table of docs/plan.md. That they
fit is what tests/run/test_recipes.py plans.
"""

import re
from pathlib import Path

import pytest

from agentrl.config.load import load_config
from agentrl.plan.machine import find_machine
from agentrl.plan.model_shape import PUBLISHED, find_shape
from agentrl.plan.run_plan import check_devices

FOLDER = Path(__file__).parents[3] / "configs" / "recipes"
RECIPES = sorted(FOLDER.glob("*.yaml"))


def machine_of(recipe: Path) -> str:
    """Return the machine that the first line of a recipe names."""
    match = re.match(r"# Machine: (\S+)\n", recipe.read_text(encoding="utf-8"))
    assert match is not None, f"{recipe.name} names no machine in its first line"
    return match[1]


def test_every_model_has_a_recipe_for_one_eight_and_sixteen_devices() -> None:
    found = {
        (find_shape(load_config(recipe)).name, find_machine(machine_of(recipe)).count)
        for recipe in RECIPES
    }
    assert found == {(name, count) for name in PUBLISHED for count in (1, 8, 16)}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_a_config_for_its_machine(recipe: Path) -> None:
    config, machine = load_config(recipe), find_machine(machine_of(recipe))
    check_devices(config, machine)
    assert config.run.name == recipe.stem
    assert config.rollout.mode == ("sync" if machine.count == 1 else "async")
    ranks, engines = config.learn.devices.count, config.engine.processes
    assert machine.count == (1 if not engines else ranks + engines)
    # A rendezvous of several machines needs somebody to place its parts.
    assert (config.cluster.kind == "ray") == (machine.count > machine.per_node)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_in_the_table_without_invented_figures(recipe: Path) -> None:
    page = (FOLDER.parents[1] / "docs" / "plan.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if f"`{recipe.stem}`" in line]
    assert len(rows) == 1
    assert rows[0].endswith("| not measured |")
