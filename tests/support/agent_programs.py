"""Agent programs as somebody writes them who has never heard of agentrl: the official clients only.

Each works on a question with one tool, `double`, until a message calls none. `python
agent_programs.py QUESTION` is a program of its own.
"""

import asyncio
import json
import os
import sys
from typing import Any

import anthropic
import openai

SYSTEM = "Use the tool."
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"number": {"type": "integer", "description": "The number."}},
    "required": ["number"],
}
HELP = {"name": "double", "description": "Return a number doubled."}


def double(arguments: Any) -> str:
    """Return what the tool answers."""
    try:
        return str(2 * int(arguments["number"]))
    except (KeyError, TypeError, ValueError) as error:
        return f"error: {error!r}"


async def with_openai(client: openai.AsyncOpenAI, model: str, question: str) -> str:
    """Answer by chat completions."""
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": question},
    ]
    tools: list[Any] = [{"type": "function", "function": {**HELP, "parameters": SCHEMA}}]
    while True:
        completion = await client.chat.completions.create(
            model=model, messages=messages, tools=tools
        )
        said = completion.choices[0].message
        if not said.tool_calls:
            return said.content or ""
        messages.append(said.model_dump(exclude_none=True))
        for call in said.tool_calls:
            assert call.type == "function"
            answer = double(json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": answer})


async def with_anthropic(client: anthropic.AsyncAnthropic, model: str, question: str) -> str:
    """Answer by messages."""
    messages: list[Any] = [{"role": "user", "content": question}]
    tools: list[Any] = [{**HELP, "input_schema": SCHEMA}]
    while True:
        said = await client.messages.create(
            model=model, max_tokens=99, system=SYSTEM, messages=messages, tools=tools
        )
        if said.stop_reason != "tool_use":
            return "".join(block.text for block in said.content if block.type == "text")
        messages.append({"role": "assistant", "content": [b.model_dump() for b in said.content]})
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": double(block.input)}
            for block in said.content
            if block.type == "tool_use"
        ]
        messages.append({"role": "user", "content": results})


async def with_two_conversations(client: openai.AsyncOpenAI, model: str, question: str) -> str:
    """Hold two conversations by turns, as a program with a sub-agent does; return all answers."""
    talks: list[list[Any]] = [
        [{"role": "user", "content": question}],
        [{"role": "user", "content": f"Check: {question}"}],
    ]
    answers: list[str] = []
    for _ in range(2):
        for talk in talks:
            completion = await client.chat.completions.create(model=model, messages=talk)
            answers.append(completion.choices[0].message.content or "")
            talk.append({"role": "assistant", "content": answers[-1]})
            talk.append({"role": "user", "content": "Go on."})
    return "\n".join(answers)


if __name__ == "__main__":
    # The clients find where to ask in the environment.
    answer = asyncio.run(
        with_openai(openai.AsyncOpenAI(), os.environ["AGENTRL_MODEL"], sys.argv[1])
    )
    sys.stdout.write(f"{answer}\n")
