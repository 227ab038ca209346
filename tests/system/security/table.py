"""All attacks, and the table of docs/security.md that is made from them.

`python -m tests.system.security.table`, from the repository's root, writes the table into the
document.
"""

from pathlib import Path

from agentrl.sandbox import Backend
from tests.system.security import (
    commands,
    copies,
    exhaustion,
    leftovers,
    neighbours,
    protocol,
    reach,
)
from tests.system.security.attack import BACKENDS, Attack

GROUPS = {
    "Using things up": exhaustion.ATTACKS,
    "Reaching for the host": reach.ATTACKS,
    "Speaking for the sandbox": protocol.ATTACKS,
    "Leaving things behind": leftovers.ATTACKS,
    "Other sessions": neighbours.ATTACKS,
    "A session and its forks": copies.ATTACKS,
    "Commands": commands.ATTACKS,
}
ATTACKS: tuple[Attack, ...] = tuple(attack for group in GROUPS.values() for attack in group)

DOCUMENT = Path(__file__).parents[3] / "docs" / "security.md"
BEGIN, END = "<!-- attacks: begin -->\n", "<!-- attacks: end -->\n"


def markdown() -> str:
    """Return the tables of attacks and back-ends, and the list of reasons."""
    lines: list[str] = []
    for title, attacks in GROUPS.items():
        head = ["attack", "what the code tries", "what holds it", *BACKENDS]
        lines += [f"### {title}", "", row(head), row(["---"] * len(head))]
        for attack in attacks:
            verdicts = [_verdict(attack, backend) for backend in BACKENDS]
            lines.append(row([f"`{attack.name}`", attack.title, attack.held_by, *verdicts]))
        lines.append("")
    lines += ["### Not contained, and why", ""]
    for attack in ATTACKS:
        for backend, gap in attack.gaps.items():
            note = "" if gap.shown else " (not run by the suite)"
            note += f"; contained with a {gap.unless}" if gap.unless else ""
            lines.append(f"- `{attack.name}` with `{backend}`: {gap.why}{note}.")
    return "\n".join(lines) + "\n"


def _verdict(attack: Attack, backend: Backend) -> str:
    gap = attack.gaps.get(backend)
    if gap is None:
        return "contained"
    return f"with a {gap.unless}" if gap.unless else "**not contained**"


def row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def write_table(begin: str, end: str, text: str) -> None:
    """Put a text into the document, between two marks."""
    before, _, rest = DOCUMENT.read_text().partition(begin)
    _, _, after = rest.partition(end)
    DOCUMENT.write_text(f"{before}{begin}\n{text}\n{end}{after}")


if __name__ == "__main__":
    write_table(BEGIN, END, markdown())
