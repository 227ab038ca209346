"""Hostile words on every way in: none of them raises what could end a run.

`make fuzz` goes on for ten minutes, from seeds of its own. A failure names its seed. Mutants seen
caught: no limit on Unicode or on NUL, `RecursionError` not caught, half characters handed to the
tokenizer.
"""

import asyncio
import json
import os
import random
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.authoring.tool_env import ToolEnv
from agentrl.authoring.toolset import ToolSet
from agentrl.chat.dialects import TEMPLATES
from agentrl.chat.format import ChatFormat
from agentrl.chat.tokenizer import train_tokenizer
from agentrl.engine.remote.frames import FrameStreamClosed, read_frame, read_greeting
from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import Action, Observation
from agentrl.errors import ToolError
from agentrl.evaluation.endpoint.chat import EndpointChat, conversation, turn_bytes
from agentrl.events.kinds import EnvExchange
from agentrl.events.log import EventLog
from agentrl.gateway.anthropic import AnthropicDialect
from agentrl.gateway.bodies import parse_body
from agentrl.gateway.chat import ChatCompletionsDialect
from agentrl.gateway.dialect import BadRequest
from agentrl.gateway.responses import ResponsesDialect
from agentrl.gym.text_form import action_of, action_text
from agentrl.message import Message
from agentrl.policy import GenerateRequest, Sampling
from agentrl.rollout.episode import EpisodeLimits
from agentrl.rollout.runner import RolloutRunner
from agentrl.rollout.scheduler.policy import SchedulerPolicy
from agentrl.runtime.chat_choice import read_choice
from agentrl.store.codec import pack, unpack
from agentrl.store.reader import StoreReader
from agentrl.store.writer import StoreWriter
from agentrl.task import Task
from agentrl.tool import ToolContext
from agentrl.trajectory import Finished
from tests.support.hostile_texts import PIECES, TextFuzzer

FUZZ_S = float(os.environ.get("AGENTRL_FUZZ_S", "1"))
PROTOCOLS = (ChatCompletionsDialect(), AnthropicDialect(), ResponsesDialect())
ROLES = ("user", "assistant", "system", "tool", "developer", "", "no_such_role")


@agentrl.tool
def look(
    text: str,
    number: int = 0,
    items: list[int] | None = None,
    options: dict[str, float] | None = None,
) -> dict[str, Any]:
    """Return what is given.

    Args:
        text: Anything.
        number: A number.
        items: Numbers.
        options: Numbers by name.
    """
    return {"text": text, "number": number, "items": items, "options": options}


@agentrl.tool
def size(name: str) -> int:
    """Return the size of a file in bytes.

    Args:
        name: The file.
    """
    try:
        return os.stat(name).st_size
    except OSError as error:
        raise ToolError(f"there is no file {name!r:.80}: {error.strerror}") from error


class WaysIn:
    """Everything that hostile words pass on their way through a run."""

    def __init__(self, chats: Sequence[ChatFormat], toolbox: ToolSet) -> None:
        self._chats = chats
        self._toolbox = toolbox

    async def turn(self, fuzzer: TextFuzzer) -> None:
        """A turn: read, done, recorded, exported, answered."""
        text = fuzzer.text()
        for chat in self._chats:
            action = chat.dialect.parse(text, 0)
            answers = await self._answers(action)
            await self._recorded(action, answers)
            if fuzzer.random.randrange(4):
                continue
            shown = [replace(answer, content=answer.text[:1_000]) for answer in answers[:3]]
            segments = chat.reply((*shown, Message("user", text[:1_000])), ended=True)
            tokens = list(segments[1].token_ids[:200])
            fuzzer.random.shuffle(tokens)
            chat.parse([*tokens, fuzzer.random.randrange(-5, 2**33)])
            if not action.malformed and len(text) < 2_000:
                chat.write(action)

    async def endpoint(self, fuzzer: TextFuzzer) -> None:
        """A message of an endpoint, whose calls hold their arguments as a text."""
        calls = [
            {"id": "c", "function": {"name": name, "arguments": fuzzer.arguments()}}
            for name in fuzzer.random.choices(("look", "size", "", "f" * 300), k=2)
        ]
        message = {"content": fuzzer.random.choice(PIECES), "tool_calls": calls}
        answer = {"choices": [{"message": message, "finish_reason": "tool_calls"}]}
        tokens = turn_bytes(read_choice(answer, of="the endpoint"))
        action = EndpointChat().parse(tokens)
        await self._recorded(action, await self._answers(action))
        conversation(tokens)

    async def text_action(self, fuzzer: TextFuzzer) -> None:
        """An action as the text that Gymnasium's trainers send."""
        fields = {"text": fuzzer.value(5), "tool_calls": fuzzer.value(2)}
        action = action_of(fuzzer.spoilt(json.dumps(fields)))
        await self._recorded(action, await self._answers(action))
        if not action.malformed:
            assert action_of(action_text(action)).tool_calls == action.tool_calls

    async def body(self, fuzzer: TextFuzzer) -> None:
        """The body of a program's request, in each of the gateway's protocols."""
        data = fuzzer.body(ROLES)
        for protocol in PROTOCOLS:
            try:
                asked = protocol.read(parse_body(data))
            except BadRequest:
                continue
            observation = Observation(asked.messages, tools=asked.tools)
            assert unpack(pack(observation)) == observation

    async def frame(self, fuzzer: TextFuzzer) -> None:
        """What a peer sends to an engine's port, before its key is proved and after."""
        head = fuzzer.spoilt(json.dumps(fuzzer.fields())).encode(errors="surrogatepass")
        length = fuzzer.random.choice((len(head), len(head), 0, len(head) + 1, 2**32 - 1))
        for read in (read_frame, read_greeting):
            reader = asyncio.StreamReader()
            reader.feed_data(struct.pack("<IQ", length, fuzzer.random.choice((0, 0, 1))) + head)
            reader.feed_eof()
            try:
                await read(reader)
            except FrameStreamClosed:
                continue

    async def _answers(self, action: Action) -> tuple[Message, ...]:
        """Return what a `ToolEnv` answers."""
        results = [await self._toolbox.call(call) for call in action.tool_calls]
        answered = tuple(
            Message("tool", r.content, tool_call_id=r.call_id, name=r.name) for r in results
        )
        return answered + tuple(Message("tool", error, name="") for error in action.malformed)

    async def _recorded(self, action: Action, answers: tuple[Message, ...]) -> None:
        step = (Observation(answers), 0.0, False, False, {})
        exchange = EnvExchange.stepping(action, step)
        assert unpack(pack(exchange)) == exchange
        for call in action.tool_calls:
            json.dumps(dict(call.arguments), allow_nan=False, ensure_ascii=False).encode()


@pytest.mark.timeout(FUZZ_S + 120)
async def test_no_words_raise_what_ends_a_run(tmp_path: Path) -> None:
    first = 0 if FUZZ_S <= 1 else random.SystemRandom().randrange(2**40)
    chats = [
        ChatFormat(train_tokenizer(["a"], vocab_size=300, folder=tmp_path / name, template=name))
        for name in TEMPLATES
    ]
    context = ToolContext(task_id="t", sample=0, seed=0)
    toolbox = await ToolSet.open([look, size], context=context, timeout_s=60.0)
    ways = WaysIn(chats, toolbox)
    kinds: list[Callable[[TextFuzzer], Awaitable[None]]] = [
        *(ways.turn, ways.turn, ways.endpoint, ways.text_action, ways.body, ways.frame),
    ]
    done: Counter[str] = Counter()
    ends_s = time.monotonic() + FUZZ_S
    while time.monotonic() < ends_s or len(done) < len({*kinds}):
        seed = first + done.total()
        kind = kinds[seed % len(kinds)]
        try:
            await kind(TextFuzzer(seed, ("look", "size")))
        except Exception as error:
            raise AssertionError(f"{kind.__name__} with seed {seed}") from error
        done[kind.__name__] += 1
    await toolbox.close()
    print(f"seeds {first} to {first + done.total() - 1}: {dict(done)}")  # noqa: T201


# --- a whole rollout ------------------------------------------------------------------------------

HOSTILE = {
    "deep": '{"text": ' + "[" * 700 + "]" * 700 + "}",
    "deeper than Python reads": '{"text": ' + "[" * 100_000,
    "half a character": '{"text": "\\ud800"}',
    "NUL": '{"text": "\\u0000"}',
    "5,000 digits": '{"text": "a", "number": ' + "9" * 5_000 + "}",
    "infinite": '{"text": "a", "number": 1e999}',
    "1 MB": '{"text": "' + "b" * 10**6 + '"}',
    "many values": '{"text": "a", "items": [' + "0," * 10_000 + "0]}",
}


async def test_a_rollout_goes_on_whatever_its_policy_says(tmp_path: Path) -> None:
    """Each policy is told that its call is malformed, and then answers; all of it is recorded."""
    chat = ChatFormat(
        train_tokenizer([c * 64 for c in "b[]"] * 20, vocab_size=400, folder=tmp_path / "t")
    )

    def said(text: str) -> tuple[int, ...]:
        return (*chat.encode(text), *chat.write(Action(""))[-1:])

    def reply(request: GenerateRequest) -> Sequence[int]:
        prompt = str(chat.template.tokenizer.decode(list(request.prompt)))
        if "Malformed tool call" in prompt:
            return said("42")
        name = prompt.partition("case: ")[2].partition("<|im_end|>")[0]
        call = f'{{"name": "look", "arguments": {HOSTILE[name]}}}'
        return said(f"<tool_call>\n{call}\n</tool_call>")

    tasks = [Task(prompt=f"case: {name}", answer="42") for name in HOSTILE]
    rollouts = RolloutRunner(
        make_env=lambda: ToolEnv(
            tasks=lambda split, seed: tasks, tools=[look], reward=agentrl.rewards.exact_answer
        ),
        engine=ScriptedEngine(reply),
        chat=chat,
        limits=EpisodeLimits(max_turns=4, context_tokens=10**7, max_turn_tokens=10**7),
        concurrency=len(tasks),
    )
    policy = SchedulerPolicy(
        mode="sync", groups_per_step=len(tasks), group_size=1, concurrency=len(tasks), retries=0
    )
    left = [*tasks]
    with StoreWriter.open(tmp_path / "store") as store:
        async with rollouts.scheduler(
            policy,
            lambda count: [left.pop(0) for _ in range(min(count, len(left)))],
            sampling=Sampling(),
            seed=lambda number, task, sample: number,
            events=EventLog(store),
        ) as gate:
            batch = await gate.next_batch()
    leaves = [leaf for tree in batch.trees for leaf in tree.leaves]
    assert [leaf.outcome for leaf in leaves] == [Finished(1.0)] * len(HOSTILE)
    with StoreReader(tmp_path / "store") as reader:
        kept = [t for group in reader.groups() for t in reader.group(group).rollouts.values()]
        malformed = [e.action.malformed for t in kept for e in t.exchanges if e.action is not None]
    assert sum(map(len, malformed)) == len(HOSTILE)
