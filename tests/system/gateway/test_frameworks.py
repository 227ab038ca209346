"""Agents of other people's frameworks, with their own packages, as programs behind the gateway.

Each framework answers a question with a tool, in each protocol that it speaks, whole and as a
stream, and counts the tokens that it is told of; ends that a bad policy brings about are outcomes.
"""

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.authoring.gold import play_gold
from agentrl.chat.format import ChatFormat
from agentrl.chat.tokenizer import train_tokenizer
from agentrl.config.load import load_config
from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import Action, TurnUsage, say
from agentrl.gateway import GatewayRequest, GatewayServer
from agentrl.learn.contexts import contexts
from agentrl.learn.sample import sample_of
from agentrl.message import ToolCall
from agentrl.policy import GenerateRequest
from agentrl.rollout.episode import EpisodeLimits, EpisodeRunner
from agentrl.task import Split, Task
from agentrl.trajectory import Failed, Finished, Tree
from agentrl_envs.blackbox import BlackBoxEnv, ProgramEndpoint
from agentrl_envs.blackbox.policy_errors import KNOWN, ProgramEnded, find_policy_error, name_end
from agentrl_envs.blackbox.program import CommandProgram
from tests.support.examples import spread_cases

PLACE = Path(__file__).parents[3] / ".bench" / "agents"
PYTHON = str(PLACE / "bin" / "python")
PROGRAM = str(Path(__file__).parents[2] / "support" / "framework_agents.py")
SOON_S = 240.0
QUESTION = Task(prompt="What is 2 * 21?", answer="42", id="q")
USAGE = TurnUsage(70, 3, cached_tokens=40)
TURN_TOKENS = 73
WHOLE_AND_STREAMED = ("chat", "chat_streamed", "responses", "responses_streamed")
AGENTS: dict[str, tuple[str, ...]] = {
    "clients": (*WHOLE_AND_STREAMED, "responses_after", "messages", "messages_streamed"),
    "openai_agents": (*WHOLE_AND_STREAMED, "handoff"),
    "langgraph": (*WHOLE_AND_STREAMED, "messages", "messages_streamed"),
    "smolagents": (
        *("CodeAgent", "CodeAgent_streamed"),
        *("ToolCallingAgent", "ToolCallingAgent_streamed"),
    ),
    "pydantic_ai": tuple(
        f"{protocol}_{kind}"
        for protocol in ("chat", "responses", "messages")
        for kind in ("text", "streamed", "structured")
    ),
}
"""Each answers in two turns, by a program of `PROGRAM`; `handoff` in three."""
TOLD_ANEW = {"openai_agents": 1, "smolagents": 4}
"""Turns that do not go on with the agent's conversation: behind a handoff the tools are others, and
smolagents tells what was called in words of its own."""

pytestmark = [pytest.mark.agents, pytest.mark.slow]


def answer_well(request: GatewayRequest) -> Action:
    """Return what a good policy says: a call of the tool, then what it told."""
    names = [tool["function"]["name"] for tool in request.tools]
    told = [one.text for one in request.messages if one.role in ("tool", "user")]
    if not names:
        first = not any(message.role == "assistant" for message in request.messages)
        code = "print(double(21))" if first else "final_answer('42')"
        return Action(f"<code>\n{code}\n</code>", usage=USAGE)
    for name in names:
        if name.startswith("transfer_to"):
            return Action("", (ToolCall("", name, {}),), usage=USAGE)
    if not any("42" in text for text in told):
        return Action("I double.", (ToolCall("", "double", {"number": 21}),), usage=USAGE)
    for name, arguments in (("final_result", {"value": 42}), ("final_answer", {"answer": "42"})):
        if name in names:
            return Action("", (ToolCall("", name, arguments),), usage=USAGE)
    return Action("42", usage=USAGE)


def answer_badly(request: GatewayRequest) -> Action:
    """Return what a bad policy says, in the way that the question names."""
    question = next(one.text for one in request.messages if one.role == "user")
    names = [tool["function"]["name"] for tool in request.tools]
    for kind, action in (
        ("endless", Action("", (ToolCall("", "double", {"number": 21}),))),
        ("unknown", Action("", (ToolCall("", "treble", {"number": 21}),))),
        ("invalid", Action("", (ToolCall("", names[-1] if names else "", {"value": "many"}),))),
        ("cut", Action('{"val', usage=TurnUsage(70, 1, finish="length"))),
        ("empty", say("")),
        ("text", say("I am lost. <code>")),
    ):
        if kind in question:
            return action
    raise AssertionError(question)


async def run(
    *words: str,
    policy: Callable[[GatewayRequest], Action],
    ignored: Sequence[str] = (),
    python: str = PYTHON,
) -> Any:
    """Return the JSON that a program writes whose requests are answered by a policy."""
    gateway = await GatewayServer.open()
    place = gateway.place(ignored)

    async def answer() -> None:
        while True:
            request = await place.desk.next()
            request.answer(policy(request))

    program = CommandProgram(words=(python, PROGRAM, *words))
    answering = asyncio.ensure_future(answer())
    try:
        async with asyncio.timeout(SOON_S):
            written = await program.run(QUESTION, ProgramEndpoint.from_address(place))
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        await gateway.close()
    return json.loads(written.splitlines()[-1])


@pytest.mark.parametrize("group", AGENTS)
async def test_a_framework_answers_with_tools_in_each_protocol_and_counts_its_tokens(
    group: str,
) -> None:
    begun: list[None] = []

    def policy(request: GatewayRequest) -> Action:
        if request.node.continuation()[0] is None:
            begun.append(None)
        return answer_well(request)

    told = await run(group, "{prompt}", policy=policy)
    turns = {name: 3 if name == "handoff" else 2 for name in AGENTS[group]}
    assert told == {name: ["42", count * TURN_TOKENS] for name, count in turns.items()}
    assert len(begun) == len(AGENTS[group]) + TOLD_ANEW.get(group, 0)


# -- ends -----------------------------------------------------------------------------------------

GRAPH = "langchain.agents"
ENDS: dict[str, dict[str, str | None]] = {
    "clients": {
        "end_parse, cut": "openai.LengthFinishReasonError",
        "end_refused, text": None,
    },
    "openai_agents": {
        "end_openai_agents, endless": "agents.exceptions.MaxTurnsExceeded",
        "end_openai_agents, unknown": "agents.exceptions.ModelBehaviorError",
        "end_openai_agents, text": "",
        "end_openai_agents_structured, text": "agents.exceptions.ModelBehaviorError",
        "end_openai_agents_refused, text": None,
    },
    "langgraph": {
        "end_langgraph, endless": "langgraph.errors.GraphRecursionError",
        "end_langgraph, unknown": "langgraph.errors.GraphRecursionError",
        "end_langgraph, empty": "",
        "end_langgraph_limited, endless": (
            f"{GRAPH}.middleware.model_call_limit.ModelCallLimitExceededError"
        ),
        "end_langgraph_structured, invalid": (
            f"{GRAPH}.structured_output.StructuredOutputValidationError"
        ),
        "end_langgraph_refused, text": None,
    },
    "smolagents": {
        "end_smolagents, text": "",
        "end_smolagents, empty": "",
        "end_smolagents_calls, unknown": "",
        "end_smolagents_refused, text": None,
    },
    "pydantic_ai": {
        "end_pydantic_ai, endless": "pydantic_ai.exceptions.UsageLimitExceeded",
        "end_pydantic_ai, unknown": "pydantic_ai.exceptions.UnexpectedModelBehavior",
        "end_pydantic_ai, empty": "pydantic_ai.exceptions.UnexpectedModelBehavior",
        "end_pydantic_ai_structured, invalid": "pydantic_ai.exceptions.UnexpectedModelBehavior",
        "end_pydantic_ai_streamed, invalid": "pydantic_ai.exceptions.UnexpectedModelBehavior",
        "end_pydantic_ai_cut, cut": "",
        "end_pydantic_ai_refused, text": None,
    },
}
"""The error by which an agent ends that the policy brought about: empty where it goes on by itself,
None where the policy is not to blame (the gateway refused a request)."""


@pytest.mark.parametrize("group", spread_cases([*ENDS], 2))
async def test_ends_that_a_bad_policy_brings_about_are_outcomes(group: str) -> None:
    told = await run(group, policy=answer_badly, ignored=["response_format"])
    found: dict[str, str | None] = {}
    for agent, stderr in told.items():
        ended = ProgramEnded("", lines=name_end(1, stderr))
        line, _ = find_policy_error(ended, KNOWN) or (None, 0)
        found[agent] = line.partition(": ")[0] if line is not None else None if stderr else ""
    assert found == ENDS[group]


# -- as an episode: tokens -------------------------------------------------------------------------


def questions(split: Split, seed: int) -> list[Task]:
    return [QUESTION]


def is_right(task: Task, result: str) -> float:
    return float(json.loads(result.splitlines()[-1]) == task.answer)


def episode_of(chat: ChatFormat, engine: ScriptedEngine, *words: str) -> EpisodeRunner:
    return EpisodeRunner(
        env=BlackBoxEnv(tasks=questions, score=is_right, command=[PYTHON, PROGRAM, *words]),
        engine=engine,
        chat=chat,
        tree=Tree(QUESTION),
        sample=0,
        seed=1,
        limits=EpisodeLimits(max_turns=9, context_tokens=4096),
    )


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> ChatFormat:
    folder = tmp_path_factory.mktemp("hermes")
    texts = ["What is 2 * 21? It is 42."]
    return ChatFormat(train_tokenizer(texts, vocab_size=300, folder=folder, template="hermes"))


async def test_what_an_agent_of_a_framework_trains_is_what_was_sampled(chat: ChatFormat) -> None:
    # Spelt as no template would write it: white space, the order of keys, a number as a float.
    call = '<tool_call>\n{"arguments":  {"number": %s}, "name": "double"}\n</tool_call>'
    said = [f" Let me see. {call % '21.0'}", call % 4, f"{call % 5}\n{call % 6}", "42"]
    sampled = [[*chat.encode(text), *chat.encode(chat.turns.closing)] for text in said]
    left = iter(sampled)
    seen: list[tuple[int, ...]] = []

    def reply(request: GenerateRequest) -> list[int]:
        seen.append(tuple(request.prompt))
        return next(left)

    episode = episode_of(chat, ScriptedEngine(reply), "openai_agents", "{prompt}", "end_many")
    leaf = await asyncio.wait_for(episode.run(), SOON_S)
    assert leaf.outcome == Finished(1.0)
    episode.tree.end(leaf)
    sample = sample_of(episode.tree, leaf)
    assert sample is not None
    (context,) = contexts(sample)
    trained = context.sample.token_ids[context.sample.mask.nonzero()[0]].tolist()
    assert trained == [token for turn in sampled for token in turn]
    for prompt, turn, after in zip(seen, sampled, seen[1:], strict=False):
        assert after[: len(prompt) + len(turn)] == (*prompt, *turn)


@pytest.mark.parametrize(
    ("agent", "outcome"),
    [("end_openai_agents", Finished(0.0)), ("end_openai_agents_refused", None)],
)
async def test_an_end_is_booked_as_the_policys_doing_or_as_a_failure(
    chat: ChatFormat, agent: str, outcome: Finished | None
) -> None:
    turn = '<tool_call>\n{"name": "treble", "arguments": {}}\n</tool_call>'
    engine = ScriptedEngine(lambda _: [*chat.encode(turn), *chat.encode(chat.turns.closing)])
    episode = episode_of(chat, engine, "openai_agents", "{prompt}", agent)
    leaf = await asyncio.wait_for(episode.run(), SOON_S)
    if outcome is not None:
        assert leaf.outcome == outcome
    else:
        assert isinstance(leaf.outcome, Failed)
        assert "'temperature' of the request is 0.5" in leaf.outcome.error


# -- the example ----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1], ids=["sum", "product"])
async def test_the_example_agent_answers_as_its_demonstrations_show(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its config, as it is: a wrong answer pays 0, and what the gold player answers pays 1."""
    monkeypatch.chdir(PLACE.parents[1])
    monkeypatch.setenv("PATH", f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}")
    config = load_config(Path("configs/smollm2/program.yaml"))
    env = agentrl.make(config.env.id, **config.env.kwargs)
    task = next(islice(env.tasks("heldout", seed=0), number, None))
    async with asyncio.timeout(SOON_S):
        episode = await play_gold(env, task)
        (question,) = episode.opening.messages
        assert question.text == f"What is {task.data['a']} {'+*'[number]} {task.data['b']}?"
        assert (episode.reward, len(episode.actions)) == (1.0, 2)
        await env.reset(options={"task": task})
        _, reward, terminated, *_ = await env.step(say("1"))
        assert (reward, terminated) == (0.0, True)
        await env.close()
