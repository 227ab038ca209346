"""Text that a template puts around an assistant turn, found by rendering small conversations."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from agentrl.chat.dialects import TEMPLATES
from agentrl.chat.template import WAY_OUT, ChatTemplate
from agentrl.chat.thinking import join_thinking, opened_thinking
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
    depends neither on what comes later nor on how long the conversation is. `moves_tools` lets it
    show the tools at the last user message, where they stay in the context of the first one.
    Raises `ConfigError` where it does.
    """

    closing: str
    """Ends a turn: up to and including the end-of-turn token."""
    closing_of_calls: str
    """Ends a turn that calls."""
    glue: str
    """Between the end of a turn and the next message."""
    generation_prompt: str
    """Opens an assistant turn."""
    header: str
    """Opens an assistant turn of the past."""
    spoken_header: str
    """The generation prompt without any thinking block."""
    thinking_close: str
    """Closes the thinking block that the generation prompt opens; empty if it opens none."""
    tool_fault: str
    """Reason that an environment with tools cannot use the template; empty when it can."""
    bare: str
    """A question as it stands before a turn."""
    lead: str
    """Space before what a turn says, where nothing else opens it."""

    def __init__(self, template: ChatTemplate, *, moves_tools: bool = False) -> None:
        self._template = template
        self._moves_tools = moves_tools
        self.bare, self.lead = self._bare(), ""
        self.generation_prompt, self.header = self._generation_prompt()
        self.spoken_header, self.thinking_close = opened_thinking(self.generation_prompt)
        self.closing, self._tail, self.glue = self._ending(_SAID, ASK_AGAIN)
        self.closing_of_calls = self.closing
        self._tail_of_calls: str | None = None
        self.tool_fault = self._probe_tools()
        self._check_append_only(ASK_AGAIN)
        if not self.tool_fault:
            self._check_append_only(ANSWER)

    @property
    def begins_thinking(self) -> bool:
        """True if the generation prompt opens a thinking block, so that a turn begins inside it."""
        return bool(self.thinking_close)

    def render_after(self, messages: Sequence[Message]) -> str:
        """Return the text after the end of a turn: glue, `messages` and the generation prompt.

        The work is that of rendering a few short messages, however long the conversation is.
        """
        turn, tail = self._turn_before(messages)
        text = self._template.render((ASK, turn, *messages), generation_prompt=True)
        if SPOKEN not in text and turn.tool_calls:
            # A template that shows one call of a turn is answered as if there was no other.
            turn = _calls_before(messages, most=1)
            text = self._template.render((ASK, turn, *messages), generation_prompt=True)
        end = text.find(SPOKEN) + len(SPOKEN)
        if turn.tool_calls:
            tail = self._tail_in(text, end, tail)
        if not text.startswith(tail, end):
            raise ConfigError(
                f"{self._template.name} ends an assistant turn with {text[end : end + 40]!r} if "
                f"messages follow, but with {tail!r} if none do; {WAY_OUT}"
            )
        return text[end + len(tail) :]

    def _tail_in(self, text: str, end: int, tail: str) -> str:
        """Return the end of a turn of calls, whose last one may have another id than `tail` has."""
        if (token := self._template.control.last_in(tail)) is None:
            return tail
        at = text.find(token[0], end)
        return tail if at < 0 else text[end : at + len(token[0])]

    def end_before(self, messages: Sequence[Message]) -> str:
        """Return the text that ends a turn before these messages, the end-of-turn token last."""
        _, tail = self._turn_before(messages)
        if tail.endswith(self.closing):
            return self.closing
        return self._template.control.special_in(tail)[-1][0]

    def turn(self, said: Message) -> str:
        """Return the text of a turn as the template renders it, without what closes it."""
        whole = self._template.render((ASK, said))
        begin = whole.find(self.header, len(self._bare())) + len(self.header)
        if whole.startswith(opening := self._bare() + self.generation_prompt):
            begin = len(opening)
        closing = self.closing_of_calls if said.tool_calls else self.closing
        return whole[begin:].removesuffix(self.glue).removesuffix(closing)

    def past_turn(self, said: Message) -> str:
        """Return the text of a turn, header and end included, once a user has spoken again."""
        answers = tuple(
            Message("tool", "rain", tool_call_id=call.id, name=call.name)
            for call in said.tool_calls
        )
        bare, after = self._bare(), self.render_after((*answers, ASK_AGAIN))
        whole = self._template.render((ASK, said, *answers, ASK_AGAIN), generation_prompt=True)
        if not whole.startswith(bare) or not whole.endswith(after):
            raise ConfigError(
                f"{self._template.name} renders what stands around a turn differently because of "
                f"it; set policy.earlier_turns: sampled, or {WAY_OUT}"
            )
        return whole[len(bare) : len(whole) - len(after)]

    def drops_thinking(self) -> bool:
        """Return whether the template drops the thinking of a turn once a user has spoken again."""
        try:
            return _THOUGHT not in self.past_turn(
                Message("assistant", join_thinking(_THOUGHT, "So."))
            )
        except ConfigError:
            return False

    def _turn_before(self, messages: Sequence[Message]) -> tuple[Message, str]:
        """Return a turn that `messages` may follow, and what the template renders at its end."""
        if self._tail_of_calls is None or not any(m.role == "tool" for m in messages):
            return _SAID, self._tail
        return _calls_before(messages), self._tail_of_calls

    def _bare(self, tools: Sequence[ToolSchema] = ()) -> str:
        """Return a question as it stands before a turn: without what ends a whole conversation."""
        bare = self._template.render((ASK,), tools)
        opening = self._template.render((ASK,), tools, generation_prompt=True)
        ends = self._template.control.special_in(bare)
        if ends and not opening.startswith(bare) and opening.startswith(bare[: ends[-1].start()]):
            return bare[: ends[-1].start()]
        return bare

    def _generation_prompt(self) -> tuple[str, str]:
        """Return the generation prompt, and what of it opens a turn of the past."""
        name, bare = self._template.name, self._bare()
        opening = self._template.render((ASK,), generation_prompt=True)
        answered = self._template.render((ASK, _SAID))
        header = answered.partition(SPOKEN)[0].removeprefix(bare)
        if opening.startswith(bare):
            prompt = opening[len(bare) :]
            opens, _ = opened_thinking(prompt)
            if answered.startswith(opening) and (prompt or not header.strip()):
                self.lead = "" if prompt else header
                return prompt, prompt
            if opens != prompt and opens and answered.startswith(bare + opens):
                return prompt, opens
        raise ConfigError(
            f"{name} starts a new assistant turn with {opening.removeprefix(bare)!r} but a "
            f"past one with {header!r}, so the prompt of a turn differs from its later "
            f"context; honour add_generation_prompt in the template, or {WAY_OUT}"
        )

    def _ending(self, said: Message, follow: Message) -> tuple[str, str, str]:
        """Return the text that closes the turn `said`, its end before `follow`, and the glue.

        The end is from what the turn says last. It is what closes the turn, unless the template
        ends a turn with one token where nothing follows, or with none, and with another before a
        message, such as that of the message's role.
        """
        control = self._template.control
        alone = self._after_spoken((ASK, said))
        followed = self._after_spoken((ASK, said, follow))
        common = _common_beginning(alone, followed)

        def cut(end: int) -> tuple[str, str, str]:
            behind = common[end:]
            glue = behind if common == alone else behind[: len(behind) - len(behind.lstrip())]
            return common[:end], common[:end], glue

        at = common.rfind(self.closing) if said.tool_calls else -1
        if at >= 0:
            return cut(at + len(self.closing))
        if ends := control.special_in(common):
            return cut(ends[-1].end())
        closings, ends = control.special_in(alone), control.special_in(followed)
        direct = said.tool_calls or (ends and not followed[: ends[0].start()].strip())
        if ends and direct and (closings or said.tool_calls or not alone.strip()):
            tail = followed[: ends[0].end()]
            return alone[: closings[-1].end()] if closings else tail, tail, ""
        if (last := control.last_in(common)) is None:
            raise ConfigError(
                f"{self._template.name} ends an assistant turn with {alone!r}, which contains no "
                "special token of the tokenizer, so a policy cannot end its turn; add one to the "
                f"tokenizer, or {WAY_OUT}"
            )
        return cut(last.end())

    def _after_spoken(self, messages: Sequence[Message]) -> str:
        text = self._template.render(messages)
        if text.count(SPOKEN) != 1:
            raise ConfigError(
                f"{self._template.name} renders the content of an assistant message "
                f"{text.count(SPOKEN)} times, but must render it once; {WAY_OUT}"
            )
        return text.partition(SPOKEN)[2]

    def _probe_tools(self) -> str:
        """Return the tool fault; set the end of a turn of calls where the template shows them."""
        name = self._template.name
        try:
            plain = self.render_after((ANSWER,))
        except ConfigError as error:
            plain, fault = None, str(error)
        else:
            fault = ""
        try:
            closing, self._tail_of_calls, _ = self._ending(_calls_before((ANSWER,)), ANSWER)
            called = self.render_after((ANSWER,))
        except ConfigError:
            self._tail_of_calls = called = None
        else:
            ends = self._template.control.special_in(closing)
            if not closing.endswith(self.closing) and ends:
                self.closing_of_calls = ends[-1][0]
        text = called if called is not None else plain
        if text is None:
            return fault
        if ANSWER.text not in text:
            return f"{name} does not show tool results; {WAY_OUT}"
        if TOOL_NAME not in self._template.render((ASK,), (TOOL,)):
            return f"{name} does not show the tools; {tools_way_out(self._template)}"
        _, close = opened_thinking(text)
        if (thinks := bool(close)) != self.begins_thinking:
            return (
                f"{name} opens a thinking block {'after' if thinks else 'before'} a tool's answer "
                f"and not {'before' if thinks else 'after'} it, so a turn does not tell where its "
                "thoughts end; switch thinking in policy.chat_template_kwargs, where the template "
                f"reads a key for it, or {WAY_OUT}"
            )
        return ""

    def _check_append_only(self, follow: Message) -> None:
        """Raise `ConfigError` if `follow`, late in a conversation, is not as `render_after` has it,
        or changes what stands at the beginning."""
        name, what = self._template.name, f"a {follow.role} message"
        turn, tail = self._turn_before((follow,))
        past = (ASK, Message("assistant", "past"), ASK_AGAIN)
        tools = () if self._moves_tools else (TOOL,)
        text = self._template.render((*past, turn, follow, _SAID_NEXT), tools)
        if not text.startswith(self._bare(tools)):
            moved = self._bare() in self._template.render((*past, turn, follow, _SAID_NEXT))
            way = "set policy.earlier_turns: sampled, which leaves the tools where they are, or "
            raise ConfigError(
                f"{name} renders the start of a conversation differently once {what} follows, but "
                "agentrl never re-renders a context; make the template append-only (no dependence "
                f"on later messages), or {way if moved else ''}{WAY_OUT}"
            )
        late = text.partition(SPOKEN)[2].removeprefix(tail).partition(SPOKEN_NEXT)[0]
        alone = self.render_after((follow,))
        begun, _ = opened_thinking(alone)
        if not late.startswith(alone) and not late.startswith(begun):
            raise ConfigError(
                f"{name} renders {what} as {late!r} in a conversation but as {alone!r} on its own, "
                "which is how agentrl renders it; make the template append-only (no dependence on "
                f"earlier messages), or {WAY_OUT}"
            )


def tools_way_out(template: ChatTemplate) -> str:
    """Return the remedy for a template that shows no tools: a shipped one, if one fits."""
    fitting = next((name for name in TEMPLATES if _can_show_tools(template, name)), None)
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


def _common_beginning(one: str, other: str) -> str:
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return one[: sum(1 for _ in same)]


_THOUGHT = "a thought"
_SAID = Message("assistant", SPOKEN)
_SAID_NEXT = Message("assistant", SPOKEN_NEXT)


def _calls_before(messages: Sequence[Message], *, most: int | None = None) -> Message:
    """Return a turn that made the calls which the tool messages answer, or the first ones."""
    answers = [message for message in messages if message.role == "tool"][:most]
    calls = [
        ToolCall(answer.tool_call_id or "call_0", answer.name or TOOL_NAME, {"place": ""})
        for answer in answers
    ]
    calls[-1] = replace(calls[-1], arguments={"place": SPOKEN})
    return Message("assistant", "", tool_calls=tuple(calls))
