"""`agentrl methods`."""

import shutil
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from agentrl.cli.arguments import JsonFlag
from agentrl.cli.console import out, show_json, show_table, show_text
from agentrl.errors import ConfigError

INDENT = " " * 6
FOR = "--for"
OWN_FUNCTION = "or a function of yours: name: custom, function: package.module:f"


class MethodsCommand(TyperCommand):
    """A command whose option `--for` may stand alone."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        pairs = [*pairwise(args), *((last, "-") for last in args[-1:])]
        is_bare = [arg == FOR and following.startswith("-") for arg, following in pairs]
        args = [f"{FOR}=" if bare else arg for arg, bare in zip(args, is_bare, strict=True)]
        return super().parse_args(ctx, args)


def complete_slot(incomplete: str) -> list[str]:
    """Return the slots that begin with what was typed."""
    from agentrl.config.method_table import read_table

    return [name for name in read_table() if name.startswith(incomplete)]


def complete_situation(incomplete: str) -> list[str]:
    """Return the situations that begin with what was typed."""
    from agentrl.config.advice import read_situations

    return [name for name in read_situations() if name.startswith(incomplete)]


def methods(
    slot: Annotated[
        str,
        typer.Argument(autocompletion=complete_slot, help="Slot to list; all slots by default."),
    ] = "",
    *,
    situation: Annotated[
        str | None,
        typer.Option(
            FOR,
            metavar="SITUATION",
            autocompletion=complete_situation,
            help="List the methods for a situation, such as sparse-reward; without one, list the "
            "situations.",
        ),
    ] = None,
    markdown: Annotated[
        bool, typer.Option(show_default=False, help="Print all slots as Markdown tables.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """List the methods of each slot, with their keys, requirements, and sources."""
    if markdown and as_json:
        raise ConfigError("--markdown and --json exclude each other; leave one of them out")
    if situation is not None:
        if slot:
            raise ConfigError(
                f"the slot {slot!r} and {FOR} exclude each other; leave one of them out"
            )
        _show_advice(situation, markdown=markdown, as_json=as_json)
        return
    from agentrl.config import method_table

    table = method_table.read_table(slot)
    if as_json:
        show_json([row for entries in table.values() for row in method_table.to_json(entries)])
        return
    if markdown:
        show_text(method_table.markdown())
        return
    for entries in table.values():
        heading = method_table.heading(entries)
        show_text(out.paint(heading, "bold"))
        for row in method_table.rows(entries):
            _show(row)
        if heading.startswith("learn."):
            show_text(f"  {OWN_FUNCTION}")
        show_text()


def _show_advice(name: str, *, markdown: bool, as_json: bool) -> None:
    from agentrl.config import advice

    names = [name] if name else list(advice.read_situations())
    if as_json:
        show_json([advice.to_json(each) for each in names])
        return
    if markdown:
        show_text(advice.markdown(names))
        return
    if not name:
        rows = [(each, situation.meaning) for each, situation in advice.read_situations().items()]
        show_table(("situation", "what it is"), rows)
        return
    situation = advice.find_situation(name)
    show_text(out.paint(situation.meaning, "bold"))
    for method in situation.advice:
        show_text(f"  {method.name}")
        for override in method.overrides:
            show_text(f"{INDENT}{override}")
        _show_wrapped(method.use)
        _show_wrapped(f"evidence: {method.describe_evidence()}")
    show_text(f"more: {', '.join(f'docs/{page}.md' for page in situation.pages)}")


def _show(row: Sequence[str]) -> None:
    from agentrl.config.method_table import HEADINGS

    name, meaning, *others = row
    show_text(f"  {name}")
    _show_wrapped(meaning)
    for heading, cell in zip(HEADINGS[2:], others, strict=True):
        if cell:
            _show_wrapped(f"{heading}: {cell}")


def _show_wrapped(text: str) -> None:
    """Write an indented paragraph, which only a terminal gets in lines of its own width."""
    if out.is_terminal:
        width = shutil.get_terminal_size().columns
        text = textwrap.fill(text, width, initial_indent=INDENT, subsequent_indent=INDENT)
    show_text(text if out.is_terminal else f"{INDENT}{text}")
