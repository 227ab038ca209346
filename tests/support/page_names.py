"""The names that blocks of the documentation are given, by page: what its reader has then."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agentrl.env import Observation, call, say
from agentrl.message import Message
from agentrl.task import Task
from agentrl.trajectory import Node


def chat() -> dict[str, Any]:
    """A tokenizer, a conversation, and a policy that says 42."""
    from agentrl.chat.format import ChatFormat
    from agentrl.chat.tokenizer import conversation_text, train_tokenizer

    messages = (Message("user", "What is 40 + 2?"),)
    text = conversation_text((*messages, Message("assistant", "42")), (), template="hermes")
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = train_tokenizer([text], vocab_size=600, folder=Path(folder), template="hermes")
    said = ChatFormat(tokenizer).write(say("42"))

    def engine(context: list[int], stop: frozenset[int]) -> tuple[int, ...]:
        assert context
        assert said[-1] in stop
        return said

    answers = (Message("user", "And 41 + 2?"),)
    known = {"tokenizer": tokenizer, "messages": messages, "tools": ()}
    return known | {"engine": engine, "answers": answers}


def durability() -> dict[str, Any]:
    """A task whose first turn calls a tool and whose second answers, played already."""
    task = Task(prompt="What is 6 * 7?", answer="42", id="t")
    told: dict[str, Any] = {"logprobs": (-0.5,), "versions": (0,), "source": "sampled"}
    nodes = (
        Node(parent=None, source="prompt", token_ids=(1, 2), turn=0),
        Node(parent=0, token_ids=(3,), turn=0, **told),
        Node(parent=1, source="tool", token_ids=(4,), turn=1, tool_status="ok"),
        Node(parent=2, token_ids=(5,), turn=1, **told),
    )
    reply = Observation((Message("tool", "42", tool_call_id="call_0", name="multiply"),))
    return {
        "folder": Path(tempfile.mkdtemp()),
        "task": task,
        "nodes": nodes,
        "observation": Observation(task.messages, tools=()),
        "action": call("multiply", a=6, b=7),
        "answer": (reply, 0.0, False, False, {}),
        "last_action": say("42"),
        "last_answer": (Observation(()), 1.0, True, False, {}),
    }


def engines() -> dict[str, Any]:
    """An engine, a key, and something to sample."""
    from agentrl.engine.scripted import ScriptedEngine
    from agentrl.policy import GenerateRequest

    return {
        "engine": ScriptedEngine({(1, 2): (3, 4)}),
        "key": b"a secret",
        "request": GenerateRequest(id="one", prompt=(1, 2), max_new_tokens=2),
    }


NAMES: Mapping[str, Callable[[], dict[str, Any]]] = {
    "docs/chat.md": chat,
    "docs/durability.md": durability,
    "docs/engines.md": engines,
}
