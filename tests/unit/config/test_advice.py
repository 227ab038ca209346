"""Methods by situation, as `agentrl methods --for` and docs/choosing.md show them.

Mutants seen caught: see each test.
"""

import json
from pathlib import Path

import pytest

from agentrl.config import advice
from agentrl.config.advice import NO_FIGURE, SITUATIONS, MethodAdvice
from agentrl.config.load import load_config
from benchmarks.method_rows import ROWS
from benchmarks.methods import describe, read_recorded
from tests.support.commands import agentrl

ADVICE = [(name, each) for name, situation in SITUATIONS.items() for each in situation.advice]


def test_the_page_holds_the_tables(root: Path) -> None:
    """When this fails: paste `agentrl methods --for --markdown` between the two marks."""
    text = (root / "docs" / "choosing.md").read_text(encoding="utf-8")
    _, begin, rest = text.partition("<!-- choosing: begin -->\n")
    tables, end, _ = rest.partition("<!-- choosing: end -->")
    assert begin
    assert end
    assert tables.strip() == advice.markdown().strip()


@pytest.mark.parametrize(
    ("situation", "each"), ADVICE, ids=lambda value: getattr(value, "name", value)
)
def test_the_keys_of_a_method_make_a_config(situation: str, each: MethodAdvice, root: Path) -> None:
    load_config(root / "configs" / "quickstart.yaml", each.overrides)
    assert not each.row or each.row in ROWS


def test_a_figure_is_that_of_the_recorded_runs() -> None:
    assert dict(advice.read_figures()) == {own.name: describe(own) for own in read_recorded()}


def test_pages_that_say_more_are_there(root: Path) -> None:
    for situation in SITUATIONS.values():
        assert all((root / "docs" / f"{page}.md").is_file() for page in situation.pages)


def test_what_was_not_measured_says_so() -> None:
    assert MethodAdvice(name="", overrides=(), use="").describe_evidence() == NO_FIGURE
    assert MethodAdvice(name="", overrides=(), use="", result="r").describe_evidence() == "r"


def test_the_command_lists_situations_and_refuses_others() -> None:
    assert [*SITUATIONS][0] in agentrl("methods", "--for").output
    assert "DARS" in agentrl("methods", "--for", "sparse-reward").output
    (found,) = json.loads(agentrl("methods", "--for", "no-labels", "--json").stdout)
    assert found == advice.to_json("no-labels")
    refused = agentrl("methods", "--for", "rain", code=2)
    assert all(name in refused.output for name in SITUATIONS)
