"""Every recipe fits the machine that it names, by its plan. Some seconds each."""

import re
from pathlib import Path

import pytest

from agentrl.config.load import load_config
from agentrl.plan.machine import find_machine
from agentrl.plan.model_shape import find_shape
from agentrl.plan.run_plan import plan_run
from agentrl.simulate.synthetic import synthetic

RECIPES = sorted((Path(__file__).parents[2] / "configs" / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_fits_its_machine(recipe: Path) -> None:
    match = re.match(r"# Machine: (\S+)", recipe.read_text(encoding="utf-8"))
    assert match is not None
    config = load_config(recipe)
    plan = plan_run(config, find_shape(config), find_machine(match[1]), synthetic("agentic"))
    assert plan.faults == ()
    assert plan.forecast.steps_per_hour > 0
