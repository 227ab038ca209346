"""Which command lines ask other distributions for commands: that takes a tenth of a second.

Mutants seen caught: an unknown word taken for one of ours; a key or an option taken for a command.
"""

import pytest

from agentrl.cli.app import needs_no_others


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
