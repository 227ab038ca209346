"""Recordings as files: pictures beside the lines and read late, places, versions, the commands."""

import asyncio
import json
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentrl.authoring.gold import play_gold
from agentrl.authoring.human_player import (
    PlayerLeft,
    TaskSkipped,
    TerminalPlayer,
    parse_action,
    render_signature,
)
from agentrl.cli.record import record
from agentrl.env import Action, BaseEnv, Box, Info, Observation, Step, call, say
from agentrl.errors import ConfigError, EnvError
from agentrl.learn.recording import (
    VERSION,
    append_recording,
    read_recordings,
    recording_of,
    write_recordings,
)
from agentrl.message import Image, Message
from agentrl.runtime.atomic_files import lines_file
from agentrl.task import Split, Task
from agentrl_envs.recorded import RecordedEnv
from agentrl_envs.recorded.experts import ExpertTrajectory
from tests.support.recordings import PICTURE

FIRST, SECOND = PICTURE + b"first", PICTURE + b"second"
PICTURES = [Image(FIRST), Image(SECOND, "image/jpeg"), Image(FIRST)]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "press",
        "description": "Press a button.\nHard.",
        "parameters": {"properties": {"button": {}, "hard": {}}, "required": ["button"]},
    },
}


class Doors(BaseEnv):
    """Two buttons are pressed, each answered with a picture, and it is said to be open."""

    def __init__(self) -> None:
        self.turn = 0
        self.task = Task(prompt="-")

    def tasks(self, split: Split, *, seed: int = 0) -> Iterator[Task]:
        del seed
        yield from (
            Task(prompt=f"open {split} {i}", id=f"{split}-{i}", split=split) for i in range(40)
        )

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        self.turn, self.task = 0, (options or {})["task"]
        shown = Message("user", (self.task.messages[0].text, PICTURES[0]))
        return Observation((shown,), tools=(TOOL,)), {}

    async def step(self, action: Action) -> Step:
        if action.text == "break":
            raise EnvError("the door fell off")
        self.turn += 1
        if not action.tool_calls:
            return Observation(()), float(action.text == "open" and self.turn == 3), True, False, {}
        (made,) = action.tool_calls
        content = (f"seen {made.arguments['button']}", PICTURES[min(self.turn, 2)])
        answer = Message("tool", content, tool_call_id=made.id, name="press")
        return Observation((answer,)), 0.0, False, False, {}

    async def places(self) -> Mapping[int, Box]:
        return {1: (float(self.turn), 0.0, 10.0, 10.0)}

    def gold(self, task: Task, seen: Sequence[Message]) -> Action:
        del task
        done = sum(message.role == "assistant" for message in seen)
        return say("open") if done == 2 else call("press", button=done)


def recorded_with(file: Path, *, tasks: int = 3) -> None:
    record(f"{__name__}:Doors", file, tasks=tasks, concurrency=2, seed=0)


def test_pictures_lie_in_files_once_each_and_are_read_when_they_are_shown(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "doors.jsonl"
    recorded_with(file)
    pictures = sorted((tmp_path / "deep" / "doors.images").iterdir())
    assert [p.suffix for p in pictures].count(".jpg") == 1
    assert {p.read_bytes() for p in pictures} == {FIRST, SECOND}
    assert len(pictures) == 2, "the same picture twice is one file"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["version"] for line in lines] == [VERSION] * 3
    assert lines[0]["messages"][0]["content"][1]["file"].startswith("doors.images/")
    assert lines[0]["player"] == "gold"
    assert (lines[0]["task"], lines[0]["reward"]) == ("train-0", 1.0)
    (tmp_path / "deep").rename(tmp_path / "elsewhere")
    file = tmp_path / "elsewhere" / "doors.jsonl"
    expert = ExpertTrajectory.from_recording(read_recordings(file)[0])
    for picture in (tmp_path / "elsewhere" / "doors.images").iterdir():
        picture.unlink()
    experts = [ExpertTrajectory.from_recording(recording) for recording in read_recordings(file)]
    assert experts[0].id == expert.id, "nothing was read to know which is which"
    env = RecordedEnv(recordings=file, heldout_fraction=0)
    assert [t.messages[0].text for t in env.tasks("train")] == [f"open train {i}" for i in range(3)]
    with pytest.raises(ConfigError, match="keep the image files"):
        _ = expert.opening


def test_what_is_read_is_what_was_shown(tmp_path: Path) -> None:
    file = tmp_path / "doors.jsonl"
    recorded_with(file, tasks=1)
    (recording,) = read_recordings(file)
    expert = ExpertTrajectory.from_recording(recording)
    assert expert.opening[0].images == (PICTURES[0],)
    assert [turn.answers[0].images[0] for turn in expert.turns[:2]] == PICTURES[1:]
    assert [turn.places for turn in expert.turns] == [{1: (float(i), 0, 10, 10)} for i in range(3)]
    again = tmp_path / "other" / "again.jsonl"
    write_recordings(again, [recording])
    assert read_recordings(again)[0].messages[0].message.images == (PICTURES[0],)
    assert not (tmp_path / "other" / "again.images").exists(), "files stay where they lie"


def test_a_picture_that_was_changed_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "doors.jsonl"
    recorded_with(file, tasks=1)
    recording = read_recordings(file)[0]
    for picture in (tmp_path / "doors.images").iterdir():
        picture.write_bytes(b"something else")
    with pytest.raises(ConfigError, match="is not the recorded image"):
        _ = recording.messages[0].message


def test_lines_are_added_and_what_is_there_stays(tmp_path: Path) -> None:
    file = tmp_path / "new" / "doors.jsonl"
    env = Doors()
    for task in [*env.tasks("train")][:2]:
        episode = asyncio.run(play_gold(env, task))
        append_recording(file, recording_of(episode, player="me"))
    found = read_recordings(file)
    assert [(r.task, r.player) for r in found] == [("train-0", "me"), ("train-1", "me")]
    assert isinstance(found[0].messages[1].message, Message)
    assert "places" not in json.loads(file.read_text().splitlines()[0])["messages"][1], (
        "nobody asked where elements were"
    )
    full = tmp_path / "full.jsonl"
    full.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as failure:
        append_recording(full, found[0])
    assert failure.value.filename == str(full)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"version": VERSION + 1}, "version: .*reads 2"),
        ({"version": 0}, "version: "),
        (
            {"messages": [{"role": "user", "content": [{"media_type": "image/png"}]}]},
            "either as base64",
        ),
        (
            {"messages": [{"role": "user", "content": [{"image": "aaaa", "file": "a.png"}]}]},
            "either as base64",
        ),
    ],
)
def test_what_is_no_recording(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    said = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    file = tmp_path / "own.jsonl"
    file.write_text(json.dumps(said))
    assert read_recordings(file)[0].version == VERSION, "lines without a number are read as well"
    file.write_text(json.dumps(said | change))
    with pytest.raises(ConfigError, match=f"line 1: .*{complaint}"):
        read_recordings(file)


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    with lines_file(file) as write:
        write("one\n")
        assert not file.exists()
    with pytest.raises(UnicodeEncodeError), lines_file(file) as write:
        write("two\n\ud800")
    assert file.read_text() == "one\n"
    assert [*tmp_path.iterdir()] == [file]


def content_of(path: str) -> bytes | None:
    return Path(path).read_bytes() if Path(path).is_file() else None


# -- a person in the terminal ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "calls"),
    [
        ('press(button=1, hard=[True, "x"])', [("press", {"button": 1, "hard": [True, "x"]})]),
        ("press(button=1); look()", [("press", {"button": 1}), ("look", {})]),
        ('{"name": "press", "arguments": {"button": null}}', [("press", {"button": None})]),
        ('{"name": "look"}', [("look", {})]),
        ("look is what I would do (or not)", []),
        ("42", []),
    ],
)
def test_what_is_typed_is_a_call_or_words(line: str, calls: list[Any]) -> None:
    action = parse_action(line, ["press", "look"])
    assert [(c.name, c.arguments) for c in action.tool_calls] == calls
    assert action.text == ("" if calls else line)
    assert len({c.id for c in action.tool_calls}) == len(calls)
    assert parse_action(".", ["press"]) == say("")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("press(1)", "must be named"),
        ("press(button=1", "cannot be parsed"),
        ("press(button=other)", "not a literal value"),
        ("press(button=1); fly(to=2)", "no tool 'fly'"),
        ("press(button=1) + 1", "must be named"),
        ('press(**{"button": 1})', r"\*\* is not read"),
        ("press(button=1, button=2)", "button is given twice"),
        ('{"name": "fly"}', "no tool 'fly'; the tools are press, look"),
        ('{"button": 1}', "not a tool call in JSON"),
        ("{nothing", "not a tool call in JSON"),
    ],
)
def test_what_cannot_be_read_is_told(line: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_action(line, ["press", "look"])


def test_a_tool_is_a_line() -> None:
    assert render_signature(TOOL) == "press(button, hard=...)  Press a button."
    assert render_signature({"name": "look"}) == "look()"


async def test_the_terminal_shows_asks_and_explains() -> None:
    lines = iter(["", "/help", "/tools", "press(1)", "press(button=1)", "/skip", "/leave"])
    shown: list[str] = []

    async def ask() -> str:
        return next(lines)

    opening, _ = await Doors().reset(options={"task": Task(prompt="open it")})
    async with TerminalPlayer(ask, shown.append) as seat:
        action = await seat.act(opening, opening.messages)
        assert action.tool_calls[0].arguments == {"button": 1}
        picture = shown[0].partition("(picture: ")[2].removesuffix(")")
        assert content_of(picture) == FIRST
        assert [shown[0][:15], shown[2], shown[3]] == [
            "[user] open it ",
            "press(button, hard=...)  Press a button.",
            "arguments of a tool call must be named: tool(argument=value); type /help for help",
        ]
        with pytest.raises(TaskSkipped):
            await seat.act(Observation(()), ())
        with pytest.raises(PlayerLeft):
            await seat.act(Observation(()), ())
    assert content_of(picture) is None


@contextmanager
def typing_in(typed: bytes, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Have bytes typed at the terminal, which is closed then."""
    terminal, keyboard = os.pipe()
    os.write(keyboard, typed)
    os.close(keyboard)
    with open(terminal) as opened:
        monkeypatch.setattr("sys.stdin", opened)
        yield


def test_what_is_no_text_is_typed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.jsonl"
    typed = b"\ncaf\xe9\npress(button=0)\npress(button=1)\nopen"
    with typing_in(typed, monkeypatch):
        record(f"{__name__}:Doors", file, player="human", tasks=1)
    told = "this line is not UTF-8 (unexpected end of data); type it again"
    assert told in capsys.readouterr().out
    (recording,) = read_recordings(file)
    assert recording.reward == 1.0


def test_a_session_without_an_episode_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with typing_in(b"", monkeypatch):
        record(f"{__name__}:Doors", tmp_path / "mine.jsonl", player="human")
    assert capsys.readouterr().out.endswith("nothing was recorded\n")


def test_a_persons_episodes_are_kept_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first task is done, the second one skipped, the third one breaks, the fourth is left."""
    typed = (
        *("press(button=0)", "press(button=1)", "open"),
        *("press(button=0)", "/skip"),
        "break",
        *("/leave", "open"),
    )
    file = tmp_path / "mine.jsonl"
    with typing_in("\n".join(typed).encode(), monkeypatch):
        record(f"{__name__}:Doors", file, player="human")
    (recording,) = read_recordings(file)
    assert (recording.player, recording.task, recording.reward) == ("human", "train-0", 1.0)
    assert ExpertTrajectory.from_recording(recording).turns[1].action == call("press", button=1)
