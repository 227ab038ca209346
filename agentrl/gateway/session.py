"""Queue for the requests of one episode's program, first for a taker and then for an answer."""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from agentrl.env import Action, ToolSchema, TurnRequest
from agentrl.gateway.answer import GatewayAnswer, build_answer
from agentrl.gateway.conversations import (
    ConversationNode,
    ConversationTree,
    MessageKeys,
    message_keys,
)
from agentrl.gateway.dialect import BadRequest, ChatRequest, LongRequest
from agentrl.message import Message, ToolCall
from agentrl.runtime.argument_types import type_arguments


class GatewaySessionClosed(Exception):
    """The episode is over: nobody answers any more."""


@dataclass(slots=True, eq=False)
class GatewayRequest:
    """One request of the program's, at the end of the conversation it belongs to."""

    asked: ChatRequest
    """Without its messages, which are the conversation's."""
    node: ConversationNode
    desk: "GatewaySession" = field(repr=False)
    answered: "asyncio.Future[GatewayAnswer]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    waiters: int = 0
    is_delivered: bool = False

    @property
    def abandoned(self) -> bool:
        """True when the connections it came over have ended. A client that gives up asks again."""
        return not self.waiters and not self.is_delivered

    @property
    def messages(self) -> tuple[Message, ...]:
        """The whole conversation."""
        return self.node.messages

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        """Those that the program offers in the conversation."""
        return self.asked.tools

    @property
    def request(self) -> TurnRequest:
        """Settings of the program for the answer."""
        return self.asked.request

    def answer(self, action: Action) -> GatewayAnswer:
        """Say what the policy said, and return it as the program is told it."""
        return self.desk.settle(self, action)

    def refuse(self, reason: str, *, is_too_long: bool = False) -> None:
        """Tell the program why its request cannot be answered."""
        if not self.answered.done():
            self.answered.set_exception((LongRequest if is_too_long else BadRequest)(reason))
            self.answered.exception()  # a program that has gone does not hear it


class GatewaySession:
    """The questions of one episode, in the order they came; one event loop's own.

    A program may ask several things at once: they are taken one after the other. One that asks
    again after its connection broke gets the answer to its first question, and so does a request
    that its client marks as a retry, so that retries cost no turn and change no conversation.
    """

    def __init__(self, ignored: Iterable[str] = ()) -> None:
        self.ignored = frozenset(ignored)
        self.refusals: dict[bytes, str] = {}
        """Faults of refused requests, by conversation. Too long is none; and one that is asked
        again without its fault, and answered, is out."""
        self.long_request = ""
        """Why the last request that was too long was refused."""
        self._conversations = ConversationTree()
        self._waiting: deque[GatewayRequest] = deque()
        self._open: set[GatewayRequest] = set()
        self._questions: dict[ConversationNode, list[GatewayRequest]] = {}
        """The questions at the end of each conversation, in the order they came."""
        self._answers: list[tuple[ConversationNode, bool]] = []
        """By turn: the conversation with its answer, and whether it begins with instructions."""
        self._came = asyncio.Event()
        self._why = ""

    @property
    def turns(self) -> int:
        """Count of questions that were answered; an answer's id is its number."""
        return len(self._answers)

    async def ask(
        self, asked: ChatRequest, keys: Sequence[MessageKeys] | None = None
    ) -> tuple[GatewayRequest, GatewayAnswer]:
        """Return the question made of a request, and its answer. Cancelled, it is abandoned.

        `keys` are those of the request's messages, where they are known. Raises `BadRequest` for a
        conversation nobody knows or can render, and `GatewaySessionClosed`.
        """
        if self._why:
            raise GatewaySessionClosed(self._why)
        question = self._question(asked, keys or [*map(message_keys, asked.messages)])
        question.waiters += 1
        try:
            answer = await asyncio.shield(question.answered)
        except asyncio.CancelledError:
            if question.answered.cancelled():
                raise GatewaySessionClosed(self._why) from None
            raise
        finally:
            question.waiters -= 1
            if question.answered.done():
                self._open.discard(question)
        question.is_delivered = True
        return question, answer

    async def next(self) -> GatewayRequest:
        """Return the next question that somebody still waits for."""
        while True:
            while self._waiting:
                question = self._waiting.popleft()
                if not question.abandoned:
                    return question
                self._open.discard(question)
                self._questions[question.node].remove(question)
            self._came.clear()
            await self._came.wait()

    def settle(self, question: GatewayRequest, action: Action) -> GatewayAnswer:
        """Answer a question with what the policy said, as the next turn."""
        turn = self.turns
        typed = replace(action, tool_calls=_type_calls(action.tool_calls, question.asked.tools))
        answer = build_answer(typed, question.request, id=str(turn))
        node = self._conversations.add_answer(question.node, answer.message, turn)
        self._answers.append((node, bool(question.asked.instructions)))
        if not question.answered.done():
            question.answered.set_result(answer)
        return answer

    def note_refusal(self, refusal: BadRequest, conversation: bytes) -> None:
        """Keep the fault of a refused request; its conversation is empty where nobody can tell."""
        if isinstance(refusal, LongRequest):
            self.long_request = str(refusal)
        else:
            self.refusals.setdefault(conversation, str(refusal))

    def note_answer(self, *conversations: bytes) -> None:
        """Forget the faults of requests whose conversation is answered after all."""
        for conversation in filter(None, conversations):
            self.refusals.pop(conversation, None)

    def close(self, why: str) -> None:
        """Refuse everybody who waits, and who comes from now on."""
        self._why = why
        for question in self._open:
            question.answered.cancel()
        self._open.clear()
        self._waiting.clear()
        self._questions.clear()

    def _question(self, asked: ChatRequest, keys: Sequence[MessageKeys]) -> GatewayRequest:
        """Return the question that a request repeats, or a new one."""
        messages: Iterable[tuple[MessageKeys, Message]] = zip(keys, asked.messages, strict=True)
        if asked.after:
            messages = chain(self._read_before(asked.after), messages)
        if asked.instructions:
            system = Message("system", asked.instructions)
            messages = chain([(message_keys(system), system)], messages)
        node = self._conversations.find(asked.tools, messages)
        asked = replace(asked, messages=())
        questions = self._questions.setdefault(node, [])
        if (first_question := find_first_question(questions, asked)) is not None:
            return first_question
        question = GatewayRequest(asked, node, self)
        questions.append(question)
        self._open.add(question)
        self._waiting.append(question)
        self._came.set()
        return question

    def _read_before(self, id: str) -> Iterable[tuple[MessageKeys, Message]]:
        """Return the conversation that an answer ended, without the instructions it began with."""
        if not id.isdecimal() or len(id) > len(str(self.turns)) or int(id) >= self.turns:
            raise BadRequest(
                f"previous_response_id is resp_{id:.80}, which is not a response of this episode"
            )
        node, is_instructed = self._answers[int(id)]
        return node.list_messages()[is_instructed:]


def find_first_question(
    questions: Sequence[GatewayRequest], asked: ChatRequest
) -> GatewayRequest | None:
    """Return which of the questions of a conversation a request repeats.

    It is the one with its key; the first that nobody waits for, so that each of several clients
    that gave up at a time gets an answer of its own; or, of a retry, the last one.
    """
    candidates = [question for question in questions if question.request == asked.request]
    choices = [question for question in candidates if asked.key and question.asked.key == asked.key]
    choices += [question for question in candidates if question.abandoned]
    choices += candidates[-1:] if asked.is_retry else []
    return choices[0] if choices else None


def _type_calls(calls: Sequence[ToolCall], tools: Sequence[ToolSchema]) -> tuple[ToolCall, ...]:
    """Return calls whose arguments have the types that the request's tools name."""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    return tuple(
        replace(call, arguments=type_arguments(call.arguments, schemas.get(call.name)))
        for call in calls
    )
