"""ATIF, the Agent Trajectory Interchange Format 1.7 (harbor's RFC 0001): JSON files."""

import math
from typing import Any

from agentrl.export.episode import ExportedTrajectory, ExportedTurn, TrajectoryTokens
from agentrl.export.row import Row
from agentrl.message import Content, Image, Message
from agentrl.runtime.distribution import __version__
from agentrl.runtime.image_files import ENDINGS, ImageFiles
from agentrl.trajectory import context_runs

VERSION = "ATIF-v1.7"


def atif_of(episode: ExportedTrajectory, images: ImageFiles) -> Row | None:
    """Return an episode as an ATIF document, or None for one in which nothing was said.

    A turn is one `agent` step, with the tools' answers as its observation; what else was said is a
    step of its own. Token ids and log-probs are there where the episode has its tokens.
    """
    steps = [_build_message_step(message, images) for message in episode.opening]
    for number, turn in enumerate(episode.turns):
        steps += _build_turn_steps(number, turn, episode.tokens, images)
    if not steps:
        return None
    agent: Row = {"name": "agentrl", "version": __version__}
    if episode.tools:
        agent["tool_definitions"] = [dict(tool) for tool in episode.tools]
    return {
        "schema_version": VERSION,
        "session_id": episode.run,
        "trajectory_id": f"{episode.run}-{episode.trajectory}",
        "agent": agent,
        "steps": [{"step_id": i, **step} for i, step in enumerate(steps, start=1)],
        "final_metrics": _totals(episode, len(steps)),
        "extra": {
            "task_id": episode.task.id,
            "split": episode.task.split,
            "group": episode.group,
            "sample": episode.sample,
            "step": episode.step,
            "outcome": episode.outcome_name,
            "reward": episode.reward,
            "components": episode.components,
        },
    }


def _build_turn_steps(
    number: int, turn: ExportedTurn, tokens: TrajectoryTokens | None, images: ImageFiles
) -> list[dict[str, Any]]:
    step = _build_message_step(turn.said, images) | {"llm_call_count": 1}
    if turn.said.tool_calls:
        step["tool_calls"] = [
            {"tool_call_id": c.id, "function_name": c.name, "arguments": dict(c.arguments)}
            for c in turn.said.tool_calls
        ]
    call_ids = {call.id for call in turn.said.tool_calls}
    results = [_result(m, call_ids, images) for m in turn.answers if m.role == "tool"]
    if results:
        step["observation"] = {"results": results}
    if tokens is not None:
        step["metrics"] = _metrics(number, tokens)
    malformed: Row = {"malformed": list(turn.malformed)} if turn.malformed else {}
    step["extra"] = {"reward": turn.reward, **malformed}
    return [step, *(_build_message_step(m, images) for m in turn.answers if m.role != "tool")]


def _build_message_step(message: Message, images: ImageFiles) -> Row:
    """Return a message that no turn of this episode said; a tool's is told as the user's."""
    sources = {"system": "system", "user": "user", "tool": "user", "assistant": "agent"}
    step: Row = {"source": sources[message.role], "message": _content(message.content, images)}
    if message.role == "assistant":
        step["llm_call_count"] = 0
    return step


def _result(message: Message, known: set[str], images: ImageFiles) -> Row:
    result: Row = {"content": _content(message.content, images)}
    # An answer to a call that could not be read answers no call that is listed.
    if message.tool_call_id in known:
        result["source_call_id"] = message.tool_call_id
    return result


def _content(content: Content, images: ImageFiles) -> str | list[Row]:
    if isinstance(content, str):
        return content
    return [_build_part(part, images) for part in content]


def _build_part(part: str | Image, images: ImageFiles) -> Row:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if part.media_type not in ENDINGS:
        return {"type": "text", "text": f"({part.media_type} left out)"}
    source = {"media_type": part.media_type, "path": images.keep(part)}
    return {"type": "image", "source": source}


def _metrics(turn: int, tokens: TrajectoryTokens) -> Row:
    """Return the sampling of one turn, from the tokens of the whole trajectory."""
    indices = [
        i
        for i, (at, source) in enumerate(zip(tokens.turns, tokens.sources, strict=True))
        if at == turn and source == "sampled"
    ]
    if not indices:
        return {"completion_tokens": 0}
    runs = context_runs(tokens.jumps, indices[0])
    metrics: Row = {
        "prompt_tokens": sum(stop - start for start, stop in runs) - 1,
        "completion_tokens": len(indices),
        "completion_token_ids": [tokens.ids[i] for i in indices],
    }
    logprobs = [tokens.logprobs[i] for i in indices]
    # An endpoint tells none.
    return metrics | ({"logprobs": logprobs} if all(map(math.isfinite, logprobs)) else {})


def _totals(episode: ExportedTrajectory, steps: int) -> Row:
    totals: Row = {"total_steps": steps, "extra": {"seconds": episode.seconds}}
    if episode.tokens is not None:
        totals["total_completion_tokens"] = episode.tokens.sources.count("sampled")
    return totals
