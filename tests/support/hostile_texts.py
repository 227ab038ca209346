"""Texts that a policy, a program or a peer may write: calls, bodies, and what is close to them."""

import json
import random
from collections.abc import Sequence
from typing import Any

PIECES = (
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", "<|im_end|>", ";"),
    *("\n", " ", "{", "}", "[", "]", '"', "\\", ":", ",", "null", "NaN", "-Infinity", "1e999"),
    *("\\ud800", "\\udc00", "\\u0000", "\ud800", "\0", "\ufdd0", "\ufeff", "\u202e", "é", "🙂"),
    *('{"name": "f"', '"arguments": ', '"parameters": ', '{"a": ', '{"$tuple": ', '"$": "Task"'),
    *("9" * 400, "-" + "9" * 5_000, "[" * 70, '{"a":' * 70, "[" * 700 + "]" * 700, "0," * 300),
)
VALUES = (
    *('"a\\u0000"', '"\\ud800"', "1e999", "NaN", "-Infinity", "9" * 400, "-" + "9" * 5_000),
    *("[" * 64 + "]" * 64, "[" * 300 + "]" * 300, "[" * 700 + "]" * 700, "[" * 100_000),
    *('{"$":' * 63 + "1" + "}" * 63, '{"a":' * 400 + "1" + "}" * 400, "[" + "0," * 10_001 + "0]"),
)
"""JSON that Python reads, or nearly reads, and that something behind cannot take."""


class TextFuzzer:
    """Draws hostile texts from one source of randomness: the same seed, the same texts."""

    def __init__(self, seed: int, tools: Sequence[str]) -> None:
        """Let calls name these tools, most of the time."""
        self.random = random.Random(seed)
        self._tools = (*tools, "", "no_such_tool", "f" * 300, "é", "__class__")

    def value(self, depth: int = 0) -> Any:
        """Return a value that Python's JSON writes, be it JSON or not."""
        draw = self.random
        kind = draw.randrange(12 if depth < 6 else 8)
        match kind:
            case 0:
                return draw.choice((None, True, False))
            case 1:
                return draw.choice((0, -1, 7, 2**63, 10**308, 10**309, -(10**400)))
            case 2:
                return draw.choice((0.5, -0.0, 1e308, float("nan"), float("inf"), 1e-320))
            case 3:
                return draw.choice(PIECES)
            case 4:
                return "".join(draw.choices(PIECES, k=3))
            case 5:
                return draw.choice("abc") * draw.choice((1, 10, 10_000, 300_000))
            case 6 | 7:
                return draw.choice(("x", "../x", "3", "name", "", " "))
            case 8 | 9:
                return [self.value(depth + 1) for _ in range(draw.randrange(4))]
            case 10:
                nested: Any = 1
                for _ in range(draw.choice((5, 60, 64, 65, 200))):
                    nested = [nested] if draw.randrange(2) else {draw.choice("a$"): nested}
                return nested
            case _:
                return self.fields(depth)

    def fields(self, depth: int = 0) -> dict[str, Any]:
        """Return an object."""
        keys = ("number", "text", "name", "items", "options", "a", "$", "$tuple", "", "\ud800")
        chosen = self.random.sample(keys, k=self.random.randrange(4))
        return {key: self.value(depth + 1) for key in chosen}

    def call(self) -> str:
        """Return a call, as one of the dialects writes it or nearly so."""
        draw = self.random
        if draw.randrange(2):
            return self.sound_call()
        arguments = draw.choice(("arguments", "parameters", "args"))
        fields: dict[str, Any] = {"name": draw.choice(self._tools), arguments: self.fields()}
        if not draw.randrange(10):
            fields[draw.choice(("name", arguments, "type"))] = self.value()
        text = json.dumps(fields, ensure_ascii=bool(draw.randrange(2)))
        return draw.choice(("{}", "<tool_call>\n{}\n</tool_call>", "<|python_tag|>{}")).replace(
            "{}", text
        )

    def sound_call(self) -> str:
        """Return a call in which nothing is wrong but one value."""
        draw = self.random
        key = draw.choice(("text", "name", "number", "items", "options"))
        form = draw.choice(
            (
                '<tool_call>{"name": "%s", "arguments": {"%s": %s}}</tool_call>',
                '<|python_tag|>{"name": "%s", "parameters": {"%s": %s}}',
            )
        )
        return form % (draw.choice(self._tools[:2]), key, draw.choice(VALUES))

    def arguments(self) -> str:
        """Return the arguments of a call, as a text."""
        if self.random.randrange(2):
            return self.spoilt(json.dumps(self.fields()))
        return f'{{"text": {self.random.choice(VALUES)}}}'

    def text(self) -> str:
        """Return a turn: calls and pieces, spoilt in a few places."""
        draw = self.random
        parts = [
            self.call() if draw.randrange(2) else draw.choice(PIECES)
            for _ in range(draw.choice((1, 1, 2, 5)))
        ]
        if not draw.randrange(50):
            parts *= draw.choice((40, 200))
        return self.spoilt("".join(parts)) if draw.randrange(3) else "".join(parts)

    def body(self, roles: Sequence[str]) -> bytes:
        """Return the body of a request, or nearly so."""
        draw = self.random
        messages: list[Any] = [
            {
                "role": draw.choice(roles),
                "content": draw.choice((self.value(4), [{"type": "text", "text": self.value(5)}])),
                **(self.fields(4) if not draw.randrange(4) else {}),
                **({"tool_calls": [self.value(3)]} if not draw.randrange(4) else {}),
                **({"tool_call_id": self.value(6)} if not draw.randrange(4) else {}),
            }
            for _ in range(draw.randrange(4))
        ]
        fields = {draw.choice(("messages", "input")): messages, **self.fields(3)}
        if not draw.randrange(3):
            fields["tools"] = [self.value(3)]
        text = json.dumps(fields, ensure_ascii=bool(draw.randrange(2)))
        return self.spoilt(text).encode(errors="surrogatepass")

    def spoilt(self, text: str) -> str:
        """Return a text with a few edits, or none."""
        draw = self.random
        for _ in range(draw.choice((0, 0, 1, 1, 3))):
            at = draw.randrange(len(text) + 1)
            upto = min(len(text), at + draw.choice((0, 1, 1, 20)))
            text = text[:at] + draw.choice((*PIECES, "", "", text[:at][-30:])) + text[upto:]
        return text if draw.randrange(8) else text[: draw.randrange(len(text) + 1)]
