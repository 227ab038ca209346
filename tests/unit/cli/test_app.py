"""Which command lines ask other distributions for commands: that takes a tenth of a second.

Mutants seen caught: an unknown word taken for one of ours; a key or an option taken for a command.
"""

import sys

import pytest

from agentrl.cli.app import needs_no_others
from tests.support.commands import agentrl


@pytest.mark.parametrize(
    ("line", "alone"),
    [
        ("train a.yaml run.steps=3", True),
        ("--debug config explain", True),
        ("--version", True),
        ("trian a.yaml", False),
        ("--help", False),
        ("--markdown", False),
        ("", False),
    ],
)
def test_a_command_of_ours_needs_no_others(line: str, alone: bool) -> None:
    assert needs_no_others(line.split()) is alone


def test_an_unknown_slot_is_told_before_the_methods_are_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutant seen caught: the catalogue asked first, which takes seconds and the extra `train`."""
    monkeypatch.setitem(sys.modules, "agentrl.learn.catalogue", None)
    monkeypatch.delattr("agentrl.learn.catalogue", raising=False)
    code, out, err = agentrl(capsys, "methods", "los", "--json")
    assert (code, out) == (2, "")
    assert err.startswith("error: 'los' is not a slot; the slots are group_reward, ")
