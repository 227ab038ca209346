"""A language model that judges answers: its prompt, its endpoint, its verdict, what it may cost.

The model is asked once per answer and prompt, at an OpenAI-compatible endpoint. Verdicts are kept
on disk, so an answer that comes again costs nothing. What is no verdict is a `JudgeError`.
"""

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import cast

from agentrl.errors import ConfigError, EngineError, JudgeError
from agentrl.message import Message
from agentrl.rewards import last_text
from agentrl.runtime.atomic_files import disk_advice, write_text
from agentrl.runtime.chat_choice import read_choice
from agentrl.runtime.http_endpoint import KEY, HttpEndpoint, HttpEndpointClient
from agentrl.runtime.json_limits import JsonLimits
from agentrl.runtime.scope import shared
from agentrl.task import Task
from agentrl_envs.dataset.row_tasks import fill_template
from agentrl_envs.dataset.settings import JUDGE_RULES, check_settings

_log = logging.getLogger(__name__)
_SCORE = re.compile(
    r"""\bscore[ \t:=*"'`]{1,8}  # as in `Score: 7`, `**Score:** 7`, `"score": 7`
        (-?\d++(?:\.\d++)?+)      # the score
        (?:\s*+(?:/|out\ of)\s*+(\d++(?:\.\d++)?+))?+  # and of how many
        (?![\w%/\u2013\u2014-]|[.,]\d)      # no other number: 7%, 3-5, 7,5, 1e1
    """,
    re.IGNORECASE | re.ASCII | re.VERBOSE,
)
_THOUGHTS = ("<think>", "</think>")
PLACEHOLDERS = ("question", "answer", "response", "conversation")
"""Placeholders besides the columns of the data set."""
LONGEST_RESPONSE = 100_000
"""Characters of an answer that a judge is shown."""
VERDICT_LIMITS = JsonLimits(text_bytes=2**22)
"""Of what a judge's endpoint answers; no more is received."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSettings:
    """Judge, as a config names it."""

    prompt: str
    """Path of a text with placeholders: `{question}`, `{answer}` (the reference), `{response}` (the
    agent's last message), `{conversation}`, and the columns of the data set."""
    url: str
    """Endpoint up to and with the version, such as `http://localhost:8000/v1`."""
    model: str
    """Model that the endpoint serves."""
    key_variable: str = KEY
    """Variable of the environment that holds the key."""
    scale: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest score; the reward is the score between them, as a share."""
    max_tokens: int = 1024
    """Largest number of tokens of a verdict."""
    temperature: float = 0.0
    """Temperature of the judge."""
    deadline_s: float = 120.0
    """For one verdict, tries and waits included."""
    budget_calls: int | None = None
    """Calls after which the run stops, in this process; kept verdicts are free."""
    budget_tokens: int | None = None
    """Tokens, of prompts and verdicts, after which the run stops."""
    cache: str | None = None
    """Folder that keeps verdicts; None keeps none."""
    concurrency: int = 8
    """Largest number of calls at a time."""
    retries: int = 3
    """Further tries after an answer that may pass, such as 429 and 5xx."""

    def __post_init__(self) -> None:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        check_settings(values, JUDGE_RULES, of="a judge")

    def read_prompt(self) -> str:
        """Return the prompt's text; `ConfigError` for a file that is not there or says nothing."""
        file = Path(self.prompt).expanduser()
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the prompt of a judge, {self.prompt}, cannot be read: {error}; name a text file "
                "from the working folder"
            ) from error
        if "{response}" not in text and "{conversation}" not in text:
            raise ConfigError(
                f"the prompt of a judge, {self.prompt}, shows neither {{response}} nor "
                "{conversation}, so every answer would be judged alike; add one of them"
            )
        return text


def parse_score(reply: str, scale: tuple[float, float]) -> float | None:
    """Return the score in the last line of a judge's reply, as a share of the scale, else None.

    It is the number behind the last `score` of the last line with a letter or digit in it, as in
    `Score: 7`, `Score: 7/10` or `"score": 7`: what stands above may be a quotation of the answer
    that is judged. A score outside of the scale or of another one (`10/5`), a range and a thought
    without an end are none.
    """
    begin, end = _THOUGHTS
    verdict = reply.rpartition(end)[2]
    lines = [line for line in verdict.splitlines() if any(map(str.isalnum, line))]
    if begin in verdict or not lines:
        return None
    scores = [*_SCORE.finditer(lines[-1])]
    if not scores:
        return None
    (low, high), score = scale, float(scores[-1][1])
    if (full := scores[-1][2]) is not None and float(full) != high:
        return None
    return (score - low) / (high - low) if low <= score <= high else None


@dataclass(slots=True)
class _Spending:
    calls: int = 0
    tokens: int = 0


class JudgeClient:
    """Asks the judge, within its budget. A run's environments share one."""

    def __init__(
        self, settings: JudgeSettings, *, client: HttpEndpointClient | None = None
    ) -> None:
        """Connect to nothing yet; `client` replaces the one of the settings."""
        self._settings = settings
        self._client = client or HttpEndpointClient(
            HttpEndpoint(
                url=settings.url,
                model=settings.model,
                key_variable=settings.key_variable,
                timeout_s=settings.deadline_s,
                retries=settings.retries,
            )
        )
        self._room = asyncio.Semaphore(settings.concurrency)
        self._spent = _Spending()
        self._is_warned = False

    @classmethod
    async def find_shared(cls, settings: JudgeSettings) -> "JudgeClient | None":
        """Return the one that a run's environments share; None outside of a run."""

        async def make() -> JudgeClient:
            return cls(settings)

        return await shared(("judge", settings), make)

    async def judge(self, prompt: str) -> float:
        """Return the judge's verdict on a filled prompt, between 0 and 1.

        Raises `JudgeError` for none, and `ConfigError` once the budget is spent.
        """
        settings = self._settings
        cached = self._find_cached(prompt)
        reply = await self._ask(prompt) if cached is None else cached.read_text(encoding="utf-8")
        score = parse_score(reply, settings.scale)
        if score is None:
            raise JudgeError(
                f"{settings.model} gave no score from {settings.scale[0]:g} to "
                f"{settings.scale[1]:g}: {reply[-200:]!r}; its prompt must ask for a last line "
                "`Score: NUMBER`, and max_tokens must leave room for it"
            )
        if cached is None and settings.cache is not None:
            self._keep(self._cache_file(prompt), reply)
        return score

    def _keep(self, place: Path, reply: str) -> None:
        """Write a reply to the cache; a verdict that cannot be kept counts all the same."""
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            write_text(place, reply)
        except OSError as error:
            if not self._is_warned:
                self._is_warned = True
                _log.warning(
                    "the judge's verdicts are not kept, and will be asked and paid for again: %s "
                    "cannot be written: %s. %s",
                    *(place, error.strerror or error, disk_advice(error)),
                )

    async def close(self) -> None:
        """Hang up. Idempotent."""
        await self._client.close()

    async def _ask(self, prompt: str) -> str:
        settings = self._settings
        body = {
            "model": settings.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": settings.max_tokens,
            "temperature": settings.temperature,
        }
        try:
            async with asyncio.timeout(settings.deadline_s), self._room:
                self._check_budget()
                self._spent.calls += 1
                answer = await self._client.ask_chat(body, limits=VERDICT_LIMITS)
            with suppress(AttributeError, TypeError, ValueError):  # it need not say
                self._spent.tokens += int((answer.get("usage") or {}).get("total_tokens") or 0)
            choice = read_choice(answer, of=settings.model)
        except TimeoutError as error:
            raise JudgeError(
                f"{settings.model} gave no verdict within deadline_s, {settings.deadline_s:g} s"
            ) from error
        except EngineError as error:
            raise JudgeError(f"the judge: {error}") from error
        if choice.is_cut:
            raise JudgeError(
                f"{settings.model} was cut at {settings.max_tokens} tokens, so its score may be: "
                f"{choice.content[-200:]!r}; raise max_tokens"
            )
        return choice.content

    def _check_budget(self) -> None:
        spent = asdict(self._spent)
        for name, amount in spent.items():
            budget = getattr(self._settings, f"budget_{name}")
            if budget is not None and amount >= budget:
                raise ConfigError(
                    f"the judge {self._settings.model} has used its budget of {budget} {name} "
                    f"({spent['calls']} calls, {spent['tokens']} tokens); raise budget_{name}, or "
                    "set `cache`, which keeps verdicts for the next start"
                )

    def _find_cached(self, prompt: str) -> Path | None:
        if self._settings.cache is None:
            return None
        place = self._cache_file(prompt)
        return place if place.is_file() else None

    def _cache_file(self, prompt: str) -> Path:
        settings = self._settings
        request = [settings.url, settings.model, settings.temperature, settings.max_tokens, prompt]
        name = hashlib.sha256(json.dumps(request).encode()).hexdigest()
        return Path(cast("str", settings.cache)).expanduser() / name[:2] / f"{name}.txt"


@dataclass(slots=True)
class JudgeReward:
    """Reward function of a judge's settings."""

    settings: JudgeSettings
    prompt: str = field(init=False)
    _owned: JudgeClient | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.prompt = self.settings.read_prompt()

    async def __call__(self, task: Task, messages: Sequence[Message]) -> float:
        """Return the verdict on a conversation. Raises as `JudgeClient.judge` does."""
        client = await JudgeClient.find_shared(self.settings)
        if client is None:
            client = self._owned = self._owned or JudgeClient(self.settings)
        return await client.judge(self.fill_prompt(task, messages))

    def check_columns(self, columns: Iterable[str]) -> None:
        """Raise `ConfigError` for a placeholder that no column fills."""
        values = dict.fromkeys((*columns, *PLACEHOLDERS), "")
        fill_template(self.prompt, values, "the prompt of a judge")

    def fill_prompt(self, task: Task, messages: Sequence[Message]) -> str:
        """Return the text that the judge is shown."""
        values = {
            **task.data.get("row", {}),
            "question": "\n".join(message.text for message in task.messages),
            "answer": task.answer,
            "response": last_text(messages)[:LONGEST_RESPONSE],
            "conversation": _write_conversation(messages)[:LONGEST_RESPONSE],
        }
        return fill_template(self.prompt, values, f"the prompt of a judge, {self.settings.prompt}")

    async def close(self) -> None:
        """Hang up a connection of its own."""
        owned, self._owned = self._owned, None
        if owned is not None:
            await owned.close()


def _write_conversation(messages: Sequence[Message]) -> str:
    lines: list[str] = []
    for message in messages:
        calls = [f"{call.name}({json.dumps(dict(call.arguments))})" for call in message.tool_calls]
        lines.append(f"[{message.role}] {' '.join(filter(None, [message.text, *calls]))}")
    return "\n".join(lines)
