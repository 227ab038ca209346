"""How much of a conversation is the policy's own words, however a program tells them again.

Mutants seen caught: thoughts needed for a match; calls and texts in them not looked at; a turn
counted once however often it is quoted; short words counted.
"""

import pytest

from agentrl.env import Action
from agentrl.message import Message, ToolCall
from agentrl.rollout.quoted_turns import count_quoted_tokens, read_sampled_turns
from agentrl.trajectory import Node, Source, Tree
from benchmarks.letters import END, LetterChat, ids
from tests.unit.rollout.test_rollout import TASK

ESSAY = "The lake freezes late."
ANSWER = Action(ESSAY)
CALL = ToolCall("1", "write", {"text": 'He said "no" to the lake.', "n": 3})
CALLING = Action("", (CALL,))


@pytest.mark.parametrize(
    ("message", "action", "count"),
    [
        (Message("user", f"Criticise this: {ESSAY}"), ANSWER, 7),
        (Message("user", f"{ESSAY} Or else: {ESSAY}"), ANSWER, 14),
        (Message("user", "Criticise this: The lake freezes."), ANSWER, 0),
        (Message("user", ESSAY), Action(f"<think>Hm.</think>\n{ESSAY}\n"), 7),
        (Message("user", f"It wrote: {CALL.arguments['text']}"), CALLING, 7),
        (Message("assistant", "", (ToolCall("9", "write", dict(CALL.arguments)),)), CALLING, 7),
        (Message("user", "Is 42 right? It is 42."), Action("42"), 0),
        (Message("user", ESSAY), Action("", malformed=("x",), malformed_text=ESSAY), 7),
    ],
)
def test_a_turn_counts_as_often_as_it_is_quoted(
    message: Message, action: Action, count: int
) -> None:
    system = Message("system", "You are a critic.")
    assert (
        count_quoted_tokens([system, message], [(Action("Another turn entirely."), 5), (action, 7)])
        == count
    )


def test_a_turn_is_all_that_was_sampled_in_it() -> None:
    tree = Tree(TASK)
    node: int | None = None
    parts: list[tuple[Source, str, int]] = [
        ("prompt", "ab>", 0),
        ("sampled", "The la", 0),
        ("sampled", "ke.", 0),
        ("template", "cd>", 1),
        ("sampled", "Ice.", 1),
    ]
    for source, text, turn in parts:
        tokens = (*ids(text), END) if text.endswith(".") else tuple(ids(text))
        drawn = len(tokens) if source == "sampled" else 0
        node = tree.add(
            Node(
                parent=node,
                source=source,
                token_ids=tokens,
                turn=turn,
                logprobs=(0.0,) * drawn,
                versions=(0,) * drawn,
            )
        )
    assert node is not None
    turns = read_sampled_turns(LetterChat(), tree, node)
    assert [(action.text, count) for action, count in turns] == [("The lake.", 10), ("Ice.", 5)]
