"""What others recorded, converted: AndroidControl's episodes, OSWorld's results, pyautogui's code.

The samples are ours, in the form of theirs.

Mutants seen caught, 48 in all, among them: the guard without each of its errors, or that reads no
recording again; JSON read by `json.loads`; a reason or a name with its line breaks, or of any
length; a role as it is written, or that only begins well; an infinite box; a side of the screen
that is a text, or zero; actions that may be missing; lines split at U+2028; one call more or fewer
in an action, or counted one function at a time; a file of SOURCE overwritten, or no new one there;
an earlier file replaced by an empty one; an exit with 0 where nothing was written.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ConfigError
from agentrl.learn.recording import ConversationRecording, RecordedAction, read_recordings
from agentrl_envs.recorded import RecordedEnv
from agentrl_envs.recorded import convert as command
from agentrl_envs.recorded.converters.android_control import android_control
from agentrl_envs.recorded.converters.converted import (
    ConversionResult,
    UnusableTrajectory,
    ask_task,
    convert_trajectory,
    make_turn,
)
from agentrl_envs.recorded.converters.osworld import osworld
from agentrl_envs.recorded.converters.phone import call_of
from agentrl_envs.recorded.converters.pyautogui import calls_of
from agentrl_envs.recorded.experts import ExpertTrajectory

NODES: list[dict[str, Any]] = [
    {"bounds_in_screen": {"right": 100, "bottom": 200}, "class_name": "android.view.View"},
    {
        "bounds_in_screen": {"left": 10, "top": 20, "right": 90, "bottom": 40},
        "class_name": "android.widget.Button",
        "text": "Add  alarm",
        "is_clickable": True,
    },
    {"bounds_in_screen": {"right": 50, "bottom": 10}, "text": "", "is_focused": True},
    {
        "bounds_in_screen": {"top": 50, "right": 100, "bottom": 70},
        "class_name": "android.widget.EditText",
        "content_description": "Name",
        "is_editable": True,
        "is_focused": True,
    },
    {"bounds_in_screen": {"right": 0, "bottom": 0}, "text": "nowhere"},
    {
        "bounds_in_screen": {"right": 9, "bottom": 9},
        "text": "hidden",
        "is_visible_to_user": False,
    },
]
CAMEL: dict[str, Any] = {
    "windows": [
        {
            "tree": {
                "nodes": [
                    {
                        "boundsInScreen": {"left": 10, "top": 20, "right": 90, "bottom": 40},
                        "className": "android.widget.Button",
                        "text": "Add alarm",
                        "isClickable": True,
                        "isSelected": True,
                    }
                ]
            }
        },
        {"tree": {}},
    ]
}
ACTIONS: list[dict[str, Any]] = [
    {"action_type": "click", "x": 50, "y": 30},
    {"action_type": "open_app", "app_name": "Clock"},
    {"action_type": "input_text", "text": "Early"},
    {"action_type": "scroll", "direction": "down"},
    {"action_type": "long_press", "x": 99, "y": 199},
    {"action_type": "navigate_back"},
    {"action_type": "navigate_home"},
    {"action_type": "wait"},
]


def an_episode(folder: Path, **changes: Any) -> dict[str, Any]:
    """Return an episode of eight actions, whose screenshots lie in a folder."""
    screens = range(len(ACTIONS) + 1)
    for screen in screens:
        (folder / f"{screen}.png").write_bytes(f"screen {screen}".encode())
    return {
        "episode_id": 17,
        "goal": "Add an alarm\n called Early",
        "screenshots": [f"{screen}.png" for screen in screens],
        "screenshot_widths": [100] * len(screens),
        "screenshot_heights": [200] * len(screens),
        "accessibility_trees": [NODES if screen % 2 == 0 else CAMEL for screen in screens],
        "actions": [json.dumps(a) if i % 2 else a for i, a in enumerate(ACTIONS)],
        "step_instructions": [f"step {i}" for i in range(len(ACTIONS))],
    } | changes


def converted(found: Any) -> ConversationRecording:
    (one,) = found
    assert isinstance(one.recording, ConversationRecording), one.recording
    return one.recording


def calls_in(recording: ConversationRecording) -> list[dict[str, Any]]:
    said = [m for m in recording.messages if isinstance(m, RecordedAction)]
    return [dict(c.arguments) for m in said for c in m.tool_calls]


def test_an_episode_of_androidcontrol(tmp_path: Path) -> None:
    file = tmp_path / "episodes.jsonl"
    file.write_text(json.dumps(an_episode(tmp_path)) + "\n\n")
    recording = converted(android_control(file))
    assert calls_in(recording) == [
        {"action": "click", "element": 1},
        {"action": "open_app", "app": "Clock"},
        {"action": "type", "text": "Early"},
        {"action": "scroll", "direction": "down"},
        {"action": "long_press", "coordinate": [99, 199]},
        {"action": "back"},
        {"action": "home"},
        {"action": "wait"},
        {"action": "done"},
    ]
    expert = ExpertTrajectory.from_recording(recording)
    (asked,) = expert.opening
    assert asked.text == (
        "Goal: Add an alarm called Early\nscreen: 100 x 200\n"
        'button "Add alarm" [1]\nedittext "Name" [2] focused'
    )
    assert asked.images[0].data == b"screen 0"
    assert expert.turns[0].places == {1: (10, 20, 80, 20), 2: (0, 50, 100, 20)}
    answer = expert.turns[0].answers[0]
    assert answer.text == 'screen: 100 x 200\nbutton "Add alarm" [1] selected'
    assert answer.images[0].data == b"screen 1"
    said = [m for m in recording.messages if isinstance(m, RecordedAction)]
    assert said[3].instruction == "step 3"
    assert (recording.task, recording.reward, recording.player) == ("17", 1.0, "android_control")


def test_what_is_shown_of_a_phone_is_a_choice(tmp_path: Path) -> None:
    file = tmp_path / "episode.json"
    file.write_text(json.dumps(an_episode(tmp_path)))
    pictured = converted(android_control(tmp_path, shown="screenshot"))
    assert calls_in(pictured)[0] == {"action": "click", "coordinate": [50, 30]}
    assert ExpertTrajectory.from_recording(pictured).turns[1].places == {1: (10, 20, 80, 20)}, (
        "to be compared by"
    )
    assert ExpertTrajectory.from_recording(pictured).opening[0].text.endswith("screen: 100 x 200")
    file.write_text(json.dumps(an_episode(tmp_path, screenshots=None)))
    assert (
        not ExpertTrajectory.from_recording(converted(android_control(file, shown="axtree")))
        .opening[0]
        .images
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"screenshots": None}, "no screenshots"),
        ({"screenshots": ["0.png"]}, "step 1 needs one"),
        ({"screenshots": ["gone.png"] * 9}, "gone.png does not exist"),
        ({"accessibility_trees": []}, "no accessibility trees"),
        ({"actions": [{"action_type": "fly"}], "step_instructions": []}, "no action 'fly'"),
        ({"actions": [{"action_type": "click", "x": 1}], "step_instructions": []}, "has no 'y'"),
        ({"step_instructions": ["one"]}, "8 actions but 1"),
        ({"goal": 3}, "the goal is 3, but must be a text"),
        ({"goal": None}, "the goal is None"),
        ({"actions": None}, "actions is None, but must be a list"),
        ({"actions": [None]}, "an action is None, but must be an object"),
        ({"actions": ["[1]"]}, "an action is [1], but must be an object"),
        ({"actions": [{"action_type": "click", "x": "a", "y": 1}] * 8}, "x is 'a', but must be a"),
        ({"actions": [{"action_type": "input_text", "text": 5}] * 8}, "text is 5"),
        ({"goal": "x\ud800y"}, "half of a surrogate pair"),
        ({"step_instructions": ["\ud800"] * 8}, "half of a surrogate pair"),
        ({"step_instructions": [5] * 8}, "instruction: Input should be a valid string"),
        ({"step_instructions": "12345678"}, "must be a list"),
        ({"accessibility_trees": ["tree"] * 9}, "an accessibility tree is 'tree'"),
        ({"accessibility_trees": [None] * 9}, "an accessibility tree is None"),
        ({"accessibility_trees": [[None]] * 9}, "a node is None, but must be an object"),
        ({"accessibility_trees": [{"windows": "abc"}] * 9}, "windows is 'abc'"),
        ({"accessibility_trees": [{"windows": [1]}] * 9}, "a window is 1"),
        ({"accessibility_trees": [{"windows": [{"tree": None}]}] * 9}, "the tree of a window is"),
        ({"screenshots": [None] * 9}, "a screenshot is None"),
        ({"screenshots": ["a" * 5000 + ".png"] * 9}, "cannot be read: File name too long"),
        ({"screenshot_widths": ['5\nbutton "Pay" [7]'] * 9}, "must be a finite number"),
        ({"screenshot_widths": [True] * 9}, "must be a finite number"),
        ({"screenshot_widths": [0] * 9}, "a side of the screen is 0, but must be above 0"),
        ({"screenshot_widths": [float("nan")] * 9}, "not finite (NaN)"),
        ({"screenshot_widths": 1080}, "must be a list"),
    ],
)
def test_an_episode_that_cannot_be_converted_says_why(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    file = tmp_path / "episode.json"
    file.write_text(json.dumps(an_episode(tmp_path, **changes)))
    (one,) = android_control(file)
    assert isinstance(one.recording, str)
    assert why in one.recording
    assert len(one.recording) <= 200
    assert one.name == str(file)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"episode_id": 2, "goal": ', "broken JSON"),
        (b'{"goal": "caf\xe9"}', "not UTF-8 at byte 13"),
        ('{"goal": "x"}'.encode("utf-16-le"), "broken JSON"),
        (b'{"episode_id": ' + b"9" * 5000 + b"}", "more than 308 digits"),
        (b"[" * 100_000 + b"]" * 100_000, "nested more than 64 deep"),
        (b"[1]", "the episode is [1], but must be an object"),
        (b"null", "the episode is None"),
        (b"5", "the episode is 5"),
        (b'"text"', "the episode is 'text'"),
    ],
)
def test_a_damaged_line_costs_no_other_episode(tmp_path: Path, line: bytes, why: str) -> None:
    episode = json.dumps(an_episode(tmp_path)).encode()
    file = tmp_path / "episodes.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + episode + b"\n" + line + b"\n" + episode)
    first, damaged, last = android_control(file)
    assert isinstance(first.recording, ConversationRecording)
    assert isinstance(last.recording, ConversationRecording)
    assert why in damaged.recording
    assert damaged.name == f"{file}, line 2"


def test_a_file_is_one_episode_and_no_folder(tmp_path: Path) -> None:
    (tmp_path / "episodes.json").write_text(json.dumps([an_episode(tmp_path)] * 2))
    (tmp_path / "folder.json").mkdir()
    (one,) = android_control(tmp_path)
    assert "must be an object" in one.recording


@pytest.mark.parametrize(
    "name", ['a.b\nbutton "Pay" [7]', 'a.button "Pay" [7]', "a.Outer$Inner", "a.1st", None, "a."]
)
def test_a_class_cannot_forge_a_line(tmp_path: Path, name: str | None) -> None:
    tree = [NODES[1] | {"class_name": name}]
    file = tmp_path / "episode.json"
    file.write_text(json.dumps(an_episode(tmp_path, accessibility_trees=[tree] * 9)))
    recording = converted(android_control(file, shown="axtree"))
    (asked,) = ExpertTrajectory.from_recording(recording).opening
    assert asked.text.splitlines()[2:] == ['view "Add alarm" [1]']


@pytest.mark.parametrize(
    "box",
    [
        {"left": -1e308, "right": 1e308, "bottom": 10},
        {"left": None, "right": 10, "bottom": 10},
        ["inf", "inf", "inf", "inf"],
        [0, 0, 10],
        "0099",
    ],
)
def test_an_element_without_a_finite_box_is_left_out(tmp_path: Path, box: Any) -> None:
    tree = [NODES[1] | {"bounds_in_screen": box}, NODES[3]]
    file = tmp_path / "episode.json"
    file.write_text(json.dumps(an_episode(tmp_path, accessibility_trees=[tree] * 9)))
    recording = converted(android_control(file))
    assert ExpertTrajectory.from_recording(recording).turns[0].places == {1: (0, 50, 100, 20)}


def a_recording(task: str = "", wide: float = 5) -> ConversationRecording:
    turn = make_turn("phone", [{"action": "done"}], places={1: (0, 0, wide, 5)})
    return ConversationRecording(messages=(ask_task("Go."), turn), task=task)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OverflowError("too large"), "its data have another form than expected: too large"),
        (AttributeError("no get"), "its data have another form than expected: no get"),
        (TypeError("no text"), "its data have another form than expected: no text"),
        (KeyError("action"), "it has no 'action'"),
        (RecursionError(), "its data are nested too deep"),
        (UnusableTrajectory("a\n b\u202e\x1b\ud800"), "a b???"),
        (UnusableTrajectory("a" * 150 + "b" * 150), "a" * 99 + "…" + "b" * 100),
    ],
)
def test_a_reason_is_one_short_line(error: Exception, why: str) -> None:
    def fail() -> ConversationRecording:
        raise error

    assert convert_trajectory("a\nname", fail) == ConversionResult("a name", why)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_what_is_no_fault_of_the_data_ends_a_conversion(error: type[BaseException]) -> None:
    def fail() -> ConversationRecording:
        raise error

    with pytest.raises(error):
        convert_trajectory("name", fail)


@pytest.mark.parametrize("changes", [{"task": "\ud800"}, {"wide": float("inf")}])
def test_what_could_not_be_read_again_is_left_out(changes: dict[str, Any]) -> None:
    assert isinstance(convert_trajectory("name", partial(a_recording, **changes)).recording, str)
    assert isinstance(convert_trajectory("name", a_recording).recording, ConversationRecording)


def test_a_call_is_one_of_a_phone() -> None:
    with pytest.raises(UnusableTrajectory, match="no action ''"):
        call_of({})


# -- OSWorld ---------------------------------------------------------------------------------------

CLICK = {"action": "click", "coordinate": [10, 20]}


@pytest.mark.parametrize(
    ("code", "calls"),
    [
        ("pyautogui.click(10, 20)", [CLICK]),
        ("import pyautogui\nimport time\npyautogui.click(x=10, y=20); time.sleep(2)",
         [CLICK, {"action": "wait", "seconds": 2.0}]),
        ("pyautogui.click((10, 20))", [CLICK]),
        ("pyautogui.moveTo(10, 20, duration=1); pyautogui.click()", [CLICK]),
        ("pyautogui.click(10, 20, clicks=2)", [CLICK | {"action": "double_click"}]),
        ("pyautogui.click(10, 20, button='right')", [CLICK | {"action": "right_click"}]),
        ("pyautogui.doubleClick(10, 20)", [CLICK | {"action": "double_click"}]),
        ("pyautogui.tripleClick(10, 20)", [CLICK | {"action": "triple_click"}]),
        ("pyautogui.rightClick(10, 20)", [CLICK | {"action": "right_click"}]),
        ("pyautogui.middleClick(10, 20)", [CLICK | {"action": "middle_click"}]),
        ("pyautogui.moveTo(10, 20)", [CLICK | {"action": "move"}]),
        ("pyautogui.moveTo(1, 2); pyautogui.dragTo(3, 4, button='left')",
         [{"action": "drag", "coordinate": [1, 2], "to_coordinate": [3, 4]}]),
        ("pyautogui.mouseDown(1, 2); pyautogui.moveTo(2, 2); pyautogui.mouseUp(3, 4)",
         [{"action": "drag", "coordinate": [1, 2], "to_coordinate": [3, 4]}]),
        ("pyautogui.mouseDown(10, 20); pyautogui.mouseUp()", [CLICK]),
        ("pyautogui.typewrite('héy', interval=0.1)", [{"action": "type", "text": "héy"}]),
        ("pyautogui.write(message='a\\nb')", [{"action": "type", "text": "a\nb"}]),
        ("pyautogui.press('enter', presses=100)", [{"action": "key", "keys": "enter"}] * 100),
        ("pyautogui.press(['a', 'tab'])",
         [{"action": "key", "keys": "a"}, {"action": "key", "keys": "tab"}]),
        ("pyautogui.hotkey('ctrl', 's')", [{"action": "key", "keys": "ctrl+s"}]),
        ("pyautogui.hotkey(['ctrl', 's'])", [{"action": "key", "keys": "ctrl+s"}]),
        ("pyautogui.keyDown('ctrl'); pyautogui.press('c'); pyautogui.keyUp('ctrl')",
         [{"action": "key", "keys": "ctrl+c"}]),
        ("pyautogui.keyDown('shift'); pyautogui.click(10, 20); pyautogui.keyUp('shift')",
         [CLICK | {"keys": "shift"}]),
        ("pyautogui.keyDown('f5'); pyautogui.keyUp('f5')", [{"action": "key", "keys": "f5"}]),
        ("pyautogui.scroll(-5)", [{"action": "scroll", "direction": "down", "amount": 5}]),
        ("pyautogui.scroll(500, x=10, y=20)",
         [{"action": "scroll", "direction": "up", "amount": 5, "coordinate": [10, 20]}]),
        ("pyautogui.scroll(10)", [{"action": "scroll", "direction": "up", "amount": 10}]),
        ("pyautogui.scroll(11)", [{"action": "scroll", "direction": "up", "amount": 1}]),
        ("pyautogui.hscroll(3)", [{"action": "scroll", "direction": "right", "amount": 3}]),
        ("pyautogui.FAILSAFE = False\npyautogui.click(10, 20)", [CLICK]),
        ("DONE", [{"action": "done"}]),
        (" FAIL ", [{"action": "fail"}]),
        ("WAIT", [{"action": "wait"}]),
        ({"action_type": "CLICK", "parameters": {"x": 10, "y": 20, "num_clicks": 2}},
         [CLICK | {"action": "double_click"}]),
        ({"action_type": "TYPING", "parameters": {"text": "x"}}, [{"action": "type", "text": "x"}]),
        ({"action_type": "PRESS", "parameters": {"key": "tab"}},
         [{"action": "key", "keys": "tab"}]),
        ({"action_type": "HOTKEY", "parameters": {"keys": ["ctrl", "v"]}},
         [{"action": "key", "keys": "ctrl+v"}]),
        ({"action_type": "SCROLL", "parameters": {"dx": 0, "dy": -2}},
         [{"action": "scroll", "direction": "down", "amount": 2}]),
        ({"action_type": "DONE"}, [{"action": "done"}]),
    ],
)  # fmt: skip
def test_code_is_read_as_calls(code: Any, calls: list[dict[str, Any]]) -> None:
    assert calls_of(code) == calls


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("pyautogui.click(", "not valid Python"),
        ("pyautogui.click()", "the mouse position, which is unknown"),
        ("pyautogui.click(x + 1, 2)", "not a literal value"),
        ("os.system('rm')", "not a function of pyautogui"),
        ("pyautogui.sleep(1)", "not a function of pyautogui"),
        ("x = 1", "not a call of pyautogui"),
        ("pyautogui.click(1, 2, clicks=4)", "4 clicks of the left"),
        ("pyautogui.screenshot()", "cannot be recorded"),
        ("pyautogui.keyDown('ctrl')", "held at the end"),
        ("pyautogui.mouseDown(1, 2)", "held at the end"),
        ("pyautogui.keyUp('ctrl')", "was not pressed"),
        ("pyautogui.mouseUp(1, 2)", "was not pressed"),
        ("pyautogui.write('')", "an empty text"),
        ("pyautogui.scroll(0)", "scroll of zero"),
        ("pyautogui.press('a', presses=1000000000)", "more than 100 calls"),
        (f"pyautogui.press({['a'] * 101})", "more than 100 calls"),
        ("pyautogui.click(1, 2);" * 101, "more than 100 calls"),
        (f"pyautogui.write('{'a' * 100_000}')", "but the limit is 100000"),
        ("(" * 5000 + "1" + ")" * 5000, "not valid Python"),
        ("pyautogui.click(" + "-" * 50_000 + "1, 2)", "nested too deep"),
        ("+".join(["1"] * 40_000), "nested too deep"),
        ("pyautogui.click(1, 2)\0", "not valid Python"),
        ("pyautogui.write('\ud800')", "not valid Python"),
        ("pyautogui.click('a', 2)", "x is 'a', but must be a finite number"),
        ("pyautogui.click(1e999, 2)", "x is inf"),
        ("import time", "without effect"),
        ({"action_type": "FLY"}, "no action 'FLY'"),
    ],
)
def test_code_that_cannot_be_read_says_why(code: Any, why: str) -> None:
    with pytest.raises(UnusableTrajectory, match=why):
        calls_of(code)


def a_result(folder: Path, *actions: Any, **more: Any) -> Path:
    """Write what OSWorld's runner leaves of a task."""
    place = folder / "gimp" / "77aa"
    place.mkdir(parents=True)
    lines: list[str] = []
    for number, action in enumerate(actions, start=1):
        name = f"step_{number}_20240501@101010.png"
        (place / name).write_bytes(f"after {number}".encode())
        line = {"step_num": number, "action": action, "screenshot_file": name, "done": False}
        lines.append(json.dumps(line | more))
    (place / "traj.jsonl").write_text("\n".join(lines))
    (place / "result.txt").write_text("0.5\n")
    return place


def some_tasks(folder: Path) -> Path:
    place = folder / "examples" / "gimp"
    place.mkdir(parents=True)
    (place / "77aa.json").write_text(json.dumps({"id": "77aa", "instruction": " Make it blue. "}))
    return folder / "examples"


STEPS = ("pyautogui.click(10, 20)", "pyautogui.write('x'); pyautogui.press('enter')", "DONE")


def test_a_result_of_osworld_begins_at_the_first_screen_that_was_kept(tmp_path: Path) -> None:
    a_result(tmp_path / "results", *STEPS, response="I write it.")
    tasks = some_tasks(tmp_path)
    recording = converted(osworld(tmp_path / "results", tasks=tasks, size=(800, 600)))
    expert = ExpertTrajectory.from_recording(recording)
    assert expert.opening[0].text == (
        'Goal: Make it blue.\nDone so far: {"action": "click", "coordinate": [10, 20]}\n'
        "screen: 800 x 600"
    )
    assert expert.opening[0].images[0].data == b"after 1"
    assert calls_in(recording) == [
        {"action": "type", "text": "x"},
        {"action": "key", "keys": "enter"},
        {"action": "done"},
    ]
    assert expert.turns[0].thought == "I write it."
    assert [m.text for m in expert.turns[0].answers] == ["ok", "screen: 800 x 600"]
    assert expert.turns[0].answers[1].images[0].data == b"after 2"
    assert [m.tool_call_id for m in expert.turns[0].answers] == ["call_0", "call_1"]
    assert (recording.reward, recording.task, recording.player) == (0.5, "77aa", "osworld")


def test_a_screen_before_the_first_action_is_used(tmp_path: Path) -> None:
    place = a_result(tmp_path, *STEPS, "pyautogui.click(1, 1)", instruction="Make it red.")
    (place / "step_0.png").write_bytes(b"before")
    recording = converted(osworld(tmp_path))
    assert (
        ExpertTrajectory.from_recording(recording).opening[0].text
        == "Goal: Make it red.\nscreen: 1920 x 1080"
    )
    assert ExpertTrajectory.from_recording(recording).opening[0].images[0].data == b"before"
    assert len(calls_in(recording)) == 4, "nothing comes after it was done"
    (place / "result.txt").unlink()
    assert converted(osworld(tmp_path)).reward is None


@pytest.mark.parametrize(
    ("actions", "why"),
    [
        ((), "no action was taken"),
        (("DONE",), "no screen before it"),
        (("pyautogui.click(1, 2)", "pyautogui.fly()"), "cannot be recorded"),
    ],
)
def test_a_result_that_cannot_be_converted_says_why(
    tmp_path: Path, actions: tuple[str, ...], why: str
) -> None:
    a_result(tmp_path, *actions, instruction="Go.")
    (one,) = osworld(tmp_path)
    assert isinstance(one.recording, str)
    assert why in one.recording


@pytest.mark.parametrize("line", ["[1]", "null", "5", '"action"', "[" * 100_000, '{"action":'])
def test_a_damaged_line_costs_no_other_result(tmp_path: Path, line: str) -> None:
    a_result(tmp_path / "one", *STEPS, instruction="Go.")
    place = a_result(tmp_path / "two", *STEPS, instruction="Go.")
    with (place / "traj.jsonl").open("a") as file:
        file.write(f"\n \n{line}\n")
    good, damaged = osworld(tmp_path)
    assert isinstance(good.recording, ConversationRecording)
    assert damaged.recording.startswith("line 5")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"instruction": "\ud800"}, "half of a surrogate pair"),
        ({"instruction": "Go.", "thought": "\ud800"}, "half of a surrogate pair"),
        ({"instruction": ["Go."]}, "the instruction is ['Go.'], but must be a text"),
    ],
)
def test_damaged_words_of_a_result_are_named(
    tmp_path: Path, more: dict[str, Any], why: str
) -> None:
    a_result(tmp_path, *STEPS, **more)
    (one,) = osworld(tmp_path)
    assert why in one.recording


@pytest.mark.parametrize(
    "code", ["pyautogui.write('\\ud800')", "pyautogui.click(" + "1+" * 40_000 + "1)"]
)
def test_damaged_code_of_a_result_is_named(tmp_path: Path, code: str) -> None:
    a_result(tmp_path, "pyautogui.click(1, 2)", code, instruction="Go.")
    (one,) = osworld(tmp_path)
    assert isinstance(one.recording, str)


@pytest.mark.parametrize("score", [b"", b" \n", b"True", b"\xff"])
def test_a_result_needs_its_score(tmp_path: Path, score: bytes) -> None:
    (a_result(tmp_path, *STEPS, instruction="Go.") / "result.txt").write_bytes(score)
    (one,) = osworld(tmp_path)
    assert "result.txt begins with" in one.recording


def test_a_line_ends_at_its_line_feed_alone(tmp_path: Path) -> None:
    place = a_result(tmp_path, *STEPS, instruction="Go.", thought="a\u2028b\u2029c\u0085d")
    lines = [json.loads(line) for line in (place / "traj.jsonl").read_text().splitlines()]
    text = "\r\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    (place / "traj.jsonl").write_bytes(text.encode())
    expert = ExpertTrajectory.from_recording(converted(osworld(tmp_path)))
    assert expert.turns[0].thought == "a\u2028b\u2029c\u0085d"


def test_a_result_without_its_instruction_or_pictures_is_left_out(tmp_path: Path) -> None:
    place = a_result(tmp_path, *STEPS)
    (one,) = osworld(tmp_path)
    assert "task '77aa' has no instruction" in str(one.recording)
    for picture in place.glob("*.png"):
        picture.unlink()
    (one,) = osworld(tmp_path, tasks=some_tasks(tmp_path))
    assert "does not exist" in str(one.recording)


def test_the_commands_write_what_can_be_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a_result(tmp_path / "results" / "one", *STEPS, instruction="Make it green.")
    a_result(tmp_path / "results" / "two", "pyautogui.fly()", instruction="Fly.")
    file = tmp_path / "results" / "out" / "osworld.jsonl"
    monkeypatch.setattr(sys, "argv", ["convert", "osworld", str(tmp_path / "results"), str(file)])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert not ended.value.code
    said = capsys.readouterr()
    assert "wrote 1 recordings to" in said.out
    assert "two" in said.err
    assert "left out" in said.err
    assert read_recordings(file)[0].messages[0].message.images[0].data == b"after 1"
    env = RecordedEnv(recordings=file, heldout_fraction=0, patches=-1)
    assert [task.messages[0].text[:20] for task in env.tasks("train")] == ["Goal: Make it green."]
    for arguments, why in (
        (["osworld", str(tmp_path), "x.jsonl", "--size", "wide"], "--size is 'wide'"),
        (["android-control", str(tmp_path / "nothing"), "x.jsonl"], "no JSON"),
    ):
        monkeypatch.setattr(sys, "argv", ["convert", *arguments])
        with pytest.raises(SystemExit) as ended:
            command.main()
        assert ended.value.code == 2
        assert why in capsys.readouterr().err


def test_the_commands_overwrite_nothing_that_they_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, damaged = tmp_path / "episodes.jsonl", tmp_path / "damaged.jsonl"
    source.write_text(json.dumps(an_episode(tmp_path)))
    damaged.write_text(json.dumps(an_episode(tmp_path, goal=None)))
    before = source.read_text()
    earlier = tmp_path / "out" / "earlier.jsonl"
    earlier.parent.mkdir()
    earlier.write_text("as it was")
    for where, file, code, why in (
        (source, source, 2, "is part of SOURCE"),
        (tmp_path, source, 2, "is part of SOURCE"),
        (source, earlier.parent, 2, "is a folder"),
        (source, source / "file.jsonl", 2, "error: "),
        (damaged, earlier, 1, "wrote no recording"),
    ):
        monkeypatch.setattr(sys, "argv", ["convert", "android-control", str(where), str(file)])
        with pytest.raises(SystemExit) as ended:
            command.main()
        assert ended.value.code == code
        assert why in capsys.readouterr().err
        assert (source.read_text(), earlier.read_text()) == (before, "as it was")


def test_a_choice_that_there_is_not(tmp_path: Path) -> None:
    shown: Any = "everything"
    with pytest.raises(ConfigError, match="axtree, screenshot, both"):
        next(android_control(tmp_path, shown=shown))
    with pytest.raises(ConfigError, match=r"no traj\.jsonl"):
        next(osworld(tmp_path))
