"""JSON lines: an episode as one object, and back. docs/export.md names every key."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from agentrl.errors import ConfigError
from agentrl.export.episode import ExportedTrajectory, ExportedTurn, TrajectoryTokens
from agentrl.message import Content, Message, ToolCall
from agentrl.runtime.image_files import ImageFiles
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Outcome, Truncated, outcome_name

FILE = "trajectories.jsonl"
FORMAT = 2
Row = dict[str, Any]
_SAME = ("run", "group", "group_state", "step", "trajectory", "sample", "forked_from")
_SAME_AT_THE_END = ("components", "seconds", "tool_calls")
"""Keys that hold a field of the episode as it is."""


def row_of(episode: ExportedTrajectory, images: ImageFiles) -> Row:
    """Return an episode as a JSON-able object; its images are written beside it."""
    row: Row = {
        "format": FORMAT,
        **{name: getattr(episode, name) for name in _SAME},
        "task": _task_row(episode.task, images),
        "outcome": outcome_name(episode.outcome),
        "reward": episode.reward,
        "error": episode.outcome.error if isinstance(episode.outcome, Failed) else None,
        "turn_rewards": [turn.reward for turn in episode.turns],
        **{name: getattr(episode, name) for name in _SAME_AT_THE_END},
        "tools": [dict(tool) for tool in episode.tools],
        "messages": message_rows(episode, images),
    }
    if episode.tokens is not None:
        row["tokens"] = _token_row(episode.tokens)
    return row


def episode_of(row: Mapping[str, Any], images: ImageFiles) -> ExportedTrajectory:
    """Return the episode that `row_of` was given."""
    if row.get("format") != FORMAT:
        raise ConfigError(
            f"a trajectory has export format {row.get('format')!r}, but this agentrl reads "
            f"{FORMAT}; export the run again"
        )
    opening, turns = _parse_turns(row["messages"], row["turn_rewards"], images)
    return ExportedTrajectory(
        **{name: row[name] for name in _SAME + _SAME_AT_THE_END},
        task=_parse_task(row["task"], images),
        outcome=_parse_outcome(row),
        opening=opening,
        tools=tuple(row["tools"]),
        turns=turns,
        tokens=_parse_tokens(row["tokens"]) if "tokens" in row else None,
    )


def line_of(row: Row) -> str:
    """Return a row as one line of a file."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def read_jsonl(folder: Path) -> Iterator[ExportedTrajectory]:
    """Yield what was exported into a folder as JSON lines, one at a time."""
    images = ImageFiles(folder)
    with (folder / FILE).open(encoding="utf-8") as lines:
        for line in lines:
            yield episode_of(json.loads(line), images)


def message_rows(episode: ExportedTrajectory, images: ImageFiles) -> list[Row]:
    """Return the whole conversation as messages."""
    rows = [_message_row(message, images) for message in episode.opening]
    for number, turn in enumerate(episode.turns):
        turn_row = _message_row(turn.said, images) | {"turn": number}
        if turn.malformed:
            turn_row["malformed"] = list(turn.malformed)
        answers = [_message_row(message, images) for message in turn.answers]
        if answers and turn.anew:
            answers[0]["anew"] = True
        if answers and turn.after is not None:
            answers[0]["after"] = turn.after
        rows += [turn_row, *answers]
    return rows


def _message_row(message: Message, images: ImageFiles) -> Row:
    row: Row = {"role": message.role, "content": _content_row(message.content, images)}
    if message.tool_calls:
        row["tool_calls"] = [
            {"id": c.id, "name": c.name, "arguments": dict(c.arguments)} for c in message.tool_calls
        ]
    if message.tool_call_id is not None:
        row["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        row["name"] = message.name
    return row


def _content_row(content: Content, images: ImageFiles) -> str | list[Row]:
    if isinstance(content, str):
        return content
    return [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image", "path": images.keep(part), "media_type": part.media_type}
        for part in content
    ]


def _to_message(row: Mapping[str, Any], images: ImageFiles) -> Message:
    return Message(
        role=row["role"],
        content=_parse_content(row["content"], images),
        tool_calls=tuple(
            ToolCall(call["id"], call["name"], call["arguments"])
            for call in row.get("tool_calls", ())
        ),
        tool_call_id=row.get("tool_call_id"),
        name=row.get("name"),
    )


def _parse_content(row: str | Sequence[Mapping[str, Any]], images: ImageFiles) -> Content:
    if isinstance(row, str):
        return row
    return tuple(
        part["text"] if part["type"] == "text" else images.load(part["path"], part["media_type"])
        for part in row
    )


def _parse_turns(
    rows: Sequence[Mapping[str, Any]], rewards: Sequence[float], images: ImageFiles
) -> tuple[tuple[Message, ...], tuple[ExportedTurn, ...]]:
    """Return the opening, and the turns: a turn begins with a message that has its number."""
    starts = [i for i, row in enumerate(rows) if "turn" in row]
    messages = [_to_message(row, images) for row in rows]
    turns = [
        ExportedTurn(
            said=messages[start],
            malformed=tuple(rows[start].get("malformed", ())),
            answers=tuple(messages[start + 1 : end]),
            reward=reward,
            anew=any("anew" in row for row in rows[start + 1 : end]),
            after=next((row["after"] for row in rows[start + 1 : end] if "after" in row), None),
        )
        for start, end, reward in zip(starts, [*starts[1:], len(rows)], rewards, strict=False)
    ]
    return tuple(messages[: starts[0] if starts else len(rows)]), tuple(turns)


def _task_row(task: Task, images: ImageFiles) -> Row:
    prompt = task.prompt
    return {
        "id": task.id,
        "split": task.split,
        "seed": task.seed,
        "tags": list(task.tags),
        "prompt": prompt if isinstance(prompt, str) else [_message_row(m, images) for m in prompt],
        "answer": task.answer,
        "data": dict(task.data),
    }


def _parse_task(row: Mapping[str, Any], images: ImageFiles) -> Task:
    content: str | Sequence[Mapping[str, Any]] = row["prompt"]
    prompt = content if isinstance(content, str) else tuple(_to_message(m, images) for m in content)
    fields = {key: row[key] for key in ("id", "split", "seed", "answer", "data")}
    return Task(prompt=prompt, tags=tuple(row["tags"]), **fields)


def _token_row(tokens: TrajectoryTokens) -> Row:
    mask = [source == "sampled" for source in tokens.sources]
    return {
        "ids": list(tokens.ids),
        "mask": mask,
        "sources": list(tokens.sources),
        "turns": list(tokens.turns),
        "logprobs": _mask_out(tokens.logprobs, mask),
        "versions": _mask_out(tokens.versions, mask),
        "jumps": [list(jump) for jump in tokens.jumps],
    }


def _mask_out(values: Sequence[float], mask: Sequence[bool]) -> list[float | None]:
    pairs = zip(values, mask, strict=True)
    return [x if is_kept and math.isfinite(x) else None for x, is_kept in pairs]


def _parse_tokens(row: Mapping[str, Any]) -> TrajectoryTokens:
    return TrajectoryTokens(
        ids=tuple(row["ids"]),
        sources=tuple(row["sources"]),
        turns=tuple(row["turns"]),
        logprobs=tuple(
            (math.nan if is_sampled else 0.0) if x is None else x
            for x, is_sampled in zip(row["logprobs"], row["mask"], strict=True)
        ),
        versions=tuple(-1 if x is None else x for x in row["versions"]),
        jumps=tuple((place, before) for place, before in row["jumps"]),
    )


def _parse_outcome(row: Mapping[str, Any]) -> Outcome:
    how, _, rest = cast("str", row["outcome"]).partition("_")
    match how:
        case "finished":
            return Finished(row["reward"])
        case "truncated":
            return Truncated(cast("Any", rest), row["reward"])
        case _:
            return Failed(cast("Any", rest), row["error"])
