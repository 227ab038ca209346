"""The conversations of a program: what goes on with which, and what is kept of them.

Mutants seen caught: a turn of another conversation taken; thoughts compared; a message kept twice.
"""

import json
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from agentrl.env import ToolSchema, call, say
from agentrl.gateway.conversations import ConversationNode, ConversationTree, message_keys
from agentrl.message import Image, Message, ToolCall

TOOLS = ({"type": "function", "function": {"name": "f"}},)


def find(
    tree: ConversationTree, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()
) -> ConversationNode:
    return tree.find(tools, [(message_keys(message), message) for message in messages])


MESSAGES = st.lists(
    st.builds(Message, st.sampled_from(["user", "assistant"]), st.text("ab", max_size=2)),
    min_size=1,
    max_size=4,
)


@given(MESSAGES, MESSAGES, st.text("ab", max_size=2))
def test_a_conversation_goes_on_with_what_was_added(
    known: list[Message], more: list[Message], said: str
) -> None:
    tree = ConversationTree()
    assert find(tree, known).continuation() == (None, tuple(known))
    end = tree.add_answer(find(tree, known), say(said).message, 3)
    assert end.messages == (*known, say(said).message)
    again = find(tree, [*known, say(said).message, *more])
    assert again.continuation() == (3, tuple(more))
    changed = [Message("user", "changed"), *known[1:], say(said).message, *more]
    assert find(tree, changed).continuation() == (None, tuple(changed))
    beside = [*known, Message("user", "instead")]
    assert find(tree, beside).continuation() == (None, tuple(beside))
    assert find(tree, [*known, say(said).message, *more], TOOLS).continuation()[0] is None


def test_the_longest_known_prefix_is_that_of_the_latest_turn_in_it() -> None:
    tree = ConversationTree()
    user = [Message("user", text) for text in "abc"]
    one = [user[0], say("1").message]
    tree.add_answer(find(tree, one[:1]), one[1], 0)
    two = [*one, user[1], say("2").message]
    tree.add_answer(find(tree, two[:3]), two[3], 1)
    assert find(tree, [*two, user[2]]).continuation() == (1, (user[2],))
    # Another branch from the first turn, the same question again, and one of the program's own.
    assert find(tree, [*one, user[2]]).continuation() == (0, (user[2],))
    assert find(tree, two[:3]).continuation() == (0, (user[1],))
    # Of two turns that said the same, the later one is gone on with.
    tree.add_answer(find(tree, one[:1]), one[1], 5)
    assert find(tree, [*one, user[2]]).continuation() == (5, (user[2],))
    own = Message("assistant", "not said by the policy")
    assert find(tree, [*one, user[1], own, user[2]]).continuation() == (5, (user[1], own, user[2]))


def test_a_call_may_be_spelt_differently_and_not_changed() -> None:
    tree = ConversationTree()
    ask = Message("user", "q")
    made = call("f", a=1.0, b="x").message
    tree.add_answer(find(tree, [ask]), made, 0)
    other = Message("assistant", " ", tool_calls=(ToolCall("call_0", "f", {"b": "x", "a": 1}),))
    more = Message("tool", "ok", tool_call_id="call_0")
    assert find(tree, [ask, other, more]).continuation() == (0, (more,))
    for wrong in (call("f", a=2, b="x").message, call("g", a=1, b="x").message, say("f").message):
        assert find(tree, [ask, wrong, more]).continuation()[0] is None


def test_thoughts_that_a_program_leaves_out_change_nothing() -> None:
    tree = ConversationTree()
    ask, more = Message("user", "q"), Message("user", "r")
    first, second = say("<think>a</think>\n\nyes").message, say("<think>b</think>\n\nyes").message
    tree.add_answer(find(tree, [ask]), first, 0)
    tree.add_answer(find(tree, [ask]), second, 1)
    for told, turn in ((first, 0), (second, 1), (say("yes").message, 1)):
        assert find(tree, [ask, told, more]).continuation() == (turn, (more,))
    respelt = say("<think>\na\n</think>\nyes").message
    assert find(tree, [ask, respelt, more]).continuation() == (1, (more,))
    assert find(tree, [ask, say("no").message, more]).continuation()[0] is None


def test_an_image_at_another_place_is_another_message() -> None:
    tree = ConversationTree()
    picture = Image(b"p")
    known = Message("user", ("before ", picture, "after"))
    tree.add_answer(find(tree, [known]), say("yes").message, 0)
    more = Message("user", "more")
    moved = Message("user", ("before after", picture))
    assert find(tree, [moved, say("yes").message, more]).continuation()[0] is None
    parted = Message("user", ("be", "fore ", picture, "after"))
    assert find(tree, [parted, say("yes").message, more]).continuation() == (0, (more,))


def test_what_is_told_again_is_kept_once() -> None:
    tree = ConversationTree()
    messages: list[Message] = []
    nodes: list[ConversationNode] = []
    for turn in range(30):
        picture = Image(b"p" * 10 + bytes([turn % 2]))
        messages.append(Message("user", (str(turn), Image(bytes(picture.data)))))
        # A client builds every request of a program from texts and images of its own.
        told = [
            Message(
                m.role,
                json.loads(json.dumps(m.content))
                if isinstance(m.content, str)
                else tuple(Image(bytes(p.data)) if isinstance(p, Image) else p for p in m.content),
            )
            for m in messages
        ]
        nodes.append(find(tree, told))
        end = tree.add_answer(nodes[-1], say(f"said {turn}").message, turn)
        messages += end.messages[-1:]
    kept = {id(message) for node in nodes for message in node.messages}
    assert len(kept) == 2 * len(nodes) - 1
    assert len({id(i) for node in nodes for m in node.messages for i in m.images}) == 2
    assert all(len(node.continuation()[1]) == 1 for node in nodes)
    assert all(b.parent is not None and b.parent.parent is a for a, b in pairwise(nodes))
