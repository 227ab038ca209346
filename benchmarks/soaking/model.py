"""What must hold of a session after each thing that was done to it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from agentrl.sandbox import AfterTimeout, ExecResult

Names = Mapping[str, int]
Ends = Literal["ok", "error", "timeout", "oom", "crash", "limit"]
PREFIX = "v_"
"""Of the names that the model keeps account of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell and what must come of it. Its code begins by printing a token of its own."""

    kind: str
    token: str
    code: str
    """Without the line that prints the token."""
    statuses: tuple[Ends, ...] = ("ok",)
    lost: bool = False
    """It costs the session its interpreter, unless the status is `ok`."""
    timeout_s: float | None = None
    value: str | None = None
    """Of the last expression; only looked at when the status is `ok`."""
    error: str = ""
    """Part of what the result says went wrong."""
    stdout: str = ""
    """After the token."""
    floods: bool = False
    """It writes more than is kept."""
    cut_short: bool = False
    """A machine that is busy may end it before it has written anything."""
    sets: Names = field(default_factory=dict[str, int])
    writes: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Files, which are there whatever became of the interpreter."""
    threads: bool | None = None
    """Whether threads run afterwards; None leaves it as it is."""
    daemons: int = 0
    """Processes it leaves behind."""

    @property
    def text(self) -> str:
        """Return what is sent."""
        return f"print({self.token!r}, flush=True)\n{self.code}"


@dataclass(slots=True)
class State:
    """What is known of a session."""

    names: list[Names] = field(default_factory=lambda: [{}])
    """One, or several when a cancellation left it open which of them it is."""
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    threads: bool = False
    daemons: int = 0
    """Processes that its interpreter left behind and that end with it."""
    helpers: int = 0
    """Processes that its commands left behind."""
    over: bool = False
    """Nothing runs in it any more."""

    def copied(self) -> "State":
        """Return the state of a fork: names and files, and no other process."""
        return State(names=list(self.names), files=dict(self.files))

    def follow(self, cell: Cell, status: str, mode: AfterTimeout) -> None:
        """Take in that a cell was run and ended with this status."""
        self.files.update(cell.writes)
        if cell.lost and status != "ok":
            self.lose(mode)
            return
        self.names = [{**names, **cell.sets} for names in self.names]
        self.daemons += cell.daemons
        if cell.threads is not None:
            self.threads = cell.threads

    def lose(self, mode: AfterTimeout) -> None:
        """Take in that the interpreter was lost in a cell whose names do not count."""
        if mode == "end":
            self.over = True
        elif mode == "fresh" or self.threads:  # an interpreter with threads has no spare
            self.names = [{}]
        self.threads, self.daemons = False, 0

    def perhaps_lost(self, mode: AfterTimeout) -> None:
        """Take in that a cell was cancelled before or after it began."""
        if mode == "fresh" or (mode == "restore" and self.threads):
            self.names.append({})


def wrong_with(cell: Cell, result: ExecResult) -> list[str]:
    """Return in words what a result has that it must not have."""
    found: list[str] = []
    if result.status not in cell.statuses:
        found.append(f"status {result.status} instead of {' or '.join(cell.statuses)}")
    if result.truncated != cell.floods:
        found.append(f"truncated is {result.truncated}")
    whole = f"{cell.token}\n{cell.stdout}"
    told = result.stdout
    if not (
        told.startswith(whole)
        if cell.floods
        else whole.startswith(told)
        if cell.cut_short
        else told == whole
    ):
        found.append(f"stdout {told!r:.80} instead of {whole!r:.80}")
    if result.status == "ok" and result.value != cell.value:
        found.append(f"value {result.value!r:.200} instead of {cell.value!r:.200}")
    if result.status != "ok" and cell.error not in (result.error or ""):
        found.append(f"error {result.error!r:.300} without {cell.error!r}")
    return [f"{text}; {result!r:.600}" for text in found[:1]] if found else []


def wrong_with_names(state: State, seen: Names) -> list[str]:
    """Return in words what is wrong with the names of a session; settles which of them it has."""
    if seen not in state.names:
        return [f"names {seen!r:.200} instead of {' or '.join(map(repr, state.names))[:400]}"]
    state.names = [dict(seen)]
    return []
