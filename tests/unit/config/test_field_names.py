"""Keys of TRL, verl and prime-rl are answered with ours, which load.

Mutants seen caught: a hint whose key, value or second key is wrong; the shortest end of a name
found before the longest; keys below a section of another framework passed over.
"""

from pathlib import Path

import pytest

from agentrl.config.field_names import FIELD_HINTS, FieldHint, find_hint, write_table
from agentrl.config.load import load_config
from agentrl.config.problem import unknown_key
from agentrl.config.run import RunConfig
from agentrl.config.schema import lookup
from agentrl.errors import ConfigError

CONFIG = Path(__file__).parents[3] / "configs" / "quickstart.yaml"
ROOMY = "engine.context_tokens=4096"


@pytest.mark.parametrize("hint", dict.fromkeys(FIELD_HINTS.values()), ids=str)
def test_a_config_loads_with_what_a_hint_says(hint: FieldHint) -> None:
    load_config(CONFIG, [ROOMY, *hint.overrides])
    assert all(lookup(RunConfig, override.partition("=")[0]) for override in hint.overrides)


def test_the_documentation_has_the_table(root: Path) -> None:
    """When this fails: write what `write_table` returns between the two marks."""
    text = (root / "docs" / "configuration.md").read_text(encoding="utf-8")
    table = text.partition("<!-- other keys: begin -->\n")[2].partition("<!-- other keys: end -->")[
        0
    ]
    assert table == write_table()
    assert "| `beta`, `kl_beta`, " in table


@pytest.mark.parametrize("name", FIELD_HINTS)
def test_the_error_of_a_name_says_what_to_write(name: str) -> None:
    assert not lookup(RunConfig, name), f"{name} is a key of ours and needs no hint"
    said = unknown_key(name, (RunConfig,), RunConfig)
    assert said.startswith(f"{name} is not a key; write for example {FIELD_HINTS[name]}. Keys of")


def test_sections_of_another_framework_are_answered_key_by_key() -> None:
    theirs = {
        "actor_rollout_ref.actor.clip_ratio": 0.2,
        "actor_rollout_ref.actor.optim.lr": 1e-6,
        "actor_rollout_ref.rollout.n": 8,
        "actor_rollout_ref.rollout.val_kwargs.n": 4,
        "data.unheard_of": 1,
    }
    with pytest.raises(ConfigError) as raised:
        load_config(CONFIG, theirs)
    said = str(raised.value)
    for way in (
        "learn.loss.clip_low=0.2 learn.loss.clip_high=0.2 for actor_rollout_ref.actor.clip_ratio",
        "learn.optimizer.learning_rate=1e-6 for actor_rollout_ref.actor.optim.lr",
        "rollout.group_size=8 for actor_rollout_ref.rollout.n;",
        "evaluate.samples_per_task=4 for actor_rollout_ref.rollout.val_kwargs.n",
        "data is not a key; keys of a config: ",
    ):
        assert way in said


def test_keys_in_a_section_of_ours_are_answered_too() -> None:
    with pytest.raises(
        ConfigError, match=r"rollout\.n is not a key; write for example rollout\.gr"
    ):
        load_config(CONFIG, ["rollout.n=8"])
    assert find_hint("orchestrator.eval.interval") is FIELD_HINTS["eval.interval"]
    assert find_hint("interval") is None
