"""Every command as Markdown: what `agentrl --markdown` prints, and docs/cli.md holds."""

from collections.abc import Iterator
from inspect import cleandoc
from typing import Any, Final

import typer

HEADINGS: Final = ("| | default | |", "| --- | --- | --- |")
ESCAPED: Final = r"\|"


def markdown(app: typer.Typer) -> str:
    """Return a chapter per command of `app`, as its help orders them, groups opened."""
    command: Any = typer.main.get_command(app)
    return "\n".join(
        line for path, leaf in _leaves(command, "agentrl") for line in _chapter(path, leaf)
    )


def _leaves(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the commands that do something. Groups have others below them and do nothing."""
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
        return
    for name, each in below.items():
        if not each.hidden:
            yield from _leaves(each, f"{path} {name}")


def _chapter(path: str, command: Any) -> Iterator[str]:
    parameters = [each for each in command.params if not getattr(each, "hidden", False)]
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    options = [each for each in parameters if each.param_type_name == "option"]
    pieces = [*(_argument(each) for each in arguments), *(["[OPTIONS]"] if options else [])]
    yield f"## {path}\n"
    yield f"```text\n{' '.join([path, *pieces])}\n```\n"
    yield f"{cleandoc(command.help or '')}\n"
    if parameters:
        yield from HEADINGS
        yield from (_row(_argument(each), each) for each in arguments)
        yield from (_row(_option(each), each) for each in options)
        yield ""


def _argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    name = name if parameter.required else f"[{name}]"
    return name if parameter.nargs == 1 else f"{name}..."


def _option(parameter: Any) -> str:
    flags = ", ".join([*parameter.opts, *parameter.secondary_opts])
    if parameter.is_flag:
        return flags
    return f"{flags} {parameter.metavar or parameter.name.upper()}"


def _row(name: str, parameter: Any) -> str:
    cells = (f"`{name}`", _default(parameter), parameter.help or "")
    return f"| {' | '.join(cell.replace('|', ESCAPED) for cell in cells)} |"


def _default(parameter: Any) -> str:
    """Return the default as it would be typed; nothing for what is off or empty without it."""
    if parameter.required:
        return "required"
    default = parameter.default
    if getattr(parameter, "is_flag", False):
        return f"`{parameter.opts[0]}`" if default is True else ""
    if callable(default) or default in (None, "", (), []):
        return ""
    return f"`{default}`"
