"""A judge at a real endpoint: verdicts, what is kept, budgets, deadlines, failures of a kind.

Mutants seen caught: a reply without a score paid as 0; an answer that is late waited for; an
answer without end received; a key sent on to where an endpoint redirects.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agentrl.env import say
from agentrl.errors import ConfigError, JudgeError
from agentrl.runtime.scope import run_scope
from agentrl_envs.dataset import DatasetEnv

REPLY = "Score: 7"


class JudgeServer:
    """Chat completions over HTTP, with scripted replies."""

    def __init__(self) -> None:
        self.replies: list[str | int | list[dict[str, str]] | None] = []
        """Content, status, or None for no answer; the last one is repeated."""
        self.is_new = False
        """Whether it takes `max_completion_tokens` in place of `max_tokens`."""
        self.bodies: list[dict[str, Any]] = []
        self.heads: list[str] = []
        self.url = ""
        self.location = ""
        """Where the requests are sent on, with 307; empty for nowhere."""
        self.has_no_end = False
        """Whether answers begin and never end."""
        self.sent_bytes = 0
        self.finish: str | None = "stop"
        """Whether replies are said to be cut."""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = int(head.partition("content-length:")[2].partition("\r\n")[0])
        self.heads.append(head)
        self.bodies.append(json.loads(await reader.readexactly(size)))
        if self.location:
            writer.write(f"HTTP/1.1 307 X\r\nLocation: {self.location}\r\n".encode())
            writer.write(b"Content-Length: 0\r\nConnection: close\r\n\r\n")
            writer.close()
            return
        if self.has_no_end:
            writer.write(b"HTTP/1.1 200 X\r\nConnection: close\r\n\r\n")
            with suppress(ConnectionError):
                while self.sent_bytes < 2**30:
                    writer.write(b"x" * 2**16)
                    self.sent_bytes += 2**16
                    await writer.drain()
            writer.close()
            return
        if self.is_new and "max_tokens" in self.bodies[-1]:
            refusal = b"Use 'max_completion_tokens' instead."
            writer.write(f"HTTP/1.1 400 X\r\nContent-Length: {len(refusal)}\r\n".encode())
            writer.write(b"Connection: close\r\n\r\n" + refusal)
            writer.close()
            return
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if reply is None:
            await reader.read()  # until the client hangs up
            writer.close()
            return
        status = reply if isinstance(reply, int) else 200
        message = {
            "choices": [{"message": {"content": reply}, "finish_reason": self.finish}],
            "usage": {"total_tokens": 10},
        }
        body = json.dumps(message).encode()
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n".encode())
        writer.write(b"Connection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()


@pytest.fixture
async def server() -> AsyncIterator[JudgeServer]:
    made = JudgeServer()
    listening = await asyncio.start_server(made.answer, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
    yield made
    listening.close()


class Judged:
    """An environment with a judge, and how it is played."""

    def __init__(self, folder: Path, url: str) -> None:
        rows = [{"prompt": f"Question {n}", "level": n} for n in range(40)]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "judge.txt").write_text("{question} ({level}): {response}")
        self.path = str(folder / "rows.jsonl")
        self.judge = {
            "name": "judge",
            "prompt": str(folder / "judge.txt"),
            "url": url,
            "model": "m",
            "scale": [0, 10],
            "retries": 0,
        }

    async def play(self, text: str, *more: Any, **settings: Any) -> tuple[float, dict[str, Any]]:
        env = DatasetEnv(path=self.path, reward=[{**self.judge, **settings}, *more])
        try:
            await env.reset(seed=1)
            _, reward, _, _, info = await env.step(say(text))
            return reward, info
        finally:
            await env.close()


@pytest.fixture
def judged(tmp_path: Path, server: JudgeServer) -> Judged:
    server.replies = [REPLY]
    return Judged(tmp_path, server.url)


async def test_a_verdict_is_a_share_of_the_scale(judged: Judged, server: JudgeServer) -> None:
    reward, info = await judged.play("four")
    assert (reward, info["reward_components"]) == (0.7, {"judge": 0.7})
    (body,) = server.bodies
    assert body["messages"][0]["content"].endswith("): four")
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0.0, 1024)


async def test_a_newer_judge_is_asked_in_its_words_and_answers_in_parts(
    judged: Judged, server: JudgeServer
) -> None:
    server.is_new = True
    server.replies = [[{"type": "thinking"}, {"type": "text", "text": REPLY}]]
    reward, _ = await judged.play("four")
    assert reward == 0.7
    assert [body.get("max_completion_tokens") for body in server.bodies] == [None, 1024]


async def test_a_rubric_is_a_weighted_sum(judged: Judged, server: JudgeServer) -> None:
    server.replies = ["Score: 5", "Score: 10"]
    second = {**judged.judge, "label": "style", "weight": 0.25}
    reward, info = await judged.play("four", second, weight=0.75, label="facts")
    assert info["reward_components"] == {"facts": 0.375, "style": 0.25}
    assert reward == 0.625


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ("I like it.", r"m gave no score from 0 to 10: 'I like it.'; its prompt must ask for"),
        ("Score: 12", "gave no score from 0 to 10"),
        (500, r"the judge: .* did not answer after 1 tries"),
        (400, "the judge: .* refused a request"),
        (None, "m gave no verdict within deadline_s, 0.2 s"),
    ],
)
async def test_no_verdict_is_a_failure(
    judged: Judged, server: JudgeServer, reply: str | int | None, words: str
) -> None:
    server.replies = [reply]
    with pytest.raises(JudgeError, match=words) as failed:
        await judged.play("four", deadline_s=0.2 if reply is None else 20.0)
    assert failed.value.kind == "judge"


async def test_a_score_that_may_be_cut_is_none(judged: Judged, server: JudgeServer) -> None:
    server.replies = ["Score: 1"]
    server.finish = "length"
    with pytest.raises(JudgeError, match="m was cut at 1024 tokens, so its score may be"):
        await judged.play("four")


@pytest.mark.parametrize(
    ("finish", "words"),
    [("error", "broke off"), (None, "broke off"), ("content_filter", "withheld a turn")],
)
async def test_a_score_that_something_else_broke_off_is_none(
    judged: Judged, server: JudgeServer, finish: str | None, words: str
) -> None:
    """`Score: 1` may be the beginning of `Score: 10`."""
    server.replies = ["Score: 1"]
    server.finish = finish
    with pytest.raises(JudgeError, match=words):
        await judged.play("four")


async def test_verdicts_are_kept_and_bad_ones_are_not(
    judged: Judged, server: JudgeServer, tmp_path: Path
) -> None:
    cache = {"cache": str(tmp_path / "verdicts")}
    server.replies = ["none", REPLY, "Score: 0"]
    with pytest.raises(JudgeError):
        await judged.play("four", **cache)
    for _ in range(3):
        assert (await judged.play("four", **cache, budget_calls=1))[0] == 0.7
    assert len(server.bodies) == 2
    assert (await judged.play("five", **cache))[0] == 0.0


async def test_a_verdict_that_cannot_be_kept_counts_and_is_told(
    judged: Judged, server: JudgeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A mutant that fails the trajectory, which is tried again and paid for again, is caught."""
    (tmp_path / "verdicts").write_text("a file in the place of the folder, as good as a full disk")
    server.replies = [REPLY]
    assert (await judged.play("four", cache=str(tmp_path / "verdicts")))[0] == 0.7
    assert f"{tmp_path / 'verdicts'}/" in caplog.text
    assert "will be asked and paid for again" in caplog.text


@pytest.mark.parametrize("budget", [{"budget_calls": 2}, {"budget_tokens": 20}])
async def test_a_budget_stops_the_run(
    judged: Judged, server: JudgeServer, budget: dict[str, int]
) -> None:
    async with run_scope():
        for text in ("a", "b"):
            await judged.play(text, **budget)
        with pytest.raises(ConfigError, match=r"m has used its budget of .*\(2 calls, 20 tok"):
            await judged.play("c", **budget)
    assert len(server.bodies) == 2


async def test_a_wrong_key_stops_the_run(judged: Judged, server: JudgeServer) -> None:
    server.replies = [401]
    with pytest.raises(ConfigError, match="so the key is wrong"):
        await judged.play("four")


async def test_an_answer_without_end_is_a_failure_at_its_limit(
    judged: Judged, server: JudgeServer
) -> None:
    server.has_no_end = True
    with pytest.raises(JudgeError, match="an answer of more than 4194304 bytes, but the limit is"):
        await judged.play("four")
    assert server.sent_bytes < 2**28


async def test_a_key_goes_nowhere_else(
    judged: Judged, server: JudgeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret")
    other = JudgeServer()
    async with await asyncio.start_server(other.answer, "127.0.0.1", 0) as listening:
        server.location = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
        with pytest.raises(ConfigError, match=r"has moved \(307\)"):
            await judged.play("four", key_variable="JUDGE_KEY")
    assert "bearer secret" in server.heads[0]
    assert not other.heads


def test_a_placeholder_without_a_column_is_refused(judged: Judged, tmp_path: Path) -> None:
    (tmp_path / "judge.txt").write_text("{question} {levle} {response}")
    with pytest.raises(ConfigError, match=r"a judge: there is nothing .* \{levle\}; there"):
        DatasetEnv(path=judged.path, reward=judged.judge)
