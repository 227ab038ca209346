"""What the user got wrong is one message with a line of theirs and exit code 2; nothing is left."""

import re
import sys
from pathlib import Path

import pytest

from agentrl.errors import EnvError, first_error
from agentrl.runtime.user_code import error_place
from tests.support.commands import agentrl

BROKEN = """
import agentrl


@agentrl.tool
def add(a: int, b: int) -> int:
    \"\"\"Return a + b.\"\"\"
    {tool}
    return a + b


def tasks(split, seed):
    {tasks}
    for a, b in agentrl.sample_pairs(split, seed):
        yield agentrl.Task(prompt=f"{{a}} plus {{b}}?", answer=str(a + b), data={{"a": a, "b": b}})


def gold(task, seen):
    {gold}
    return agentrl.call("add", **task.data) if len(seen) == 1 else agentrl.say(seen[-1].text)


def reward(task, messages):
    {reward}
    return agentrl.rewards.exact_answer(task, messages)


agentrl.register_tool_env("user/{name}-v0", tools=[add], tasks=tasks, gold=gold, reward=reward)
"""
RUN = """
run: {name: small, steps: 1, threads: 1}
policy: {make: {hidden_size: 32, layers: 1, heads: 2, kv_heads: 2, head_dim: 16, vocab_size: 320}}
warmstart: {steps: 1, batch_size: 2, demonstrations: 6}
evaluate: {tasks: 2}
"""
CASES = {
    "tool": ("raise RuntimeError('boom')", "RuntimeError: boom\n  at MODULE.py:8, in add; --debug"),
    "tasks": (
        "raise KeyError('no file')",
        "KeyError: 'no file'\n  at MODULE.py:13, in tasks; --de",
    ),
    "gold": ("return 'six'", "returned 'six'; return agentrl.say(text) or agentrl.call("),
    "reward": ("return None", "is None; return a number from every path of the reward function"),
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("part", CASES)
def test_an_environment_that_breaks_names_its_line_and_leaves_no_run(
    capsys: pytest.CaptureFixture[str], here: Path, part: str
) -> None:
    line, words = CASES[part]
    module = f"breaks_in_{part}"
    lines = {**dict.fromkeys(CASES, "pass"), part: line, "name": part.title()}
    (here / f"{module}.py").write_text(BROKEN.format(**lines))
    (here / "a.yaml").write_text(f"{RUN}env: {{id: '{module}:user/{part.title()}-v0'}}\n")
    code, out, err = agentrl(capsys, "train", "a.yaml")
    assert (code, out) == (2, "")
    assert words.replace("MODULE", module) in err
    assert err.count("error: ") == 1
    assert "Traceback" not in err
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("tasks", "SystemExit: 0\n  at exits_in_tasks.py:13, in tasks"),
        ("gold", "SystemExit: 0\n  at exits_in_gold.py:19, in gold"),
        ("reward", "reward raised SystemExit(0)"),
    ],
)
@pytest.mark.parametrize(
    "command", [("train",), ("eval", "--player", "gold"), ("check-env",)], ids=" ".join
)
def test_code_of_the_user_that_calls_exit_is_an_error(
    capsys: pytest.CaptureFixture[str], here: Path, part: str, words: str, command: tuple[str, ...]
) -> None:
    module, name = f"exits_in_{part}", f"Exits{part.title()}"
    lines = {**dict.fromkeys(CASES, "pass"), part: "import sys; sys.exit(0)", "name": name}
    (here / f"{module}.py").write_text(BROKEN.format(**lines))
    (here / "a.yaml").write_text(f"{RUN}env: {{id: '{module}:user/{name}-v0'}}\n")
    sys.modules.pop(module, None)
    target = f"{module}:user/{name}-v0" if command == ("check-env",) else "a.yaml"
    code, out, err = agentrl(capsys, *command, target)
    assert (code, out) == (2, "")
    assert words.partition("\n")[0] in err
    assert words.partition("at ")[2] in err


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import not_there_at_all\n", "ModuleNotFoundError: .*\n  at M.py:1, in <module>; --debug"),
        ("def x(:\n", r"SyntaxError: invalid syntax \(M.py, line 1\)"),
        (
            "import agentrl\nagentrl.register_tool_env('user/Half-v0')\n",
            "TypeError: .*'tasks' and 'reward'\n  at M.py:2, in <module>; --debug shows the trace",
        ),
        (
            "import agentrl\n@agentrl.tool\ndef add(a, b):\n    'Add.'\n",
            "parameter 'a' has no type.*\n  at M.py:2, in <module>",
        ),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_message(
    capsys: pytest.CaptureFixture[str], here: Path, source: str, words: str
) -> None:
    (here / "half_done.py").write_text(source)
    sys.modules.pop("half_done", None)
    code, _, err = agentrl(capsys, "check-env", "half_done:user/Half-v0")
    assert code == 2
    assert re.search(words.replace("M.py", "half_done.py"), err)
    assert "Traceback" not in err


def test_a_value_that_says_nothing_fails_the_tool(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    lines = {**dict.fromkeys(CASES, "pass"), "tool": "return object()", "name": "Object"}
    (here / "says_nothing.py").write_text(BROKEN.format(**lines))
    code, _, err = agentrl(capsys, "check-env", "says_nothing:user/Object-v0")
    assert code == 2
    assert "the tool returned a value of type object, which is neither text nor JSON" in err


def test_a_file_that_cannot_be_written_is_one_message(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    (here / "file").write_text("")
    code, _, err = agentrl(capsys, "init", "shop", "--folder", "file")
    assert (code, err.partition("; ")[0]) == (2, "error: file: File exists")
    with pytest.raises(FileExistsError):
        agentrl(capsys, "init", "shop", "--folder", "file", "--debug")
    (here / "folder").mkdir()
    code, _, err = agentrl(capsys, "record", "reasoning/ChainSum-v0", "folder", "--tasks", "1")
    assert code == 2
    assert err == "error: FILE is folder, which is a folder; give the path of a file\n"


def test_a_checkpoint_may_be_named_by_its_name(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    run = here / "runs" / "one"
    (run / "checkpoints" / "step-000002").mkdir(parents=True)
    (run / "config.yaml").write_text(f"{RUN}env: {{id: reasoning/ChainSum-v0}}\n")
    code, _, err = agentrl(capsys, "eval", "runs/one", "--checkpoint", "step-2")
    says = (
        "error: --checkpoint is step-2, but that folder does not exist; runs/one has step-000002\n"
    )
    assert (code, err) == (2, says)
    code, _, err = agentrl(capsys, "eval", "runs/one", "--checkpoint", "step-000002")
    assert code == 2
    assert "runs/one/checkpoints/step-000002" in err
    code, _, err = agentrl(capsys, "eval", "runs/two")
    says = (
        "error: runs/two: there is no run and no config file of this name; existing runs: "
        "runs/one\n"
    )
    assert (code, err) == (2, says)


def test_a_policy_that_is_not_there_is_not_looked_for_elsewhere(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    run = f"{RUN}env: {{id: reasoning/ChainSum-v0}}\n"
    (here / "a.yaml").write_text(run)
    changes = ("policy.path=./nowhere", "policy.make=null", "warmstart=null")
    code, _, err = agentrl(capsys, "train", "a.yaml", *changes)
    assert code == 2
    assert "policy.path is ./nowhere, but there is no such folder" in err
    assert "name a folder with config.json" in err


def test_a_method_in_the_place_of_its_section_is_told_where_it_goes(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    (here / "a.yaml").write_text(f"{RUN}env: {{id: reasoning/ChainSum-v0}}\n")
    code, _, err = agentrl(capsys, "train", "a.yaml", "learn.advantage=rloo")
    assert code == 2
    assert "learn.advantage is rloo, expected a section; write learn.advantage.name=rloo, or" in err


def test_the_first_error_of_a_group_keeps_its_cause() -> None:
    cause = KeyError("x")
    inner = EnvError("inner")
    inner.__cause__ = cause
    with pytest.raises(EnvError) as raised, first_error():
        raise ExceptionGroup("outer", [ExceptionGroup("nested", [inner]), ValueError("later")])
    assert raised.value is inner
    assert inner.__cause__ is cause


def test_the_place_is_the_innermost_line() -> None:
    def inner() -> None:
        raise ValueError

    def outer() -> None:
        inner()

    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the place is what counts
        outer()
    assert error_place(raised.value).endswith(", in inner")


def test_an_error_of_ours_alone_has_no_place() -> None:
    assert error_place(ValueError("never raised")) == ""
