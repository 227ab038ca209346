"""The commands as docs/cli.md shows them. Mutants seen caught: a group shown instead of what is
below it; an argument that may be left out shown as required; a hidden command shown; a flag's
second name left out; `|` not escaped; what is off shown as a default; commands of other
distributions left out.
"""

from pathlib import Path

import typer
from typer.testing import CliRunner

from agentrl.cli.app import add_commands, app
from agentrl.cli.reference import markdown


def small() -> typer.Typer:
    """Return an application with one of everything."""
    made = typer.Typer()
    below = typer.Typer()

    @made.command()
    def first(
        place: str = typer.Argument(metavar="A|B", help="This|that."),
        rest: str = typer.Argument("", help="More."),
        *,
        times: int = typer.Option(3, help="How often."),
        open: bool = typer.Option(True, "--open/--no-open", help="Open it."),
        quiet: bool = typer.Option(False, help="Say nothing."),
        secret: bool = typer.Option(False, hidden=True),
    ) -> None:
        """Do it.

        Then stop.
        """
        del place, rest, times, open, quiet, secret

    @below.command()
    def second() -> None:
        """Do the other thing."""

    @made.command(hidden=True)
    def third() -> None:
        """Not for you."""

    made.add_typer(below, name="group")
    return made


def test_everything_a_command_takes_is_shown() -> None:
    assert markdown(small()) == "\n".join(
        [
            "## agentrl first\n",
            "```text\nagentrl first A|B [REST] [OPTIONS]\n```\n",
            "Do it.\n\nThen stop.\n",
            "| | default | |",
            "| --- | --- | --- |",
            r"| `A\|B` | required | This\|that. |",
            "| `[REST]` |  | More. |",
            "| `--times TIMES` | `3` | How often. |",
            "| `--open, --no-open` | `--open` | Open it. |",
            "| `--quiet, --no-quiet` |  | Say nothing. |",
            "",
            "## agentrl group second\n",
            "```text\nagentrl group second\n```\n",
            "Do the other thing.\n",
        ]
    )


def test_the_documentation_holds_the_commands(root: Path) -> None:
    """When this fails: paste `agentrl --markdown` between the two marks."""
    add_commands()
    text = (root / "docs" / "cli.md").read_text(encoding="utf-8")
    _, begin, rest = text.partition("<!-- commands: begin -->\n")
    tables, end, _ = rest.partition("<!-- commands: end -->")
    assert begin
    assert end
    assert "## agentrl image build\n" in tables
    assert tables.strip() == markdown(app).strip()


def test_usage_has_one_pair_of_brackets() -> None:
    """Mutant seen caught: brackets in the name of an argument, around which typer puts more."""
    for command in ("train", "doctor", "envs", "view"):
        usage = CliRunner().invoke(app, [command, "--help"]).stdout.partition("\n")[0]
        assert "[[" not in usage
        assert "...}" not in usage
