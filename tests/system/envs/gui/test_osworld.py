"""Tasks in OSWorld's format: what is read, what is refused, and real desktops.

Mutants seen caught, each applied to a copy of the tree: a PyAutoGUI script with more in it read all
the same; its points not scaled; commands with sudo let through; a cached file looked for by another
name; `failed` paid where the task can be done; `infeasible` paid without it; what a command said
not kept; a command not ended when its time is over; the wrong window raised.
"""

import json
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import agentrl
from agentrl.authoring.gold import play_gold
from agentrl.env import say
from agentrl.errors import ConfigError
from agentrl.task import Task
from agentrl_envs.accessibility.node import AccessibilityNode
from agentrl_envs.gui import GuiEnv
from agentrl_envs.gui.desktop import DesktopPool, DesktopSettings
from agentrl_envs.gui.osworld import osworld_pack, read_tasks
from agentrl_envs.gui.osworld.gestures import ScriptGesture, UnreadableScript, gestures, perform
from agentrl_envs.gui.osworld.steps import command_needs, words_of
from agentrl_envs.gui.world import CommandResult
from tests.support.xlsx_files import xlsx

URL = "https://files.example/of/book.xlsx?download=1"

# -- tasks of ours in the format -------------------------------------------------------------------

RULE = {"type": "rule", "rules": {"expected": "yes\n"}}
NOTES: dict[str, Any] = {
    "id": "notes", "snapshot": "init_state",
    "instruction": "Add the line two at the end, and save.",
    "related_apps": ["editor"],
    "config": [
        {"type": "execute", "parameters": {"command": "echo one > ~/notes.txt", "shell": True}},
        {"type": "open", "parameters": {"path": "/home/user/notes.txt"}},
    ],
    "evaluator": {
        "postconfig": [
            {"type": "activate_window", "parameters": {"window_name": "notes.txt"}},
            {"type": "sleep", "parameters": {"seconds": 1}},
            {"type": "execute", "parameters": {"command": [
                "python", "-c",
                "import pyautogui; import time; pyautogui.hotkey('ctrl', 's'); time.sleep(0.5);",
            ]}},
        ],
        "func": "compare_text_file",
        "result": {"type": "vm_file", "path": "/home/user/notes.txt", "dest": "notes.txt"},
        "expected": {"type": "cloud_file", "path": "https://files.example/g", "dest": "gold.txt"},
        "options": {"ignore_blanks": True},
    },
    "gold": [
        {"action": "key", "keys": "ctrl+End"}, {"action": "type", "text": "two"},
        {"action": "done"},
    ],
}  # fmt: skip
TERMINAL: dict[str, Any] = {
    "id": "terminal", "instruction": "Make the folder a/b, and move x.txt into it.",
    "config": [
        {"type": "command", "parameters": {"command": ["touch", "~/x.txt"]}},
        {"type": "launch", "parameters": {"command": "lxterminal --working-directory=/home/user"}},
    ],
    "evaluator": {
        "func": ["exact_match", "check_include_exclude", "check_moved_jpgs", "check_list"],
        "conj": "and",
        "postconfig": [{"type": "execute", "parameters": {
            "command": "ls -d ~/*", "shell": True, "stdout": "listed.txt",
            "until": {"returncode": 0}}}],
        "result": [
            {"type": "vm_command_line", "command": "[ -f ~/a/b/x.txt ] && echo yes", "shell": True},
            {"type": "vm_command_error", "command": ["ls", "/home/user/x.txt"]},
            {"type": "list_directory", "path": "/home/user/a/b"},
            {"type": "cache_file", "path": "listed.txt"},
        ],
        "expected": [
            RULE,
            {"type": "rule", "rules": {"include": ["No such file"], "exclude": ["denied"]}},
            {"type": "rule", "rules": {"expected": ["x.txt"]}},
            {"type": "rule", "rules": {"expect": ["user/a$"], "unexpect": ["x.txt"]}},
        ],
    },
    "gold": [
        {"action": "type", "text": "mkdir -p a/b && mv x.txt a/b\n"}, {"action": "done"},
    ],
}  # fmt: skip
SHEET: dict[str, Any] = {
    "id": "sheet", "instruction": "Put 42.5 into B2 and save the workbook.",
    "config": [
        {"type": "download",
         "parameters": {"files": [{"url": URL, "path": "/home/user/book.xlsx"}]}},
        {"type": "open", "parameters": {"path": "/home/user/book.xlsx"}},
    ],
    "evaluator": {
        "func": ["compare_table", "is_in_list"],
        "result": [
            {"type": "vm_file", "path": "/home/user/book.xlsx", "dest": "book.xlsx"},
            {"type": "content_from_vm_file", "path": "/home/user/book.xlsx", "file_type": "xlsx",
             "file_content": "last_row"},
        ],
        "expected": [
            {"type": "cloud_file", "path": "https://files.example/w", "dest": "wanted.xlsx"},
            {"type": "rule", "rules": {"expected": "pens"}},
        ],
        "options": [
            {"rules": [
                {"type": "sheet_name"},
                {"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "EI0"},
                {"type": "check_cell", "sheet_idx": 0, "coordinate": "B2",
                 "props": {"value": {"method": "approx:0.01", "ref": 42.5}}},
            ]},
            None,
        ],
    },
    "gold": [
        {"action": "key", "keys": "ctrl+Home"}, {"action": "key", "keys": "Down"},
        {"action": "key", "keys": "Right"}, {"action": "type", "text": "42.5\n"},
        {"action": "key", "keys": "ctrl+s"}, {"action": "done"},
    ],
}  # fmt: skip
IMPOSSIBLE: dict[str, Any] = {
    "id": "impossible", "instruction": "Pour a cup of tea.", "config": [],
    "evaluator": {"func": "infeasible"}, "gold": [{"action": "fail"}],
}  # fmt: skip
SAMPLES = [NOTES, TERMINAL, SHEET, IMPOSSIBLE]


def write(folder: Path, *tasks: Mapping[str, Any]) -> str:
    for task in tasks:
        file = folder / "examples" / "own" / f"{task['id']}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(task))
    (folder / "test_all.json").write_text(json.dumps({"own": [task["id"] for task in tasks]}))
    return str(folder)


def cache(folder: Path) -> str:
    """Return a folder as OSWorld leaves it once its tasks have run."""
    kept = folder / "cache"
    for task, name, data in (
        ("notes", "gold.txt", b"one\ntwo\n"),
        ("sheet", "wanted.xlsx", xlsx(Stock={"A1": "what", "B2": 42.5, "A2": "pens"})),
        ("sheet", f"{uuid.uuid5(uuid.NAMESPACE_URL, URL)}_book.xlsx",
         xlsx(Stock={"A1": "what", "B2": 1.0, "A2": "pens"})),
    ):  # fmt: skip
        (kept / task).mkdir(parents=True, exist_ok=True)
        (kept / task / name).write_bytes(data)
    return str(kept)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncGenerator[DesktopPool]:
    settings = DesktopSettings(desktops=1, warm=0, call_s=120, start_s=120, settle_s=20)
    made = DesktopPool(settings)
    yield made
    await made.close()


@pytest.mark.gui
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample["id"])
async def test_the_recorded_actions_earn_one_and_doing_nothing_earns_nothing(
    pool: DesktopPool, tmp_path: Path, sample: Mapping[str, Any]
) -> None:
    pack = osworld_pack(path=write(tmp_path, sample), cache=cache(tmp_path), heldout_fraction=0)
    env, (task,) = GuiEnv(pack=pack, desktop=pool), [*pack.tasks("train", 0)]
    episode = await play_gold(env, task)
    assert episode.reward == 1, [message.text for message in episode.messages]
    await env.reset(options={"task": task})
    idle = await env.step(say(""))
    await env.close()
    assert (idle[1], idle[2]) == (0.0, True)


@pytest.mark.gui
@pytest.mark.asyncio(loop_scope="module")
async def test_commands_end_in_time_and_windows_are_found_by_their_titles(
    pool: DesktopPool,
) -> None:
    from agentrl_envs.gui.checked_desktop import CheckedDesktop
    from agentrl_envs.gui.observation import DesktopObservationOptions

    desktop = await pool.take()
    desktop.touched = True
    place_ = CheckedDesktop(desktop, DesktopObservationOptions())
    said = await place_.run(["sh", "-c", "echo out; echo err >&2; exit 3"], limit_s=60)
    assert said == CommandResult(3, "out\n", "err\n")
    assert await place_.run(["no-such-program"], limit_s=60) == CommandResult(
        127, "", said_of("no-such-program")
    )
    endless = await place_.run(["sh", "-c", "echo begun; sleep 600"], limit_s=5)
    assert endless == CommandResult(None, "begun\n", "")
    long = await place_.run(["head", "-c", "3000000", "/dev/zero"], limit_s=60)
    assert len(long.out) == 2**20
    assert (await place_.run(["python", "-c", "print(1)"], limit_s=60)).out == "1\n"
    for title in ("First", "Second"):
        await place_.start(["xterm", "-T", title], waits=True)
    assert [node.name for node in await place_.nodes() if node.has("active")] == ["Second"]
    assert await place_.window("first", "raise", strict=False)
    assert [node.name for node in await place_.nodes() if node.has("active")] == ["First"]
    assert not await place_.window("first", "close", strict=True)
    assert await place_.window("First", "close", strict=True)
    assert [node.name for node in await place_.nodes()] == ["Second"]
    await pool.give(desktop)


def said_of(program: str) -> str:
    return f"[Errno 2] No such file or directory: '{program}'"


# -- what is read ----------------------------------------------------------------------------------


def test_the_tasks_of_a_folder_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, *SAMPLES)
    found = read_tasks(path, cache(tmp_path))
    assert found.report == "supported 4 of 4"
    assert [*found.tasks] == [
        f"examples/own/{s['id']}" for s in sorted(SAMPLES, key=lambda s: s["id"])
    ]
    pack = osworld_pack(path=path, cache=cache(tmp_path), heldout_fraction=0.5)
    split = {name: [*pack.tasks(name, 3)] for name in ("train", "heldout")}
    assert {t.id for t in split["train"]} | {t.id for t in split["heldout"]} == {*found.tasks}
    assert not {t.id for t in split["train"]} & {t.id for t in split["heldout"]}
    assert [*pack.tasks("train", 0)] == split["train"]


def test_what_cannot_be_played_is_refused_with_what_it_needs(tmp_path: Path) -> None:
    odd = {
        "id": "odd", "instruction": "?", "related_apps": ["no_app"], "proxy": True,
        "config": [
            {"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["https://x.example"]}},
            {"type": "launch", "parameters": {"command": ["no-such-program"]}},
            {"type": "execute", "parameters": {"command": "echo p | sudo -S ls", "shell": True}},
            {"type": "execute", "parameters": {"command": script("pyautogui.keyDown('a')")}},
            {"type": "open", "parameters": {"path": "/home/user/film.mkv"}},
            {"type": "download",
             "parameters": {"files": [{"url": "https://x.example/f", "path": "/f"}]}},
            {"type": "upload_file",
             "parameters": {"files": [{"local_path": "/no/file", "path": "/f"}]}},
        ],
        "evaluator": {
            "func": ["compare_pptx_files", "compare_table"],
            "result": [{"type": "vlc_config"}, {"type": "cache_file", "path": "nothing"}],
            "expected": [{"type": "cloud_file", "path": "u", "dest": "d.pptx"}, None],
            "options": [None, {"rules": [{"type": "chart"}, {
                "type": "check_cell", "sheet_idx": 0, "coordinate": "A1",
                "props": {"fill": {"method": "odd", "ref": 1}}}]}],
        },
    }  # fmt: skip
    path = write(tmp_path, odd, IMPOSSIBLE)
    found = read_tasks(path)
    assert found.report.startswith("supported 1 of 2\n  examples/own/odd: needs the network; ")
    needs = "\n".join(found.refused["examples/own/odd"])
    for part in (
        "chrome_open_tabs", "program no-such-program", "rights of root", "keyDown", "film.mkv",
        "https://x.example/f", "/no/file", "compare_pptx_files", "vlc_config", "file nothing",
        "d.pptx", "rule 'chart'", "fill of cells", "method 'odd'",
    ):  # fmt: skip
        assert part in needs, part
    with pytest.raises(ConfigError, match=r"(?s)supported 1 of 2.*examples/own/odd.*skip"):
        osworld_pack(path=path)
    pack = osworld_pack(path=path, unsupported="skip", heldout_fraction=0)
    assert [task.id for task in pack.tasks("train", 0)] == ["examples/own/impossible"]


def test_what_is_no_task_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    for path, why in ((str(tmp_path), "no task in OSWorld's format"), ("", "names no tasks"),
                      (str(tmp_path / "none"), "nothing at")):  # fmt: skip
        with pytest.raises(ConfigError, match=why):
            osworld_pack(path=path)
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(ConfigError, match=r"b\.json is not JSON"):
        osworld_pack(path=str(tmp_path))
    path = write(tmp_path / "good", IMPOSSIBLE)
    for settings in ({"unsupported": "maybe"}, {"heldout_fraction": 2}):
        with pytest.raises(ConfigError):
            osworld_pack(path=path, **settings)  # pyright: ignore[reportArgumentType]


async def test_it_is_registered(tmp_path: Path) -> None:
    env = agentrl.make("gui/OSWorld-v0", path=write(tmp_path, IMPOSSIBLE), heldout_fraction=0)
    (task,) = islice(env.tasks("train", seed=0), 1)
    assert task.prompt == "Pour a cup of tea."
    await env.close()
    with pytest.raises(ConfigError, match="path names no tasks"):
        agentrl.make("gui/OSWorld-v0")


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample["id"])
def test_commands_outside_the_format_are_refused(sample: Mapping[str, Any], tmp_path: Path) -> None:
    """Of every sample one step is spoilt, and the task is not played any more."""
    for step in (
        {"type": "fly"},
        {"type": "execute", "parameters": {}},
        {"type": "execute", "parameters": {"command": "sudo ls", "shell": True}},
    ):
        spoilt = {**sample, "config": [*sample["config"], step]}
        found = read_tasks(write(tmp_path, spoilt), cache(tmp_path))
        assert not found.tasks, step


def test_what_commands_need() -> None:
    assert command_needs("ls -l") == []
    assert command_needs(["xdg-settings", "get"]) == ["GNOME's settings and programs"]
    assert command_needs("google-chrome --remote-debugging-port=1") == ["Chrome's debugging port"]
    assert command_needs(None) == ["a command, not None"]
    assert words_of("ls 'a b'", shell=False) == ["ls", "a b"]
    assert words_of(["ls", "~/x"], shell=False) == ["ls", "/home/user/x"]
    assert words_of("ls | wc", shell=True) == ["/bin/sh", "-c", "ls | wc"]


# -- gestures --------------------------------------------------------------------------------------


def script(text: str) -> list[str]:
    return ["python", "-c", f"import pyautogui; import time; {text}"]


def test_scripts_are_read_and_not_run() -> None:
    read = gestures(script(
        "time.sleep(0.5); pyautogui.click(960, 540); pyautogui.hotkey('ctrl', 's'); "
        "pyautogui.press('enter', presses=2); pyautogui.typewrite('a b'); "
        "pyautogui.moveTo({SCREEN_WIDTH_HALF}, {SCREEN_HEIGHT_HALF}); pyautogui.rightClick(1, 2)"
    ))  # fmt: skip
    assert read == [
        ScriptGesture("sleep", {"seconds": 0.5}),
        ScriptGesture("click", {"x": 960, "y": 540, "button": "left", "times": 1, "keys": []}),
        ScriptGesture("press", {"keys": ["ctrl", "s"]}),
        *[ScriptGesture("press", {"keys": ["enter"]})] * 2,
        ScriptGesture("type", {"text": "a b"}),
        ScriptGesture("move", {"x": 960, "y": 540}),
        ScriptGesture("click", {"x": 1, "y": 2, "button": "right", "times": 1, "keys": []}),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "import os", "os.remove('x')", "pyautogui.press(key)", "pyautogui.screenshot('/tmp/x')",
        "[pyautogui.press('a') for _ in range(9)]", "pyautogui.hotkey('ctrl', 'alt', 't')",
        "x = 1", "pyautogui.click(x=1, y=__import__('os'))", "pyautogui.press(",
        "eval('1')", "pyautogui.hotkey()", "pyautogui.click('a', 'b')",
    ],
)  # fmt: skip
def test_scripts_with_more_in_them_are_not(text: str) -> None:
    with pytest.raises(UnreadableScript):
        gestures(script(text))
    with pytest.raises(UnreadableScript):
        gestures(f"python -c 'import pyautogui; {text}'")


@dataclass(slots=True)
class Recorder:
    """A workplace that keeps what its hands were asked to do."""

    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list[Any])

    async def ask(self, do: str, **arguments: Any) -> None:
        self.asked.append((do, arguments))

    async def size(self) -> tuple[int, int]:
        return 960, 540

    async def settle(self) -> bool:
        self.asked.append(("settle", {}))
        return True

    async def read(self, path: str) -> bytes | None:
        raise AssertionError(path)

    async def files(self, folder: str) -> Mapping[str, str]:
        raise AssertionError(folder)

    async def quit(self) -> bool:
        raise AssertionError

    async def nodes(self) -> Sequence[AccessibilityNode]:
        raise AssertionError

    async def put(self, path: str, data: bytes) -> None:
        raise AssertionError(path)

    async def run(self, command: Sequence[str], *, limit_s: float) -> CommandResult:
        raise AssertionError(command)

    async def start(self, command: Sequence[str], *, waits: bool) -> None:
        raise AssertionError(command)

    async def window(self, title: str, do: str, *, strict: bool) -> bool:
        raise AssertionError(title)


async def test_points_are_where_they_are_on_a_screen_of_the_formats_size() -> None:
    place_ = Recorder()
    await perform(gestures(script("pyautogui.click(480, 540); time.sleep(1)")), place_)
    click = {"x": 240, "y": 270, "button": "left", "times": 1, "keys": []}
    assert place_.asked == [("click", click), ("settle", {})]


async def test_failing_pays_where_nothing_else_can_be_done(tmp_path: Path) -> None:
    pack = osworld_pack(path=write(tmp_path, IMPOSSIBLE, TERMINAL), heldout_fraction=0)
    tasks: dict[str, Task] = {task.id: task for task in pack.tasks("train", 0)}
    for name, failed, reward in (
        ("impossible", True, 1),
        ("impossible", False, 0),
        ("terminal", True, 0),
    ):
        task = tasks[f"examples/own/{name}"]
        assert (await pack.judge(task, Recorder(), None, failed=failed)).reward == reward
