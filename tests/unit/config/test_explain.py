"""What the schema says about itself, and that the documentation says the same."""

from pathlib import Path

import pytest

from agentrl.config.explain import COMMON_KEYS, explain, markdown
from agentrl.config.run import RunConfig
from agentrl.config.schema import keys, lookup
from agentrl.errors import ConfigError


def test_a_key_is_explained() -> None:
    assert explain("learn.loss.dual_clip").splitlines() == [
        "learn.loss.dual_clip (of ppo_clip, aepo, bapo)",
        "  Upper bound of the ratio for negative advantages (dual clip); null disables it.",
        "  type     a number, more than 1, or null",
        "  default  3.0",
    ]
    assert "default  required" in explain("env.id")


def test_a_section_is_a_table_of_its_keys() -> None:
    lines = explain("metrics").splitlines()
    assert lines[0] == "metrics"
    heading, first = (line.split() for line in lines[lines.index("") + 3 :][:2])
    assert heading == ["key", "type", "default", "meaning"]
    assert first[:5] == ["metrics.tensorboard", "true", "or", "false", "false"]


def test_the_readme_has_the_common_keys(root: Path) -> None:
    """When this fails: put type, default and meaning of `agentrl config explain` there."""
    readme = (root / "README.md").read_text(encoding="utf-8")
    for path in COMMON_KEYS:
        (key,) = lookup(RunConfig, path)
        default = "" if key.required else f"`{key.default}`"
        assert f"| `{path}` | {default} | {key.doc} |\n" in readme


def test_a_choice_lists_every_method() -> None:
    said = explain("learn.correction")
    assert "name one of none, tis" in said
    assert "name: none" in said
    assert "learn.correction.cap" in said


def test_the_empty_key_is_the_whole_config() -> None:
    said = explain()
    first = [line.split()[0] for line in said.splitlines()[3:13]]
    assert first == [*COMMON_KEYS]
    for name in RunConfig.model_fields:
        assert f"\n{name} " in said


@pytest.mark.parametrize("key", sorted({key.path for key in keys(RunConfig)}))
def test_every_key_can_be_explained(key: str) -> None:
    assert explain(key).startswith(key)
    assert lookup(RunConfig, key)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("rollout.grup_size", "did you mean rollout.group_size? Keys of rollout: alarms"),
        ("grup_size", "did you mean rollout.group_size?"),
        ("run.steps.more", "run.steps.more is not a key: run.steps holds a value, not a section"),
        ("learn.correction.capp", "did you mean learn.correction.cap?"),
    ],
)
def test_an_unknown_key_names_the_nearest(key: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        explain(key)
    assert says in str(caught.value)


def test_the_documentation_holds_the_table_of_the_schema(root: Path) -> None:
    """When this fails: paste `agentrl config explain --markdown` between the two marks."""
    text = (root / "docs" / "configuration.md").read_text(encoding="utf-8")
    _, begin, rest = text.partition("<!-- keys: begin -->\n")
    table, end, _ = rest.partition("<!-- keys: end -->")
    assert begin
    assert end
    assert table.strip() == markdown().strip()
