"""Agent programs as environments: played, trained, and ended, whatever they do.

Mutants seen caught: other tools not noticed; calls of two turns under one id; a program that goes
on when its episode is over; an exit code not looked at; our variables handed to a command.
"""

import asyncio
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

import agentrl
from agentrl.authoring.gold import play_gold
from agentrl.chat.renderer import ChatRenderer
from agentrl.config.load import load_config
from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import Action, Observation, ToolSchema
from agentrl.errors import ConfigError, EnvError, RequestError
from agentrl.learn.contexts import contexts
from agentrl.learn.sample import sample_of
from agentrl.message import Message, ToolCall
from agentrl.metrics.writer import read_metrics
from agentrl.rollout.episode import EpisodeLimits, EpisodeRunner
from agentrl.run.train import train, warmstart
from agentrl.task import Split, Task
from agentrl.testing.leaks import ProcessHoldings, check_no_leak
from agentrl.trajectory import Failed, Finished, Tree, Truncated
from agentrl_envs.blackbox import BlackBoxEnv, ProgramEndpoint
from agentrl_envs.blackbox import env as blackbox_env
from agentrl_envs.blackbox.env import Agent
from agentrl_sandbox.reaping.owner import start_ticks
from benchmarks.letters import LetterChat, said
from tests.support.agent_programs import with_anthropic, with_openai
from tests.support.said_turns import saying, text_of

SUPPORT = Path(__file__).parents[1] / "support"
SOON_S = 120.0
QUESTION = Task(prompt="What is 2 * 21?", answer="42", id="q")
DOUBLE = Action("", (ToolCall("call_0", "double", {"number": 21}),))
COMMAND = [sys.executable, str(SUPPORT / "agent_programs.py"), "{prompt}"]


def questions(split: Split, seed: int) -> Iterable[Task]:
    return [QUESTION]


def is_right(task: Task, result: Any) -> float:
    return float(str(result).strip() == task.answer)


async def openai_agent(task: Task, endpoint: ProgramEndpoint) -> str:
    url = endpoint.openai_url
    async with openai.AsyncOpenAI(base_url=url, api_key=endpoint.key) as client:
        return await with_openai(client, endpoint.model, task.messages[-1].text)


async def anthropic_agent(task: Task, endpoint: ProgramEndpoint) -> str:
    url = endpoint.anthropic_url
    async with anthropic.AsyncAnthropic(base_url=url, api_key=endpoint.key) as client:
        return await with_anthropic(client, endpoint.model, task.messages[-1].text)


def blocking_agent(task: Task, endpoint: ProgramEndpoint) -> str:
    """A program that knows no asyncio, by the third protocol."""
    with openai.OpenAI(base_url=endpoint.openai_url, api_key=endpoint.key) as client:
        said = client.responses.create(model=endpoint.model, input=task.messages[-1].text)
        said = client.responses.create(
            model=endpoint.model, input="Are you sure?", previous_response_id=said.id
        )
        return said.output_text


def env_of(**program: Any) -> BlackBoxEnv:
    return BlackBoxEnv(tasks=questions, score=is_right, **program)


async def begun(env: BlackBoxEnv) -> Observation:
    observation, _ = await env.reset(seed=0, options={"task": QUESTION})
    return observation


def begin_episode(
    env: BlackBoxEnv,
    engine: ScriptedEngine,
    chat: ChatRenderer,
    *,
    limits: EpisodeLimits | None = None,
) -> EpisodeRunner:
    return EpisodeRunner(
        env=env,
        engine=engine,
        chat=chat,
        tree=Tree(QUESTION),
        sample=0,
        seed=1,
        limits=limits or EpisodeLimits(),
    )


@pytest.mark.parametrize(
    "program",
    [{"agent": openai_agent}, {"agent": anthropic_agent}, {"command": COMMAND}],
    ids=["openai", "anthropic", "command"],
)
async def test_a_program_asks_calls_and_is_scored(program: Mapping[str, Any]) -> None:
    await asyncio.to_thread(int)  # the clients use the loop's threads, which stay
    before = ProcessHoldings.take()
    env = env_of(**program)
    async with asyncio.timeout(SOON_S):
        shown = await begun(env)
        assert [m.role for m in shown.messages] == ["system", "user"]
        assert shown.messages[-1].text == QUESTION.prompt
        assert shown.tools is not None
        assert [tool["function"]["name"] for tool in shown.tools] == ["double"]
        answered, reward, terminated, truncated, _ = await env.step(DOUBLE)
        (told,) = answered.messages
        assert (told.role, told.text, answered.tools, answered.anew) == ("tool", "42", None, False)
        assert (reward, terminated, truncated) == (0.0, False, False)
        _, reward, terminated, _, _ = await env.step(agentrl.say("42"))
        assert (reward, terminated) == (1.0, True)
        await env.close()
    await check_no_leak(before)


async def test_a_program_that_blocks_runs_in_a_thread() -> None:
    env = env_of(agent=blocking_agent)
    async with asyncio.timeout(SOON_S):
        await begun(env)
        shown, *_ = await env.step(agentrl.say("41"))
        assert [m.text for m in shown.messages] == ["Are you sure?"]
        _, reward, terminated, _, _ = await env.step(agentrl.say("42"))
        assert (reward, terminated) == (1.0, True)
        await env.close()


async def sub_agent(task: Task, endpoint: ProgramEndpoint) -> str:
    """Ask two sub-agents at once, then go on with the first conversation."""
    async with openai.AsyncOpenAI(base_url=endpoint.openai_url, api_key=endpoint.key) as client:

        async def ask(*messages: Any) -> str:
            told = [
                {"role": "user" if i % 2 == 0 else "assistant", "content": m}
                for i, m in enumerate(messages)
            ]
            found = await client.chat.completions.create(model="", messages=told)  # pyright: ignore
            return found.choices[0].message.content or ""

        plan = await ask("plan")
        parts = await asyncio.gather(ask("part 1"), ask("part 2"))
        more = await ask("plan", plan, "go on")
        return await ask("plan", plan, "go on", more, "and " + " ".join(sorted(parts)))


async def test_sub_agents_have_contexts_of_their_own() -> None:
    env = env_of(agent=sub_agent)
    said = iter(["p", "one", "two", "42", "42"])
    async with asyncio.timeout(SOON_S):
        shown = [await begun(env)]
        while True:
            observation, reward, terminated, *_ = await env.step(agentrl.say(next(said)))
            if terminated:
                break
            shown.append(observation)
        await env.close()
    assert reward == 1.0
    assert [one.anew for one in shown] == [False, True, True, False, False]
    assert [one.after for one in shown] == [None, None, None, 0, None]
    assert sorted(one.messages[0].text for one in shown[1:3]) == ["part 1", "part 2"]
    assert [m.text for m in shown[3].messages] == ["go on"]
    assert [m.text for m in shown[4].messages] == ["and one two"]


async def growing(task: Task, endpoint: ProgramEndpoint) -> str:
    """Call twice, and have one more tool from the second time on; tell the ids of the calls."""
    async with openai.AsyncOpenAI(base_url=endpoint.openai_url, api_key=endpoint.key) as client:
        tools: list[Any] = [{"type": "function", "function": {"name": "double"}}]
        messages: list[Any] = [{"role": "user", "content": "q"}]
        ids: list[str] = []
        for _ in range(2):
            found = await client.chat.completions.create(model="", messages=messages, tools=tools)
            message = found.choices[0].message
            ids += [call.id for call in message.tool_calls or ()]
            messages.append(message.model_dump(exclude_none=True))
            messages += [{"role": "tool", "tool_call_id": ids[-1], "content": "x"}]
            tools = [*tools, {"type": "function", "function": {"name": "halve"}}]
        return " ".join(ids)


async def test_calls_have_names_of_their_own_and_new_tools_open_a_context() -> None:
    told: list[str] = []

    def score(task: Task, result: str) -> float:
        told.extend(result.split())
        return 1.0

    env = BlackBoxEnv(tasks=questions, score=score, agent=growing)
    async with asyncio.timeout(SOON_S):
        await begun(env)
        shown, *_ = await env.step(DOUBLE)
        assert shown.anew
        assert [m.role for m in shown.messages] == ["user", "assistant", "tool"]
        assert shown.tools is not None
        assert [tool["function"]["name"] for tool in shown.tools] == ["double", "halve"]
        _, _, terminated, _, _ = await env.step(DOUBLE)
        assert terminated
        await env.close()
    assert len({*told}) == 2


# -- as an episode: tokens ------------------------------------------------------------------------


class Murmurs(LetterChat):
    """Reads in small letters what was sampled in large ones."""

    def parse(self, token_ids: Sequence[int]) -> Action:
        return agentrl.say(said(token_ids).lower())


async def chatty(task: Task, endpoint: ProgramEndpoint) -> str:
    async with openai.AsyncOpenAI(base_url=endpoint.openai_url, api_key=endpoint.key) as client:
        messages: list[Any] = [{"role": "user", "content": "q"}]
        for question in ("r", "s", "t"):
            found = await client.chat.completions.create(model="", messages=messages)
            text = found.choices[0].message.content
            messages += [{"role": "assistant", "content": text}]
            messages += [{"role": "user", "content": question}]
            if question == "s":  # the program forgets what was said
                messages = [{"role": "user", "content": "anew"}]
        return text or ""


async def test_what_was_sampled_is_in_the_context_as_it_was_sampled() -> None:
    seen: list[str] = []
    episode = begin_episode(
        env_of(agent=chatty), ScriptedEngine(saying("ONE", "TWO", "42", seen=seen)), Murmurs()
    )
    leaf = await asyncio.wait_for(episode.run(), SOON_S)
    assert leaf.outcome == Finished(1.0)
    assert seen == ["q>", "q>ONE.r>", "anew>"]
    episode.tree.end(leaf)
    sample = sample_of(episode.tree, leaf)
    assert sample is not None
    assert [text_of(c.sample.token_ids) for c in contexts(sample)] == ["anew>42.", "q>ONE.r>TWO."]


async def interleaved(task: Task, endpoint: ProgramEndpoint) -> str:
    """Hold three conversations by turns, each with its own protocol, and ask one thing twice."""
    base = endpoint.openai_url
    async with (
        openai.AsyncOpenAI(base_url=base, api_key=endpoint.key) as client,
        anthropic.AsyncAnthropic(base_url=endpoint.anthropic_url, api_key=endpoint.key) as other,
    ):
        chat: list[Any] = [{"role": "user", "content": "a"}]
        blocks: list[Any] = [{"role": "user", "content": "b"}]
        after: Any = openai.omit
        usages: list[tuple[int, int]] = []
        for number in range(3):
            found = await client.chat.completions.create(model="", messages=chat)
            assert found.usage is not None
            usages.append((found.usage.prompt_tokens, found.usage.completion_tokens))
            chat.append(found.choices[0].message.model_dump(exclude_none=True))
            chat.append({"role": "user", "content": f"a{number}"})
            told = await other.messages.create(model="", max_tokens=9, messages=blocks)
            usages.append((told.usage.input_tokens, told.usage.output_tokens))
            blocks.append({"role": "assistant", "content": told.content})
            blocks.append({"role": "user", "content": f"b{number}"})
            said = await client.responses.create(
                model="", input=f"c{number}", previous_response_id=after
            )
            assert said.usage is not None
            usages.append((said.usage.input_tokens, said.usage.output_tokens))
            after = said.id
        again = await client.chat.completions.create(model="", messages=chat[:3])
        assert again.usage is not None
        usages.append((again.usage.prompt_tokens, again.usage.completion_tokens))
        return json.dumps(usages)


async def test_interleaved_conversations_train_on_what_was_sampled_bit_for_bit() -> None:
    seen: list[str] = []
    words = ["A", "B", "C", "AA", "BB", "CC", "AAA", "BBB", "CCC", "XX"]
    engine = ScriptedEngine(
        saying(*words, seen=seen),
        logprob=lambda request, place, token: -(len(request.prompt) + place / 8) / (token + 1),
    )
    told: list[str] = []

    def score(task: Task, result: str) -> float:
        told.append(result)
        return 1.0

    episode = begin_episode(
        BlackBoxEnv(tasks=questions, score=score, agent=interleaved),
        engine,
        Murmurs(),
        limits=EpisodeLimits(max_turns=12),
    )
    leaf = await asyncio.wait_for(episode.run(), SOON_S)
    assert leaf.outcome == Finished(1.0)
    # What the policy said is in capitals, and what a program repeats is not.
    contexts_seen = [
        *("a>", "b>", "c0>"),
        *("a>A.a0>", "b>B.b0>", "c0>C.c1>"),
        *("a>A.a0>AA.a1>", "b>B.b0>BB.b1>", "c0>C.c1>CC.c2>"),
        "a>A.a0>",
    ]
    assert seen == contexts_seen
    assert json.loads(told[0]) == [
        [len(context), len(word) + 1] for context, word in zip(contexts_seen, words, strict=True)
    ]
    episode.tree.end(leaf)
    sample = sample_of(episode.tree, leaf)
    assert sample is not None
    trained = {}
    for one in contexts(sample):
        mask = one.sample.mask
        for at in mask.nonzero()[0].tolist():
            row = (one.sample.behaviour[at], one.sample.versions[at], one.sample.turns[at])
            before = text_of(one.sample.token_ids[:at].tolist())
            trained[before, int(one.sample.token_ids[at])] = row
    sampled = {}
    for turn, (request, word) in enumerate(zip(engine.requests, words, strict=True)):
        context = contexts_seen[turn]
        for place, token in enumerate([*map(ord, word), 0]):
            logprob = -(len(request.prompt) + place / 8) / (token + 1)
            sampled[context + word[:place], token] = (logprob, 0, turn)
    assert trained == sampled
    assert [text_of(c.sample.token_ids.tolist()) for c in contexts(sample)] == [
        "a>A.a0>XX.",
        "a>A.a0>AA.a1>AAA.",
        "b>B.b0>BB.b1>BBB.",
        "c0>C.c1>CC.c2>CCC.",
    ]
    assert len({request.seed for request in engine.requests[::9]}) == 2


class Strict(LetterChat):
    """A template that takes no tool's answer without a call."""

    def opening(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Any:
        if messages[0].role == "tool":
            raise ConfigError("Message has tool role, but there was no previous call")
        return super().opening(messages, tools)


async def shortens(task: Task, endpoint: ProgramEndpoint) -> str:
    """Ask with sampling of its own, then too much, and then what can be answered."""
    async with openai.AsyncOpenAI(base_url=endpoint.openai_url, api_key=endpoint.key) as client:
        far: list[Any] = [{"role": "user", "content": "q" * 99}]
        short: list[Any] = [{"role": "user", "content": "q" * 5}]
        with pytest.raises(openai.BadRequestError, match="temperature"):
            await client.chat.completions.create(model="", messages=short, temperature=0)
        with pytest.raises(openai.BadRequestError, match="100 tokens, but") as long:
            await client.chat.completions.create(model="", messages=far)
        assert long.value.code == "context_length_exceeded"
        said = await client.chat.completions.create(
            model="", messages=short, max_tokens=4, stop=["z"]
        )
        assert said.choices[0].finish_reason == "length"
        return said.choices[0].message.content or ""


async def test_a_program_that_leaves_out_what_is_refused_is_scored() -> None:
    engine = ScriptedEngine(saying("424242"))
    episode = begin_episode(
        env_of(agent=shortens), engine, Strict(), limits=EpisodeLimits(context_tokens=90)
    )
    leaf = await asyncio.wait_for(episode.run(), SOON_S)
    assert leaf.outcome == Finished(0.0)
    (request,) = engine.requests
    assert (request.max_new_tokens, request.stop_strings) == (4, ("z",))


async def asks_too_much(task: Task, endpoint: ProgramEndpoint) -> str:
    async with openai.AsyncOpenAI(base_url=endpoint.openai_url, api_key=endpoint.key) as client:
        far: list[Any] = [{"role": "user", "content": "q" * 99}]
        try:
            await client.chat.completions.create(model="", messages=far)
        except openai.BadRequestError:
            raise LookupError("no model") from None
    return "42"


async def test_a_program_that_ends_over_its_first_request_says_how_long_it_was() -> None:
    # Mutant: the program's error rises alone, whose traceback may show all but the reason.
    episode = begin_episode(
        env_of(agent=asks_too_much),
        ScriptedEngine(saying("42")),
        LetterChat(),
        limits=EpisodeLimits(context_tokens=90),
    )
    leaf = await asyncio.wait_for(episode.run(), SOON_S)
    assert isinstance(leaf.outcome, Failed)
    assert "was refused: the conversation has 100 tokens" in leaf.outcome.error
    assert "it then ended: no model" in leaf.outcome.error


def asks_again(prompt: str) -> Agent:
    """A program whose second conversation is `prompt`, in which `{}` is the first one's answer."""

    async def agent(task: Task, endpoint: ProgramEndpoint) -> str:
        async with openai.AsyncOpenAI(base_url=endpoint.openai_url, api_key=endpoint.key) as client:
            text = "q"
            for words in ("{}", prompt):
                asked: list[Any] = [{"role": "user", "content": words.format(text)}]
                answer = await client.chat.completions.create(model="", messages=asked)
                text = answer.choices[0].message.content or ""
        return text

    return agent


@pytest.mark.parametrize("is_checked", [True, False])
@pytest.mark.parametrize(
    ("prompt", "is_own_fault"),
    [("s" * 99, True), ("s" * 60 + "{}", False), ("s" * 99 + "{}", True)],
    ids=["own words", "with the policy's", "own words and the policy's"],
)
async def test_a_later_conversation_without_room_is_a_failure_if_the_programs_words_alone_have_none(
    prompt: str, is_own_fault: bool, is_checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant that pays it 0 whoever's words they are, and one that fails it, are caught."""
    if not is_checked:
        monkeypatch.setattr(blackbox_env, "conversation_fault", unknown)
    episode = begin_episode(
        env_of(agent=asks_again(prompt)),
        ScriptedEngine(saying("p" * 40)),
        LetterChat(),
        limits=EpisodeLimits(context_tokens=90),
    )
    leaf = await asyncio.wait_for(episode.run(), SOON_S)
    if is_own_fault:
        assert isinstance(leaf.outcome, Failed)
        assert "tokens, but engine.context_tokens is 90" in leaf.outcome.error
    else:
        assert leaf.outcome == Truncated("tokens", 0.0)


async def swallows(task: Task, endpoint: ProgramEndpoint) -> str:
    """Go on after what no template renders, without an answer to it."""
    async with openai.AsyncOpenAI(base_url=endpoint.openai_url, api_key=endpoint.key) as client:
        bad: list[Any] = [{"role": "tool", "tool_call_id": "x", "content": "1"}]
        with suppress(openai.BadRequestError):
            await client.chat.completions.create(model="", messages=bad)
        return await openai_agent(task, endpoint)


async def drops(task: Task, endpoint: ProgramEndpoint) -> str:
    """Go on after a field that is refused, in another conversation."""
    async with openai.AsyncOpenAI(base_url=endpoint.openai_url, api_key=endpoint.key) as client:
        other: list[Any] = [{"role": "user", "content": "other"}]
        with suppress(openai.BadRequestError):
            await client.chat.completions.create(model="", messages=other, temperature=0)
        return await openai_agent(task, endpoint)


async def refused(task: Task, endpoint: ProgramEndpoint) -> str:
    async with openai.AsyncOpenAI(base_url=endpoint.openai_url, api_key=endpoint.key) as client:
        bad: list[Any] = [{"role": "tool", "tool_call_id": "x", "content": "1"}]
        await client.chat.completions.create(model="", messages=bad)
        return ""


async def unknown(observation: Observation) -> None:
    return None


@pytest.mark.parametrize(
    ("agent", "is_checked", "words"),
    [
        (refused, True, "Message has tool role"),
        (refused, False, "Message has tool role"),
        (swallows, True, "a request of the program was refused: Message has tool role"),
        (drops, True, "a request of the program was refused: 'temperature' of the request is 0"),
    ],
)
async def test_a_program_without_an_answer_that_it_asked_for_is_a_failure(
    agent: Agent, is_checked: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_checked:  # as in a worker process, where nobody can say what a template renders
        monkeypatch.setattr(blackbox_env, "conversation_fault", unknown)
    episode = begin_episode(env_of(agent=agent), ScriptedEngine(saying("42")), Strict())
    leaf = await asyncio.wait_for(episode.run(), SOON_S)
    assert isinstance(leaf.outcome, Failed)
    assert leaf.outcome.kind == "request"
    assert words in leaf.outcome.error


async def asks_twice(task: Task, endpoint: ProgramEndpoint) -> str:
    await openai_agent(task, endpoint)
    return await openai_agent(replace(task, prompt="Again."), endpoint)


async def drops_first(task: Task, endpoint: ProgramEndpoint) -> str:
    await drops(task, endpoint)
    return await asks_twice(task, endpoint)


@pytest.mark.parametrize(
    ("agent", "outcome"), [(asks_twice, Truncated("turns", 0.0)), (drops_first, "request")]
)
async def test_a_limit_does_not_hide_that_a_program_did_without_an_answer(
    agent: Agent, outcome: Truncated | str
) -> None:
    """A mutant that cuts such a trajectory, and trains it with a reward of 0, is caught."""
    env = env_of(agent=agent)
    episode = begin_episode(
        env, ScriptedEngine(saying("42")), LetterChat(), limits=EpisodeLimits(max_turns=1)
    )
    leaf = await asyncio.wait_for(episode.run(), SOON_S)
    told = leaf.outcome
    assert (told.kind if isinstance(told, Failed) else told) == outcome
    await env.close()  # it says so once
    await begun(env)
    await env.reset(options={"task": QUESTION})  # and does not hold up the next episode
    with suppress(RequestError):
        await env.close()


async def test_a_program_that_breaks_fails_its_trajectory_alone() -> None:
    episode = begin_episode(env_of(agent=broken), ScriptedEngine(saying("42")), LetterChat())
    leaf = await asyncio.wait_for(episode.run(), SOON_S)
    assert isinstance(leaf.outcome, Failed)
    said, _, place = leaf.outcome.error.partition("; at ")
    assert said == "step of task q: LookupError: lost the thread"
    assert place.endswith(", in broken")


# -- ends -----------------------------------------------------------------------------------------


async def silent(task: Task, endpoint: ProgramEndpoint) -> str:
    return "42"


async def wishful(task: Task, endpoint: ProgramEndpoint) -> str:
    async with openai.AsyncOpenAI(base_url=endpoint.openai_url, api_key=endpoint.key) as client:
        with suppress(openai.BadRequestError):
            await client.chat.completions.create(model="policy", messages=[], temperature=0.5)
    return "42"


async def broken(task: Task, endpoint: ProgramEndpoint) -> str:
    await openai_agent(task, endpoint)
    raise LookupError("lost the thread")


async def leaves(task: Task, endpoint: ProgramEndpoint) -> str:
    await openai_agent(task, endpoint)
    sys.exit(0)


async def test_a_program_that_fails_is_a_failure_and_never_a_reward() -> None:
    async with asyncio.timeout(SOON_S):
        env = env_of(agent=silent)
        with pytest.raises(EnvError, match="without a request"):
            await begun(env)
        env = env_of(agent=wishful)
        with pytest.raises(RequestError, match="the program was refused: 'temperature' of the"):
            await begun(env)
        env = env_of(agent=broken)
        await begun(env)
        with pytest.raises(LookupError, match="lost the thread"):
            await env.step(agentrl.say("42"))
        await env.close()
        env = env_of(agent=leaves)
        await begun(env)
        with pytest.raises(RuntimeError, match=r"it called sys\.exit\(0\)"):
            await env.step(agentrl.say("42"))
        await env.close()
        env = env_of(command=["sh", "-c", "echo nothing works >&2; exit 3"])
        with pytest.raises(EnvError, match="exit code 3: nothing works"):
            await begun(env)
        await env.close()
        env = env_of(command=["no-such-program"])
        with pytest.raises(ConfigError, match="no program 'no-such-program'"):
            await begun(env)
        await env.close()


async def test_a_program_without_room_for_its_folder_is_a_failure_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    env = env_of(command=COMMAND)
    with pytest.raises(EnvError, match=r"folder .*/missing/agentrl-program-.* make room there"):
        await begun(env)
    await env.close()


async def test_a_program_in_the_middle_of_things_ends_with_the_episode(tmp_path: Path) -> None:
    before = ProcessHoldings.take()
    marker = tmp_path / "child"
    script = (
        "import os, subprocess, sys, openai\n"
        f"child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        f"open({str(marker)!r}, 'w').write(str(child.pid))\n"
        "asked = [{'role': 'user', 'content': 'x'}]\n"
        "openai.OpenAI().chat.completions.create(model='', messages=asked)\n"
    )
    env = env_of(command=[sys.executable, "-c", script])
    async with asyncio.timeout(SOON_S):
        await begun(env)
        child = int(marker.read_text())
        assert start_ticks(child) is not None
        await env.close()
        await env.close()
    assert start_ticks(child) is None
    await check_no_leak(before)


@pytest.mark.parametrize("left", ["sleep 1000", "while :; do echo more; done"])
async def test_a_program_that_leaves_a_process_behind_has_ended(left: str) -> None:
    before = ProcessHoldings.take()
    script = (
        "import subprocess, openai\n"
        "asked = [{'role': 'user', 'content': 'x'}]\n"
        "openai.OpenAI().chat.completions.create(model='', messages=asked)\n"
        "print('said', flush=True)\n"
        f"subprocess.Popen(['sh', '-c', {left!r}], start_new_session=True)\n"
    )
    results: list[str] = []
    env = BlackBoxEnv(
        tasks=questions,
        command=[sys.executable, "-c", script],
        score=lambda _, result: float(not results.append(result)),
    )
    async with asyncio.timeout(SOON_S):
        await begun(env)
        _, _, terminated, _, _ = await env.step(agentrl.say("x"))
        assert terminated
        assert results[0].startswith("said\n")
        await env.close()
    await check_no_leak(before)


async def test_a_command_sees_its_task_and_nothing_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s")
    monkeypatch.setenv("PASSED", "p")
    script = (
        "import json, os, openai, pathlib\n"
        "told = json.loads(pathlib.Path('task.json').read_text())\n"
        "seen = [told['id'], sorted(told), 'SECRET_TOKEN' in os.environ, os.environ['PASSED'],\n"
        "        os.listdir('.'), os.environ['HOME'] == os.getcwd()]\n"
        "openai.OpenAI().chat.completions.create(\n"
        "    model='', messages=[{'role': 'user', 'content': json.dumps(seen)}])\n"
    )
    env = env_of(command=[sys.executable, "-c", script], pass_env=["PASSED"])
    async with asyncio.timeout(SOON_S):
        shown = await begun(env)
        await env.close()
    told = ["id", "messages", "seed", "split"]
    assert shown.messages[0].text == json.dumps(["q", told, False, "p", ["task.json"], True])


async def test_a_command_names_files_of_the_folder_in_which_agentrl_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutants: the folder is the program's own; a prompt's own braces are filled too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text(
        "import os, sys, openai\n"
        "words = ' '.join(sys.argv[1:])\n"
        "assert os.getcwd() != sys.argv[1]\n"
        "openai.OpenAI().chat.completions.create(\n"
        "    model='', messages=[{'role': 'user', 'content': words}])\n"
    )
    task = Task(prompt="Where is {here}?", answer="", id="w")
    env = env_of(command=[sys.executable, "{here}/agent.py", "{here}", "{prompt}"])
    async with asyncio.timeout(SOON_S):
        shown, _ = await env.reset(seed=0, options={"task": task})
        await env.close()
    assert shown.messages[0].text == f"{tmp_path} Where is {{here}}?"


def double_first(task: Task, seen: Sequence[Message]) -> Action:
    return DOUBLE if seen[-1].role == "user" else agentrl.say(seen[-1].text)


async def test_a_gold_player_answers_a_programs_requests() -> None:
    """Mutants: the player is not kept; a program without one has one."""
    env = env_of(command=COMMAND, gold=f"{__name__}:double_first")
    async with asyncio.timeout(SOON_S):
        episode = await play_gold(env, QUESTION)
        await env.close()
    assert (episode.reward, episode.is_over, len(episode.actions)) == (1.0, True, 2)
    with pytest.raises(ConfigError, match="BlackBoxEnv has no gold player"):
        await play_gold(env_of(command=COMMAND), QUESTION)


def test_what_a_config_may_say() -> None:
    with pytest.raises(ConfigError, match="either agent"):
        env_of()
    with pytest.raises(ConfigError, match="either agent"):
        env_of(agent=silent, command=["x"])
    with pytest.raises(ConfigError, match="list of words"):
        env_of(command="python agent.py")
    for key, value in (("command", ["x", 3]), ("pass_env", ["A", None]), ("ignore_fields", [1])):
        with pytest.raises(ConfigError, match=f"^{key} has .*, which is no text; put it in quotes"):
            env_of(**{"command": ["x"], key: value})
    for key in ("tasks", "score", "gold"):
        settings: dict[str, Any] = {"tasks": questions, "score": is_right, "agent": silent, key: 5}
        with pytest.raises(ConfigError, match=f"^{key} must be a function or its name.*got 5$"):
            BlackBoxEnv(**settings)
    named = BlackBoxEnv(
        tasks=f"{__name__}:questions", score=f"{__name__}:is_right", agent=f"{__name__}:silent"
    )
    assert [task.split for task in named.tasks("heldout")] == ["heldout"]


# -- trained --------------------------------------------------------------------------------------

TAUGHT = """
run: {{name: taught, folder: {folder}}}
env: {{id: tests.support.tiny_run:Doubles}}
policy: {{make: {{hidden_size: 32, layers: 2, heads: 2, kv_heads: 1, head_dim: 16}}}}
warmstart: {{steps: 60, batch_size: 8, demonstrations: 60}}
"""
TRAINED = """
run: {{name: black, folder: {folder}, steps: 2}}
env:
  id: blackbox/Program-v0
  kwargs:
    tasks: "tests.support.doubles:doubles"
    score: "{module}:how_long"
    agent: "{module}:either"
policy: {{path: {policy}}}
engine: {{slots: 8, context_tokens: 256}}
sampling: {{max_turn_tokens: 24}}
rollout: {{tasks_per_step: 2, group_size: 4, concurrency: 6, max_turns: 3}}
learn: {{optimizer: {{learning_rate: 1.0e-3}}}}
evaluate: {{tasks: 4}}
metrics: {{tensorboard: false}}
"""


def how_long(task: Task, result: str) -> float:
    """Pay by length, so that a policy this small earns something to learn from."""
    return len(result) % 8 / 7


async def either(task: Task, endpoint: ProgramEndpoint) -> str:
    """Be the one program or the other, by the task."""
    CALLED.append(int(task.answer) % 4 == 0)
    agent = openai_agent if CALLED[-1] else anthropic_agent
    return await agent(task, endpoint)


CALLED: list[bool] = []


def test_programs_of_both_clients_train_a_policy_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    taught = tmp_path / "taught.yaml"
    taught.write_text(TAUGHT.format(folder=tmp_path / "runs"))
    policy = warmstart(load_config(taught))
    path = tmp_path / "black.yaml"
    path.write_text(TRAINED.format(folder=tmp_path / "runs", module=__name__, policy=policy))
    CALLED.clear()
    result = train(path)
    assert set(CALLED) == {True, False}
    first, second = read_metrics(result.folder)
    assert first["grad/norm"] > 0
    assert (first["age/max"], second["age/max"]) == (0, 0)
    assert 0 < first["engine_gap/max"] < 1e-3
    assert result.after["n"] == 4
