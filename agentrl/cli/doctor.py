"""`agentrl doctor`."""

from rich.table import Table
from rich.text import Text

from agentrl.cli.console import out


def doctor() -> None:
    """Say what this machine has, and how to get what it lacks."""
    from agentrl.doctor import examine

    table = Table(show_edge=False)
    for heading in ("part", "", "what was found", "to get it"):
        table.add_column(heading, overflow="fold")
    for group, parts in examine():
        table.add_section()
        table.add_row(Text(group, style="bold"))
        for part in parts:
            state = Text("live", style="green") if part.live else Text("missing", style="yellow")
            get_it = "" if part.live else part.get_it
            table.add_row(Text(part.name), state, Text(part.detail), Text(get_it))
    out.print(table)
