"""Tokens of a new conversation that are the policy's own words, told again by a program."""

import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from agentrl.env import Action
from agentrl.message import Message
from agentrl.rewards import drop_thoughts
from agentrl.trajectory import Tree

if TYPE_CHECKING:
    from agentrl.chat.renderer import ChatRenderer

SHORTEST_QUOTE = 16
"""Characters below which equal words are a coincidence: `42` is in many prompts."""


def count_quoted_tokens(messages: Sequence[Message], turns: Iterable[tuple[Action, int]]) -> int:
    """Return about how many tokens of a conversation are turns of the policy that it quotes.

    `turns` are what the policy said, each with the tokens that it sampled. A turn counts as often
    as its text, the arguments of a call, or a text in them occur.
    """
    prompt_text = "\n".join(text for message in messages for text in _list_texts(message))
    return sum(tokens * _count_quotes(action, prompt_text) for action, tokens in turns)


def read_sampled_turns(chat: "ChatRenderer", tree: Tree, node: int) -> list[tuple[Action, int]]:
    """Return the turns that the policy sampled on the way to a node, with their tokens."""
    policy_nodes = [one for one in tree.path(node) if one.source == "sampled"]
    turns: list[tuple[Action, int]] = []
    for _, nodes in groupby(policy_nodes, key=lambda one: one.turn):
        token_ids = [token for one in nodes for token in one.token_ids]
        turns.append((chat.parse(token_ids), len(token_ids)))
    return turns


def _count_quotes(action: Action, prompt_text: str) -> int:
    """Return the number of times that a text quotes a turn of the policy."""
    words = {action.text, action.malformed_text, drop_thoughts(action.text)}
    for call in action.tool_calls:
        words.add(_write_arguments(call.arguments))
        words |= {value for value in call.arguments.values() if isinstance(value, str)}
    quotes = [word.strip() for word in words if len(word.strip()) >= SHORTEST_QUOTE]
    return max((prompt_text.count(quote) for quote in quotes), default=0)


def _list_texts(message: Message) -> Iterable[str]:
    yield message.text
    for call in message.tool_calls:
        yield _write_arguments(call.arguments)


def _write_arguments(arguments: object) -> str:
    return json.dumps(arguments, ensure_ascii=False, sort_keys=True)
