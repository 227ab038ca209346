"""Where the questions of one episode's program wait, first for a taker and then for an answer."""

import asyncio
import secrets
from collections import deque
from dataclasses import dataclass, field, replace

from agentrl.env import Action
from agentrl.gateway.dialogue import Asked, BadRequest
from agentrl.message import Message


class DeskClosed(Exception):
    """The episode is over: nobody answers any more."""


@dataclass(slots=True, eq=False)
class Question:
    """One request of the program's, with the whole conversation it belongs to."""

    asked: Asked
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    answered: "asyncio.Future[Action]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    abandoned: bool = False
    """Whether the connection it came over has ended. A client that gives up asks the same again."""

    def answer(self, action: Action) -> None:
        """Say what the policy said."""
        if not self.answered.done():
            self.answered.set_result(action)


class Desk:
    """The questions of one episode, in the order they came; one event loop's own.

    A program may ask several things at once: they are taken one after the other. One that asks
    again after its connection broke gets the answer to its first question, so that a client's
    retries cost no turn and change no conversation.
    """

    def __init__(self) -> None:
        self._waiting: deque[Question] = deque()
        self._left: list[Question] = []
        """Abandoned by the program: it may ask again."""
        self._open: set[Question] = set()
        """Not answered."""
        self._conversations: dict[str, tuple[Message, ...]] = {}
        self._came = asyncio.Event()
        self._why = ""

    async def ask(self, asked: Asked) -> tuple[Question, Action]:
        """Return the question made of a request, and its answer. Cancelled, it is abandoned.

        Raises `BadRequest` for a conversation nobody knows, and `DeskClosed`.
        """
        if self._why:
            raise DeskClosed(self._why)
        question = self._again(asked) or self._new(asked)
        self._open.add(question)
        try:
            action = await asyncio.shield(question.answered)
        except asyncio.CancelledError:
            if question.answered.cancelled():
                raise DeskClosed(self._why) from None
            question.abandoned = True
            self._left.append(question)
            raise
        finally:
            if question.answered.done():
                self._open.discard(question)
        self._conversations[question.id] = (*question.asked.messages, action.message)
        return question, action

    async def next(self) -> Question:
        """Return the next question that somebody still waits for."""
        while True:
            while self._waiting:
                question = self._waiting.popleft()
                if not question.abandoned:
                    return question
                self._left.remove(question)
            self._came.clear()
            await self._came.wait()

    def close(self, why: str) -> None:
        """Refuse everybody who waits, and who comes from now on."""
        self._why = why
        for question in self._open:
            question.answered.cancel()
        self._open.clear()
        self._waiting.clear()
        self._left.clear()

    def _new(self, asked: Asked) -> Question:
        if asked.after:
            if asked.after not in self._conversations:
                raise BadRequest(
                    f"previous_response_id names resp_{asked.after}, which is no answer of this "
                    "episode's"
                )
            before = self._conversations[asked.after]
            asked = replace(asked, messages=(*before, *asked.messages))
        question = Question(asked)
        self._waiting.append(question)
        self._came.set()
        return question

    def _again(self, asked: Asked) -> Question | None:
        for question in self._left:
            known = question.asked
            if (known.messages, known.tools) == (asked.messages, asked.tools):
                self._left.remove(question)
                question.abandoned = False
                return question
        return None
