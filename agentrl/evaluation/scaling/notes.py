"""Prompts in which a model writes or judges notes between attempts.

The notes are what other attempts and judges see; the trace of an attempt is never shown to them.
"""

import re
from collections.abc import Sequence

from agentrl.message import Message

NO_RESULT = "no result"

_NOTE = """
Below is one attempt at a task. Write a short report on it for somebody who has not seen it.
Say, each in a line or two: what you take the problem to be; what was done or changed; what was
observed that speaks for or against the result (checks that were run, and what they gave); how far
it got; what went wrong. Report only what the attempt itself shows.

{transcript}

Report:"""

_VOTE = """
A task was attempted {count} times. Below are the task and a report on every attempt.

Task:
{task}

{reports}

Which attempt is most likely to be right? Answer with its number alone."""

_PLAN = """
Below is one attempt at a task. It will be attempted again, from the beginning, by somebody who
has not seen this. Write the plan for that: at most 10 numbered steps, each with its goal, the
files or tools it needs, and how to check that it is done. Correct what went wrong, and mark what is
uncertain. Do not quote what was observed.

{transcript}

Plan:"""

_NOTES_HINT = """
Earlier attempts at this task left these reports. They may be wrong; use what helps.

{reports}"""

_PLAN_HINT = """
A plan for this task, made after an earlier attempt. What it calls uncertain may be wrong.

{plan}"""


def transcript(messages: Sequence[Message], *, limit_chars: int) -> str:
    """Return a conversation as text; its middle is left out beyond `limit_chars`."""
    parts: list[str] = []
    for message in messages:
        calls = "".join(f"\n[calls {c.name}({dict(c.arguments)})]" for c in message.tool_calls)
        parts.append(f"[{message.role}]\n{message.text}{calls}")
    text = "\n\n".join(parts)
    if len(text) <= limit_chars:
        return text
    half = limit_chars // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def note_question(messages: Sequence[Message], *, limit_chars: int) -> str:
    """Ask for the note of an attempt."""
    return _NOTE.lstrip().format(transcript=transcript(messages, limit_chars=limit_chars))


def vote_question(task: str, notes: Sequence[str]) -> str:
    """Ask which of several attempts is best."""
    return _VOTE.lstrip().format(count=len(notes), task=task, reports=reports(notes))


def plan_question(messages: Sequence[Message], *, limit_chars: int) -> str:
    """Ask for a plan after an attempt."""
    return _PLAN.lstrip().format(transcript=transcript(messages, limit_chars=limit_chars))


def notes_hint(notes: Sequence[str]) -> str:
    """Return the hint for a refined attempt: the notes on those before it."""
    return _NOTES_HINT.lstrip().format(reports=reports(notes))


def plan_hint(plan: str) -> str:
    """Return the hint for a second attempt: its plan."""
    return _PLAN_HINT.lstrip().format(plan=plan)


def reports(notes: Sequence[str]) -> str:
    """Return notes with their numbers."""
    return "\n\n".join(f"Attempt {number}:\n{note}" for number, note in enumerate(notes, 1))


def parse_vote(answer: str, count: int) -> int | None:
    """Return the place, from 0, that a judge's answer names: its last number within range."""
    numbers = [int(word) for word in re.findall(r"\d+", answer)]
    places = [number - 1 for number in numbers if 1 <= number <= count]
    return places[-1] if places else None
