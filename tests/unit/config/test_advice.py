"""Methods by situation, as `agentrl methods --for` and docs/choosing.md show them."""

import json
from pathlib import Path

import pytest

from agentrl.config import advice
from agentrl.config.advice import NO_FIGURE, MethodAdvice, read_situations
from agentrl.config.load import load_config
from benchmarks.method_rows import ROWS
from benchmarks.methods import describe, read_recorded
from tests.support.commands import agentrl

SITUATIONS = read_situations()
ADVICE = [each for situation in SITUATIONS.values() for each in situation.advice]


def test_the_page_holds_the_tables(root: Path) -> None:
    """When this fails: paste `agentrl methods --for --markdown` between the two marks."""
    text = (root / "docs" / "choosing.md").read_text(encoding="utf-8")
    _, begin, rest = text.partition("<!-- choosing: begin -->\n")
    tables, end, _ = rest.partition("<!-- choosing: end -->")
    assert begin
    assert end
    assert tables.strip() == advice.markdown().strip()


@pytest.mark.parametrize("each", ADVICE, ids=lambda each: each.name)
def test_the_keys_of_a_method_make_a_config(each: MethodAdvice, root: Path) -> None:
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


def test_the_command_lists_situations_and_refuses_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert all(name in agentrl(capsys, "methods", "--for")[1] for name in SITUATIONS)
    assert "DARS" in agentrl(capsys, "methods", "--for", "sparse-reward")[1]
    (found,) = json.loads(agentrl(capsys, "methods", "--for", "no-labels", "--json")[1])
    assert found == advice.to_json("no-labels")
    code, _, refusal = agentrl(capsys, "methods", "--for", "rain")
    assert code == 2
    assert all(name in refusal for name in SITUATIONS)
