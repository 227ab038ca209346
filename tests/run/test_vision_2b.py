"""The config for a model of 2 B parameters, as far as a machine without its GPU can try it: that
its screenshots fit, and all of its keys on a tiny model of the family that looks at small screens.

Mutants seen caught: a context of 8,192 tokens, a window of two screenshots, adapters on modules
that are not there.
"""

import math
from pathlib import Path
from typing import Any

import agentrl
from agentrl.config.load import load_config
from agentrl.models.vision.processor import new_processor
from agentrl.registry import make
from agentrl.run.train import warmstart
from agentrl_envs.visual.screen import ButtonScreen

CONFIG = Path("configs/gui_vlm_2b.yaml")
SCREENS: dict[str, Any] = {
    "env.id": "visual/SeeButton-v0",
    "env.kwargs": {"clicks": 7, "width": 56, "height": 56},
    "env.task_limit": 20,
}


def test_it_loads_and_its_screenshots_fit() -> None:
    config = load_config(CONFIG)
    make(config.env.id, **config.env.kwargs)
    desktop = config.env.kwargs["desktop"]
    picture = ButtonScreen(desktop["width"], desktop["height"], ()).picture()
    # Qwen3-VL's: patches of 16 pixels, four to a token.
    tokens = new_processor(patch_size=16, max_pixels=2**24, token_id=0).tokens(picture)
    assert tokens == math.ceil(1280 / 32) * math.ceil(800 / 32) == 1000
    assert config.rollout.images == 5
    said = config.rollout.max_turns * config.sampling.max_turn_tokens
    assert 5 * tokens + said < config.engine.context_tokens


def test_all_of_it_trains_a_tiny_model_of_the_family(tmp_path: Path) -> None:
    """Async rollouts, a window of images, DART's curation, UI-S1's credit, a tree of what is
    shared, recomputed layers, bfloat16 and adapters: two steps, and one from a checkpoint."""
    vision = {"hidden_size": 32, "layers": 1, "intermediate_size": 32}
    new: dict[str, Any] = {
        "run.folder": str(tmp_path),
        "run.name": "new",
        "policy.make": {"hidden_size": 32, "layers": 2, "vocab_size": 300, "vision": vision},
        "warmstart.steps": 60,
        "warmstart.demonstrations": 100,
        "warmstart.batch_size": 16,
        "engine.context_tokens": 128,
    }
    first = warmstart(
        load_config("configs/see_button.yaml", new | {"env.kwargs": SCREENS["env.kwargs"]})
    )
    small: dict[str, Any] = {
        **SCREENS,
        "run.folder": str(tmp_path),
        "run.steps": 2,
        "run.threads": 1,
        "policy.path": str(first),
        "engine.context_tokens": 256,
        "sampling.max_turn_tokens": 8,
        "rollout.tasks_per_step": 2,
        "rollout.group_size": 4,
        "rollout.max_turns": 7,
        "evaluate.tasks": 4,
    }
    result = agentrl.train(CONFIG, small)
    assert result.steps == 2
    assert agentrl.train(CONFIG, {**small, "run.steps": 3}, resume=True).steps == 3
