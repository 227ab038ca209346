"""Promises that one run of a check has proven so far."""

from dataclasses import dataclass, field

from agentrl.errors import CheckError


@dataclass(slots=True, kw_only=True)
class PromiseCheck:
    """One run of the checks. Each method proves a few promises and notes them in `proven`."""

    proven: list[str] = field(default_factory=list[str])

    def expect(self, kept: bool, promise: str, found: str) -> None:
        """Note a promise as proven, or raise `CheckError` with what was found instead."""
        if not kept:
            raise CheckError(f"{promise}: {found}")
        self.note(promise)

    def note(self, *promises: str) -> None:
        """Note promises as proven."""
        self.proven += [promise for promise in promises if promise not in self.proven]
