"""Text that a template puts around an assistant turn, found by rendering small conversations."""

from collections.abc import Sequence
from dataclasses import replace

from agentrl.chat.dialects import DIALECTS
from agentrl.chat.template import WAY_OUT, ChatTemplate
from agentrl.env import ToolSchema
from agentrl.errors import ConfigError
from agentrl.message import Message, ToolCall

# Noncharacters that stand for what the policy says in two turns. A template neither trims nor
# escapes them, and the first of each is ours: it comes before any message of an environment.
SPOKEN = "\ufdd1"
SPOKEN_NEXT = "\ufdd2"

TOOL_NAME = "weather_at"
ASK = Message("user", "ask")
ASK_AGAIN = Message("user", "ask again")
ANSWER = Message("tool", "rain", tool_call_id="call_0", name=TOOL_NAME)
CALL = ToolCall("call_0", TOOL_NAME, {"place": "Oslo"})
TOOL: ToolSchema = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": "Tell the weather.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "description": "Where."}},
            "required": ["place"],
        },
    },
}


class TurnRenderer:
    """Renders what follows an assistant turn without rendering what precedes it.

    Constructing one proves that this is sound: what a template renders before and after a turn
    depends neither on what comes later nor on how long the conversation is.
    Raises `ConfigError` where it does.
    """

    closing: str
    """Ends a turn: up to and including the end-of-turn token."""
    glue: str
    """Between the end of a turn and the next message."""
    generation_prompt: str
    """Opens an assistant turn."""
    tool_fault: str
    """Reason that an environment with tools cannot use the template; empty when it can."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self.generation_prompt = self._generation_prompt()
        self.closing, self.glue = self._ending(_SAID)
        self._tail_of_calls: str | None = None
        self._tail_of_calls, self.tool_fault = self._probe_tools()
        self._check_append_only(ASK_AGAIN)
        if not self.tool_fault:
            self._check_append_only(ANSWER)

    def render_after(self, messages: Sequence[Message]) -> str:
        """Return the text after the end of a turn: glue, `messages` and the generation prompt.

        The work is that of rendering a few short messages, however long the conversation is.
        """
        turn, tail = self._turn_before(messages)
        text = self._template.render((ASK, turn, *messages), generation_prompt=True)
        end = text.find(SPOKEN) + len(SPOKEN)
        if not text.startswith(tail, end):
            raise ConfigError(
                f"{self._template.name} ends an assistant turn with {text[end : end + 40]!r} if "
                f"messages follow, but with {tail!r} if none do; {WAY_OUT}"
            )
        return text[end + len(tail) :]

    def turn(self, said: Message) -> str:
        """Return the text of a turn as the template renders it, without what closes it."""
        opening = self._template.render((ASK,), generation_prompt=True)
        whole = self._template.render((ASK, said))
        return whole[len(opening) :].removesuffix(self.glue).removesuffix(self.closing)

    def _turn_before(self, messages: Sequence[Message]) -> tuple[Message, str]:
        """Return a turn that `messages` may follow, and what the template renders at its end."""
        if self._tail_of_calls is None or not any(m.role == "tool" for m in messages):
            return _SAID, self.closing
        return _calls_before(messages), self._tail_of_calls

    def _generation_prompt(self) -> str:
        name = self._template.name
        bare = self._template.render((ASK,))
        opening = self._template.render((ASK,), generation_prompt=True)
        answered = self._template.render((ASK, _SAID))
        header = answered.partition(SPOKEN)[0].removeprefix(bare)
        unprompted = opening == bare and bool(header.strip())
        if unprompted or not opening.startswith(bare) or not answered.startswith(opening):
            raise ConfigError(
                f"{name} starts a new assistant turn with {opening.removeprefix(bare)!r} but a "
                f"past one with {header!r}, so the prompt of a turn differs from its later "
                f"context; honour add_generation_prompt in the template, or {WAY_OUT}"
            )
        return opening[len(bare) :]

    def _ending(self, said: Message) -> tuple[str, str]:
        """Return the text that closes the turn `said`, and the text after it."""
        text = self._template.render((ASK, said))
        if text.count(SPOKEN) != 1:
            raise ConfigError(
                f"{self._template.name} renders the content of an assistant message "
                f"{text.count(SPOKEN)} times, but must render it once; {WAY_OUT}"
            )
        tail = text.partition(SPOKEN)[2]
        if (end := self._template.control.last_in(tail)) is None:
            raise ConfigError(
                f"{self._template.name} ends an assistant turn with {tail!r}, which contains no "
                "special token of the tokenizer, so a policy cannot end its turn; add one to the "
                f"tokenizer, or {WAY_OUT}"
            )
        return tail[: end.end()], tail[end.end() :]

    def _probe_tools(self) -> tuple[str | None, str]:
        """Return the end of a turn of calls if `render_after` must render one, and the tool fault.

        It must where a tool message is rendered differently after a call than after plain text.
        """
        try:
            plain = self.render_after((ANSWER,))
        except ConfigError as error:
            plain, fault = None, str(error)
        else:
            fault = ""
        try:
            tail = self._tail_of_calls = self._ending(_calls_before((ANSWER,)))[0]
            called = self.render_after((ANSWER,))
        except ConfigError:
            tail = called = None
        text = called if called is not None else plain
        if text is None:
            return None, fault
        name = self._template.name
        if ANSWER.text not in text:
            return None, f"{name} does not show tool results; {WAY_OUT}"
        if TOOL_NAME not in self._template.render((ASK,), (TOOL,)):
            return None, f"{name} does not show the tools; {tools_way_out(self._template)}"
        return (None if called == plain else tail), ""

    def _check_append_only(self, follow: Message) -> None:
        """Raise `ConfigError` if `follow`, late in a conversation, is not as `render_after` has it,
        or changes what stands at the beginning."""
        name, what = self._template.name, f"a {follow.role} message"
        turn, tail = self._turn_before((follow,))
        past = (ASK, Message("assistant", "past"), ASK_AGAIN)
        text = self._template.render((*past, turn, follow, _SAID_NEXT), (TOOL,))
        if not text.startswith(self._template.render((ASK,), (TOOL,))):
            raise ConfigError(
                f"{name} renders the start of a conversation differently once {what} follows, but "
                "agentrl never re-renders a context; make the template append-only (no dependence "
                f"on later messages), or {WAY_OUT}"
            )
        late = text.partition(SPOKEN)[2].removeprefix(tail).partition(SPOKEN_NEXT)[0]
        if not late.startswith(alone := self.render_after((follow,))):
            raise ConfigError(
                f"{name} renders {what} as {late!r} in a conversation but as {alone!r} on its own, "
                "which is how agentrl renders it; make the template append-only (no dependence on "
                f"earlier messages), or {WAY_OUT}"
            )


def tools_way_out(template: ChatTemplate) -> str:
    """Return the remedy for a template that shows no tools: a shipped one, if one fits."""
    fitting = next((name for name in DIALECTS if _can_show_tools(template, name)), None)
    if fitting is None:
        return WAY_OUT
    return (
        f"set policy.template to {fitting}, which fits this tokenizer and puts the tools and their "
        "call syntax into the system message"
    )


def _can_show_tools(template: ChatTemplate, shipped: str) -> bool:
    try:
        return not TurnRenderer(ChatTemplate(template.tokenizer, shipped)).tool_fault
    except ConfigError:
        return False


_SAID = Message("assistant", SPOKEN)
_SAID_NEXT = Message("assistant", SPOKEN_NEXT)


def _calls_before(messages: Sequence[Message]) -> Message:
    """Return a turn that made the calls which the tool messages answer."""
    answers = [message for message in messages if message.role == "tool"]
    calls = [
        ToolCall(answer.tool_call_id or "call_0", answer.name or TOOL_NAME, {"place": ""})
        for answer in answers
    ]
    calls[-1] = replace(calls[-1], arguments={"place": SPOKEN})
    return Message("assistant", "", tool_calls=tuple(calls))
