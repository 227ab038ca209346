"""Health of an engine: up, down after failures in a row, then probed by one request.

up    --failures in a row-->  down  --probe_after_s-->  due  --one request-->  probing
any   --an answer---------->  up                        probing  --a failure-->  down
                                                        probing  --cancelled-->  due
"""

from dataclasses import dataclass, replace
from typing import Literal

HealthState = Literal["up", "down", "due", "probing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHealthRule:
    """Rule for taking an engine out of work and for probing it again."""

    failures: int = 3
    probe_after_s: float = 30.0
    """After the failure that took it down, or that of a probe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHealth:
    """Health of an engine, from its requests. Frozen; times are of the caller's clock."""

    failures: int = 0
    due_s: float | None = None
    """Time from which it may be probed; None while it is up."""
    probe: str = ""

    def state(self, now_s: float) -> HealthState:
        """Return its state: it gets work when `up`, one request when `due`, else nothing."""
        if self.due_s is None:
            return "up"
        if self.probe:
            return "probing"
        return "due" if now_s >= self.due_s else "down"

    def on_request(self, request_id: str, now_s: float) -> "EngineHealth":
        """Return it after a request was sent: the first one after the delay is the probe."""
        return replace(self, probe=request_id) if self.state(now_s) == "due" else self

    def on_answer(self) -> "EngineHealth":
        """Return it after any answer, also that of a request from before it went down."""
        return EngineHealth()

    def on_failure(self, request_id: str, rule: EngineHealthRule, now_s: float) -> "EngineHealth":
        """Return it after a failure; those of requests from before it went down delay no probe."""
        failures = self.failures + 1
        if self.due_s is not None and self.probe != request_id:
            return replace(self, failures=failures)
        down = failures >= rule.failures
        return EngineHealth(failures=failures, due_s=now_s + rule.probe_after_s if down else None)

    def on_end(self, request_id: str) -> "EngineHealth":
        """Return it after a request ended that says nothing: cancelled, or refused as wrong."""
        return replace(self, probe="") if self.probe == request_id else self
