"""A turnstile: lets through at once while its rule allows it, and in the order of arrival later."""

import asyncio
from collections import deque
from collections.abc import Callable

from agentrl.errors import SandboxError

NEVER_BY_ITSELF = float("inf")
"""A rule's answer when time alone will not help: somebody has to leave first."""

Rule = Callable[[], float]
"""Returns 0 and takes what passing costs, or the seconds after which asking again makes sense."""


class AdmissionQueue:
    """First come, first served, by a rule.

    Invariants: the rule is asked for the first in line only; whoever was let through and cannot
    take it, because it was cancelled meanwhile, gives it back by `leave`; nobody waits when the
    rule would let it pass, as long as `pump` is called whenever the rule may have changed its mind.
    """

    def __init__(self, rule: Rule, leave: Callable[[], None], why: Callable[[], str]) -> None:
        self._rule = rule
        self._leave = leave
        self._why = why
        self._line: deque[asyncio.Future[None]] = deque()
        self._let_through = 0
        """How many may go on and have not run since: nobody new may overtake them."""
        self._again: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Number of waiters."""
        return len(self._line)

    def try_pass(self) -> bool:
        """Go through if nobody waits and the rule allows it, without waiting."""
        return not self._line and not self._let_through and self._rule() <= 0

    async def wait(self, within_s: float) -> None:
        """Go through when it is our turn; `SandboxError` when it is not within some seconds.

        Cancelling gives the turn, or what it has brought already, to the next in line.
        """
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._line.append(turn)
        late = loop.call_later(within_s, self._refuse, turn)
        self.pump()
        try:
            if turn.done():
                await asyncio.sleep(0)  # those let through before us run first
            await turn
        except asyncio.CancelledError:
            if turn in self._line:
                self._line.remove(turn)
            elif not turn.cancelled() and turn.exception() is None:
                self._leave()
            self.pump()
            raise
        finally:
            late.cancel()
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._let_through -= 1

    def pump(self) -> None:
        """Let through whoever may pass now."""
        wait_s = NEVER_BY_ITSELF
        while self._line:
            if self._line[0].done():  # cancelled, and has not run since
                self._line.popleft()
            elif (wait_s := self._rule()) <= 0:
                self._line.popleft().set_result(None)
                self._let_through += 1
            else:
                break
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._line and wait_s < NEVER_BY_ITSELF:
            self._again = asyncio.get_running_loop().call_later(wait_s, self.pump)

    def close(self, why: str) -> None:
        """Turn everybody away."""
        while self._line:
            if not (turn := self._line.popleft()).done():
                turn.set_exception(SandboxError(why))
        self.pump()

    def _refuse(self, turn: asyncio.Future[None]) -> None:
        if not turn.done():
            self._line.remove(turn)
            turn.set_exception(SandboxError(self._why()))
