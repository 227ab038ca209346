"""Agents of the frameworks that people have, for an interpreter that has the frameworks.

`python framework_agents.py GROUP QUESTION` lets each agent of a group answer the question and
writes their answers as JSON: one with the tool `double`, in each protocol that its framework
speaks, whole and as a stream. They know of the policy what the environment's variables say, and
nothing of agentrl.

`python framework_agents.py GROUP` ends each agent of `ENDS` by what its question makes of the
policy, and writes what stands on stderr then, or that it ended by itself. `... GROUP QUESTION NAME`
is the agent of that name alone, and nothing is caught.
"""

# pyright: basic, reportMissingImports=false
import asyncio
import json
import os
import sys
import traceback
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from typing import Any

MODEL = os.environ.get("AGENTRL_MODEL", "policy")
INSTRUCTIONS = "Use the tool."
Agent = Callable[[str], Awaitable[object]]


def double(number: int) -> int:
    """Return a number doubled.

    Args:
        number: The number.
    """
    return 2 * number


SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "integer"}},
    "required": ["number"],
}
HELP = {"name": "double", "description": "Return a number doubled."}


# -- the clients alone ----------------------------------------------------------------------------


async def chat(question: str, stream: bool = False) -> object:
    import openai

    client: Any = openai.AsyncOpenAI()
    told: list = [{"role": "user", "content": question}]
    tools: list = [{"type": "function", "function": {**HELP, "parameters": SCHEMA}}]
    tokens = 0
    while True:
        asked: dict = {"model": MODEL, "messages": told, "tools": tools}
        if stream:
            usage = {"include_usage": True}
            async with client.chat.completions.stream(**asked, stream_options=usage) as events:
                seen = [event.type async for event in events]
                found = await events.get_final_completion()
            assert seen[-1] in ("content.done", "tool_calls.function.arguments.done", "chunk")
        else:
            found = await client.chat.completions.create(**asked)
        tokens += found.usage.total_tokens
        message = found.choices[0].message
        if not message.tool_calls:
            return [message.content, tokens]
        told.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        for call in message.tool_calls:
            answer = double(**json.loads(call.function.arguments))
            told.append({"role": "tool", "tool_call_id": call.id, "content": str(answer)})


async def chat_streamed(question: str) -> object:
    return await chat(question, stream=True)


async def responses(question: str, stream: bool = False, after: bool = False) -> object:
    import openai

    client: Any = openai.AsyncOpenAI()
    told: list = [{"role": "user", "content": question}]
    tools: list = [{"type": "function", "strict": None, **HELP, "parameters": SCHEMA}]
    tokens, previous = 0, {}
    while True:
        asked: dict = {"model": MODEL, "input": told, "tools": tools, **previous}
        if stream:
            async with client.responses.stream(**asked) as events:
                seen = [event.type async for event in events]
                found = await events.get_final_response()
            assert seen[0] == "response.created"
            assert seen[-1] == "response.completed"
        else:
            found = await client.responses.create(**asked)
        tokens += found.usage.total_tokens
        calls = [item for item in found.output if item.type == "function_call"]
        if not calls:
            return [found.output_text, tokens]
        if after:
            told, previous = [], {"previous_response_id": found.id}
        else:
            told += [item.model_dump(exclude_none=True) for item in found.output]
        for call in calls:
            answer = str(double(**json.loads(call.arguments)))
            told.append({"type": "function_call_output", "call_id": call.call_id, "output": answer})


async def responses_streamed(question: str) -> object:
    return await responses(question, stream=True)


async def responses_after(question: str) -> object:
    return await responses(question, after=True)


async def messages(question: str, stream: bool = False) -> object:
    import anthropic

    client: Any = anthropic.AsyncAnthropic()
    told: list = [{"role": "user", "content": question}]
    tools: list = [{**HELP, "input_schema": SCHEMA}]
    tokens = 0
    while True:
        asked: dict = {"model": MODEL, "max_tokens": 99, "messages": told, "tools": tools}
        if stream:
            async with client.messages.stream(**asked, system=INSTRUCTIONS) as events:
                seen = [event.type async for event in events]
                found = await events.get_final_message()
            assert seen[0] == "message_start"
            assert seen[-1] == "message_stop"
        else:
            found = await client.messages.create(**asked, system=INSTRUCTIONS)
        usage = found.usage
        tokens += usage.input_tokens + usage.cache_read_input_tokens + usage.output_tokens
        if found.stop_reason != "tool_use":
            return ["".join(block.text for block in found.content if block.type == "text"), tokens]
        told.append({"role": "assistant", "content": found.content})
        results = [
            {"type": "tool_result", "tool_use_id": one.id, "content": str(double(**one.input))}
            for one in found.content
            if one.type == "tool_use"
        ]
        told.append({"role": "user", "content": results})


async def messages_streamed(question: str) -> object:
    return await messages(question, stream=True)


CLIENTS = (chat, chat_streamed, responses, responses_streamed, responses_after)
CLIENTS += (messages, messages_streamed)


# -- openai-agents --------------------------------------------------------------------------------


def openai_agents() -> list[Agent]:
    import agents
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)
    client = AsyncOpenAI()
    models = {
        "chat": agents.OpenAIChatCompletionsModel(model=MODEL, openai_client=client),
        "responses": agents.OpenAIResponsesModel(model=MODEL, openai_client=client),
    }
    tool = agents.function_tool(double)

    def make(model: object, stream: bool, name: str) -> Agent:
        async def answer(question: str) -> object:
            agent = agents.Agent(
                name="doubler",
                instructions=INSTRUCTIONS,
                tools=[tool],
                model=model,
                model_settings=agents.ModelSettings(include_usage=True),
            )
            if not stream:
                found = await agents.Runner.run(agent, question)
            else:
                found = agents.Runner.run_streamed(agent, question)
                async for _ in found.stream_events():
                    continue
            return [found.final_output, found.context_wrapper.usage.total_tokens]

        answer.__name__ = name
        return answer

    async def handoff(question: str) -> object:
        doubler = agents.Agent(
            name="doubler", instructions=INSTRUCTIONS, tools=[tool], model=models["chat"]
        )
        first = agents.Agent(
            name="first",
            instructions="Hand over.",
            handoffs=[doubler],
            model=models["chat"],
        )
        found = await agents.Runner.run(first, question)
        return [found.final_output, found.context_wrapper.usage.total_tokens]

    return [
        *(
            make(model, stream, f"{name}{'_streamed' * stream}")
            for name, model in models.items()
            for stream in (False, True)
        ),
        handoff,
    ]


# -- LangChain's agent, a LangGraph ---------------------------------------------------------------


def langgraph() -> list[Agent]:
    from langchain.agents import create_agent
    from langchain_anthropic import ChatAnthropic
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    models = {
        "chat": lambda **more: ChatOpenAI(model=MODEL, stream_usage=True, **more),
        "responses": lambda **more: ChatOpenAI(model=MODEL, use_responses_api=True, **more),
        "messages": lambda **more: ChatAnthropic(model=MODEL, max_tokens=99, **more),
    }

    def make(name: str, stream: bool) -> Agent:
        async def answer(question: str) -> object:
            agent = create_agent(
                models[name](streaming=stream), [tool(double)], system_prompt=INSTRUCTIONS
            )
            state = await agent.ainvoke({"messages": [("user", question)]})
            said = [one for one in state["messages"] if one.type == "ai"]
            tokens = sum(one.usage_metadata["total_tokens"] for one in said)
            return [said[-1].text, tokens]

        answer.__name__ = f"{name}{'_streamed' * stream}"
        return answer

    return [make(name, stream) for name in models for stream in (False, True)]


# -- smolagents -----------------------------------------------------------------------------------


def smolagents() -> list[Agent]:
    from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool

    def make(kind: type, stream: bool) -> Agent:
        async def answer(question: str) -> object:
            model = OpenAIModel(
                model_id=MODEL,
                api_base=os.environ["OPENAI_BASE_URL"],
                api_key=os.environ["OPENAI_API_KEY"],
            )
            agent = kind(
                tools=[tool(double)], model=model, stream_outputs=stream, verbosity_level=0
            )
            found = await asyncio.to_thread(agent.run, question, return_full_result=True)
            return [found.output, found.token_usage.total_tokens]

        answer.__name__ = f"{kind.__name__}{'_streamed' * stream}"
        return answer

    return [
        make(kind, stream) for kind in (CodeAgent, ToolCallingAgent) for stream in (False, True)
    ]


# -- pydantic-ai ----------------------------------------------------------------------------------


def pydantic_ai() -> list[Agent]:
    from pydantic import BaseModel
    from pydantic_ai import Agent as PydanticAgent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

    class Product(BaseModel):
        value: int

    models = {
        "chat": lambda: OpenAIChatModel(MODEL),
        "responses": lambda: OpenAIResponsesModel(MODEL),
        "messages": lambda: AnthropicModel(MODEL),
    }

    async def listen(context: object, events: AsyncIterable[object]) -> None:
        async for _ in events:
            continue

    def make(name: str, kind: str) -> Agent:
        async def answer(question: str) -> object:
            agent = PydanticAgent(
                models[name](),
                tools=[double],
                instructions=INSTRUCTIONS,
                output_type=Product if kind == "structured" else str,
            )
            found = await agent.run(
                question, event_stream_handler=listen if kind == "streamed" else None
            )
            output = found.output
            value = str(output.value) if isinstance(output, Product) else output
            usage: Any = found.usage
            return [value, usage.total_tokens]

        answer.__name__ = f"{name}_{kind}"
        return answer

    return [make(name, kind) for name in models for kind in ("text", "streamed", "structured")]


# -- ends -----------------------------------------------------------------------------------------


async def end_parse(question: str) -> object:
    import openai
    from pydantic import BaseModel

    class Product(BaseModel):
        value: int

    told: list = [{"role": "user", "content": question}]
    client: Any = openai.AsyncOpenAI()
    return await client.chat.completions.parse(
        model=MODEL, messages=told, response_format=Product, max_tokens=1
    )


async def end_refused(question: str) -> object:
    import anthropic

    told: list = [{"role": "user", "content": question}]
    client: Any = anthropic.AsyncAnthropic()
    return await client.messages.create(model=MODEL, max_tokens=9, messages=told, temperature=0.5)


async def end_openai_agents(question: str, turns: int = 3, **more: Any) -> object:
    import agents
    from openai import AsyncOpenAI
    from pydantic import BaseModel

    class Product(BaseModel):
        value: int

    agents.set_tracing_disabled(True)
    agent = agents.Agent(
        name="doubler",
        tools=[agents.function_tool(double)],
        model=agents.OpenAIChatCompletionsModel(model=MODEL, openai_client=AsyncOpenAI()),
        output_type=Product if more.pop("structured", False) else None,
        **more,
    )
    return (await agents.Runner.run(agent, question, max_turns=turns)).final_output


async def end_many(question: str) -> object:
    return await end_openai_agents(question, turns=9)


async def end_openai_agents_structured(question: str) -> object:
    return await end_openai_agents(question, structured=True)


async def end_openai_agents_refused(question: str) -> object:
    import agents

    settings = agents.ModelSettings(temperature=0.5)
    return await end_openai_agents(question, model_settings=settings)


async def end_langgraph(question: str, **more: Any) -> object:
    from langchain.agents import create_agent
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model=MODEL, temperature=more.pop("temperature", None))
    agent = create_agent(model, [tool(double)], **more)
    config = {"recursion_limit": 12}
    state = await agent.ainvoke({"messages": [("user", question)]}, config)
    return state["messages"][-1].text


async def end_langgraph_limited(question: str) -> object:
    from langchain.agents.middleware import ModelCallLimitMiddleware

    limit = ModelCallLimitMiddleware(run_limit=1, exit_behavior="error")
    return await end_langgraph(question, middleware=[limit])


async def end_langgraph_structured(question: str) -> object:
    from langchain.agents.structured_output import ToolStrategy
    from pydantic import BaseModel

    class Product(BaseModel):
        value: int

    return await end_langgraph(question, response_format=ToolStrategy(Product, handle_errors=False))


async def end_langgraph_refused(question: str) -> object:
    return await end_langgraph(question, temperature=0.5)


async def end_smolagents(question: str, name: str = "CodeAgent", **more: Any) -> object:
    import smolagents

    model = smolagents.OpenAIModel(
        model_id=MODEL,
        api_base=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
        **more,
    )
    kind = getattr(smolagents, name)
    agent = kind(tools=[smolagents.tool(double)], model=model, max_steps=2, verbosity_level=0)
    return await asyncio.to_thread(agent.run, question)


async def end_smolagents_calls(question: str) -> object:
    return await end_smolagents(question, "ToolCallingAgent")


async def end_smolagents_refused(question: str) -> object:
    return await end_smolagents(question, temperature=0.5)


async def end_pydantic_ai(question: str, **more: Any) -> object:
    from pydantic import BaseModel
    from pydantic_ai import Agent as PydanticAgent
    from pydantic_ai import UsageLimits
    from pydantic_ai.models.openai import OpenAIChatModel

    class Product(BaseModel):
        value: int

    is_structured, is_streamed = more.pop("structured", False), more.pop("streamed", False)
    output = Product if is_structured else str
    agent = PydanticAgent(OpenAIChatModel(MODEL), tools=[double], output_type=output, **more)
    limits = UsageLimits(request_limit=3)
    if is_streamed:
        async with agent.run_stream(question, usage_limits=limits) as found:
            return await found.get_output()
    return (await agent.run(question, usage_limits=limits)).output


async def end_pydantic_ai_structured(question: str) -> object:
    return await end_pydantic_ai(question, structured=True)


async def end_pydantic_ai_streamed(question: str) -> object:
    return await end_pydantic_ai(question, structured=True, streamed=True)


async def end_pydantic_ai_cut(question: str) -> object:
    return await end_pydantic_ai(question, model_settings={"max_tokens": 1})


async def end_pydantic_ai_refused(question: str) -> object:
    return await end_pydantic_ai(question, model_settings={"temperature": 0.5})


ENDS: Mapping[str, list[tuple[Agent, str]]] = {
    "clients": [(end_parse, "cut"), (end_refused, "text")],
    "openai_agents": [
        (end_openai_agents, "endless"),
        (end_openai_agents, "unknown"),
        (end_openai_agents, "text"),
        (end_openai_agents_structured, "text"),
        (end_openai_agents_refused, "text"),
    ],
    "langgraph": [
        (end_langgraph, "endless"),
        (end_langgraph, "unknown"),
        (end_langgraph, "empty"),
        (end_langgraph_limited, "endless"),
        (end_langgraph_structured, "invalid"),
        (end_langgraph_refused, "text"),
    ],
    "smolagents": [
        (end_smolagents, "text"),
        (end_smolagents, "empty"),
        (end_smolagents_calls, "unknown"),
        (end_smolagents_refused, "text"),
    ],
    "pydantic_ai": [
        (end_pydantic_ai, "endless"),
        (end_pydantic_ai, "unknown"),
        (end_pydantic_ai, "empty"),
        (end_pydantic_ai_structured, "invalid"),
        (end_pydantic_ai_streamed, "invalid"),
        (end_pydantic_ai_cut, "cut"),
        (end_pydantic_ai_refused, "text"),
    ],
}


async def list_ends(group: str) -> dict[str, str]:
    """Return how each agent ended: what a traceback says, or an empty text."""
    told = {}
    for agent, question in ENDS[group]:
        try:
            await agent(question)
        except Exception:  # noqa: BLE001 - whatever a framework raises is what is asked here
            told[f"{agent.__name__}, {question}"] = traceback.format_exc()
        else:
            told[f"{agent.__name__}, {question}"] = ""
    return told


GROUPS: Mapping[str, Callable[[], list[Agent]]] = {
    "clients": lambda: [*CLIENTS],
    "openai_agents": openai_agents,
    "langgraph": langgraph,
    "smolagents": smolagents,
    "pydantic_ai": pydantic_ai,
}


async def play(group: str, question: str) -> dict[str, object]:
    """Return what each agent of a group answered, with the tokens it was told it cost."""
    return {agent.__name__: await agent(question) for agent in GROUPS[group]()}


if __name__ == "__main__":
    named, *told = sys.argv[1:]
    match told:
        case []:
            result = asyncio.run(list_ends(named))
        case [asked]:
            result = asyncio.run(play(named, asked))
        case [asked, alone]:
            result = str(asyncio.run(globals()[alone](asked)))
    sys.stdout.write(f"\n{json.dumps(result)}")  # smolagents writes to stdout as well
