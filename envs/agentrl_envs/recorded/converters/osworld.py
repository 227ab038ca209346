"""Results of OSWorld (Xie et al. 2024, arXiv 2404.07972), as its runner leaves them.

A folder has a `traj.jsonl`, a line for every action with `action` and `screenshot_file` (the screen
after it), the pictures, and `result.txt`, the score. A picture of the screen before the first
action, `step_0*` or `initial_state*`, is used where there is one.
"""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.authoring.tool_schema import signature_of
from agentrl.learn.recording import ConversationRecording, RecordedMessage
from agentrl_envs.recorded.converters.converted import (
    ConversionResult,
    UnusableTrajectory,
    ask_task,
    content_of,
    convert_trajectory,
    make_answers,
    make_turn,
    read_object,
    require_files,
    require_type,
)
from agentrl_envs.recorded.converters.pyautogui import Call, calls_of
from agentrl_tools.computer import Computer
from agentrl_tools.computer.computer import LAST

_FILE = "traj.jsonl"
_TOOL = "computer"


def osworld(
    source: Path, *, tasks: Path | None = None, size: tuple[int, int] = (1920, 1080)
) -> Iterator[ConversionResult]:
    """Yield the trajectories of every folder below `source` that has one.

    `tasks` is OSWorld's folder of examples: the instruction of a task is in the `ID.json` there
    that is called as the trajectory's folder; without it, in the trajectory's own lines. Raises
    `ConfigError` where there is no trajectory.
    """
    files = require_files(sorted(source.rglob(_FILE)), source, f"no {_FILE}")
    task_files = {file.stem: file for file in tasks.rglob("*.json")} if tasks else {}
    for file in files:
        yield convert_trajectory(str(file.parent), partial(_recording, file, task_files, size))


def _recording(
    file: Path, known: Mapping[str, Path], size: tuple[int, int]
) -> ConversationRecording:
    folder = file.parent
    lines = [
        read_object(line, f"line {number}")
        for number, line in enumerate(file.read_bytes().split(b"\n"), start=1)
        if line.strip()
    ]
    steps = [(line, calls_of(line["action"])) for line in lines if "action" in line]
    if not steps:
        raise UnusableTrajectory("no action was taken")
    screen = f"screen: {size[0]} x {size[1]}"
    first = next(iter(sorted([*folder.glob("initial_state*"), *folder.glob("step_0*")])), None)
    head = f"Goal: {_instruction(folder.name, lines, known)}\n"
    if first is None:
        # Nobody can learn an action from a screen that was not kept.
        (line, calls), *steps = steps
        history = "; ".join(json.dumps(call, ensure_ascii=False) for call in calls)
        head, first = f"{head}Done so far: {history}\n", _picture(folder, line)
    if not steps:
        raise UnusableTrajectory("its only action has no screen before it")
    messages: list[RecordedMessage] = [ask_task(content_of(head + screen, first))]
    for line, calls in steps:
        thought = str(line.get("thought") or line.get("response") or "")
        messages.append(make_turn(_TOOL, calls, thought=thought))
        if _ends(calls):
            break
        messages += make_answers(_TOOL, len(calls), content_of(screen, _picture(folder, line)))
    while messages[-1].role != "assistant":
        messages.pop()
    return ConversationRecording(
        messages=tuple(messages),
        tools=(dict(signature_of(Computer.computer).schema),),
        reward=_result(folder),
        task=folder.name,
        player="osworld",
    )


def _instruction(name: str, lines: list[dict[str, Any]], known: Mapping[str, Path]) -> str:
    if name in known:
        lines = [read_object(known[name].read_bytes(), f"the task {known[name].name}")]
    for line in lines:
        if line.get("instruction"):
            return require_type(line["instruction"], str, "the instruction").strip()
    raise UnusableTrajectory(
        f"task {name!r} has no instruction; give OSWorld's examples with --tasks"
    )


def _picture(folder: Path, line: Mapping[str, Any]) -> Path:
    name = line.get("screenshot_file")
    if not name:
        raise UnusableTrajectory(f"step {line.get('step_num')} has no screenshot_file")
    return folder / Path(str(name)).name


def _ends(calls: list[Call]) -> bool:
    return calls[-1]["action"] in LAST


def _result(folder: Path) -> float | None:
    file = folder / "result.txt"
    if not file.is_file():
        return None
    text = file.read_text(encoding="utf-8", errors="replace")
    try:
        return float(text.split()[0])
    except (IndexError, ValueError):
        raise UnusableTrajectory(
            f"{file.name} begins with {text[:40]!r}, but must begin with the score; correct it or "
            "remove the file"
        ) from None
