"""The command line: what each command shows, how errors reach the user, what it costs to start.

Mutants seen caught: a traceback for a ConfigError; exit code 1; the working folder not on the
import path; torch imported for --help; markup in a message interpreted; Ctrl-C
caught once all is imported; a stream that a tool can close; completion that imports numpy; a family
of environments that is not folded.
"""

import json
import os
import signal
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from agentrl.cli.app import main
from agentrl.cli.eval import newest_checkpoint
from agentrl.cli.train import show
from agentrl.run.train import TrainingResult
from agentrl.runtime.doctor import ProbedPart, examine
from tests.support.commands import agentrl

MINIMAL = "env: {id: demo/Multiply-v0}\n"


def test_an_error_is_one_message_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(f"{MINIMAL}rollout: {{grup_size: 1}}\n")
    for command in ("train", "warmstart", "eval"):
        code, out, err = agentrl(capsys, command, "a.yaml")
        assert (code, out) == (2, "")
        assert err.startswith("error: a.yaml:2: rollout.grup_size is not a key; did you mean roll")
        assert "Traceback" not in err
    code, _, err = agentrl(capsys, "train", "b.yaml")
    assert (code, err) == (
        2,
        "error: b.yaml: this config file does not exist; YAML files in .: a.yaml\n",
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.yaml"]


def test_an_unknown_env_names_the_nearest_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import agentrl_envs

    agentrl_envs.register_envs()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text("env: {id: code/ChainSun-v0}\n")
    code, _, err = agentrl(capsys, "train", "a.yaml")
    assert code == 2
    assert "'code/ChainSun-v0'" in err
    assert "unknown environment" in err
    assert "code/ChainSum-v0" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.yaml"]


def test_debug_shows_where_an_error_was_raised() -> None:
    command = [sys.executable, "-m", "agentrl.cli", "config", "explain", "nope"]
    for arguments, shown in ((command, False), ([*command, "--debug"], True)):
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
        assert ("Traceback" in done.stderr) is shown
        assert "nope is not a key" in done.stderr


def test_a_message_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = agentrl(capsys, "config", "explain", "[red]x[/red]")
    assert code == 2
    assert err.startswith("error: [red]x[/red] is not a key")


@pytest.mark.parametrize(
    "command",
    [[], ["init"], ["train"], ["eval"], ["envs"], ["warmstart"], ["check-env"], ["check-template"],
     ["doctor"], ["config"], ["config", "explain"], ["config", "show"], ["methods"], ["branches"],
     ["simulate"], ["trace"], ["gc"], ["record"], ["reverify"]],
)  # fmt: skip
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    code, out, _ = agentrl(capsys, *command, "--help")
    assert code == 0
    assert f"Usage: {' '.join(['agentrl', *command])} " in out


def test_help_is_light(root: Path) -> None:
    heavy = [
        "torch",
        "transformers",
        "gymnasium",
        "pydantic",
        "numpy",
        "tensorboard",
        "rich",
        "yaml",
    ]
    code = (
        "import sys; sys.argv = ['agentrl', '--help']\n"
        "from agentrl.cli import main\n"
        "try: main()\n"
        f"except SystemExit: sys.exit(repr(sorted({set(heavy)!r} & sys.modules.keys())))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60
    )
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("module", "program", "code"),
    [
        ("agentrl.message", "bin/agentrl", 130),
        ("agentrl.cli.view", "bin/agentrl", 130),
        ("agentrl.message", "-m", 130),
        ("agentrl.message", "train.py", -signal.SIGINT),
    ],
)
def test_ctrl_c_while_it_is_imported_ends_silently(module: str, program: str, code: int) -> None:
    """A script of somebody's own is told by an exception, as Python does."""
    source = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job ignores it
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        f"sys.argv = [{program!r}, 'envs']\n"
        "from agentrl.cli import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert ("KeyboardInterrupt" in done.stderr) is (code != 130)
    assert code != 130 or not done.stderr


@pytest.mark.parametrize(("daemon", "ending"), [(False, "raise SystemExit(3)"), (True, "")])
def test_a_thread_that_is_left_running_does_not_keep_the_process(daemon: bool, ending: str) -> None:
    source = (
        "import sys, threading, time\n"
        "from agentrl.cli import app, main, stray_threads\n"
        "stray_threads.WAIT_S = 0.5\n"
        "def leave():\n"
        "    for _ in range(2):\n"
        f"        threading.Thread(target=time.sleep, args=(60,), daemon={daemon}).start()\n"
        "    print('done')\n"
        f"    {ending}\n"
        "app.main = leave\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (0 if daemon else 3, "done\n")
    told = "2 threads were left running; end it in the environment's close, or make it a daemon\n"
    assert done.stderr == ("" if daemon else told)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("agentrl check-env code/ChainS", ["code/ChainSum-v0"]),
        ("agentrl envs retr", ["retrieval"]),
        ("agentrl envs retrieval/W", ["retrieval/Wiki-v0"]),
        ("agentrl imag", ["image"]),
        ("agentrl train --res", ["--resume"]),
        ("agentrl train configs/quick", []),  # the shell itself completes files then
    ],
)
def test_the_shell_is_told_how_a_line_may_go_on(words: str, offered: list[str]) -> None:
    heavy = ["torch", "transformers", "gymnasium", "numpy", "rich"]
    code = (
        "import atexit, sys; sys.argv = ['agentrl']\n"
        f"atexit.register(lambda: sys.stderr.write(repr({set(heavy)!r} & sys.modules.keys())))\n"
        "from agentrl.cli import main\n"
        "main()\n"
    )
    asked = {"_AGENTRL_COMPLETE": "complete_bash", "COMP_WORDS": words}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **asked, "COMP_CWORD": str(len(words.split()) - 1)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == offered
    assert done.stderr == "set()"


CLOSING = """
import sys
from agentrl import register_tool_env, rewards, tool
from tests.support.doubles import doubles, gold

@tool
def double(number: int) -> int:
    "Return twice the number."
    sys.stdout.close()
    sys.stderr.close()
    return 2 * number

register_tool_env("test/Closing-v0", tools=[double], tasks=doubles, gold=gold,
                  reward=rewards.exact_answer)
"""


def test_a_tool_that_closes_stdout_costs_no_report(root: Path, tmp_path: Path) -> None:
    (tmp_path / "closing_env.py").write_text(CLOSING)
    (tmp_path / "a.yaml").write_text('env: {id: "closing_env:test/Closing-v0"}\n')
    command = [sys.executable, "-m", "agentrl", "eval", "a.yaml", "evaluate.tasks=2"]
    done = subprocess.run(
        [*command, "--player", "gold"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert "pass@1" in done.stdout


def test_config_explain_and_show(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, out, _ = agentrl(capsys, "config", "explain", "run.steps")
    assert out.splitlines()[0] == "run.steps"
    _, out, _ = agentrl(capsys, "config", "explain", "--markdown")
    assert out.startswith("### `run`\n")
    (tmp_path / "a.yaml").write_text(MINIMAL)
    code, out, _ = agentrl(capsys, "config", "show", str(tmp_path / "a.yaml"), "run.steps=7")
    assert code == 0
    assert "\n  steps: 7\n" in out
    (tmp_path / "b.yaml").write_text(out)
    assert agentrl(capsys, "config", "show", str(tmp_path / "b.yaml"))[1] == out


def test_envs_lists_and_searches(capsys: pytest.CaptureFixture[str]) -> None:
    import agentrl_envs

    agentrl_envs.register_envs()
    code, out, _ = agentrl(capsys, "envs", "--search", "chainsum")
    assert code == 0
    assert "code/ChainSum-v0" in out
    code, out, _ = agentrl(capsys, "envs", "--search", "no such thing")
    assert code == 1
    assert "matches 'no such thing'" in out


def test_envs_are_folded_by_family_and_told_on_request(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, out, _ = agentrl(capsys, "envs")
    families = {line.split()[0]: line for line in out.splitlines() if line}
    assert len(out.splitlines()) < 40
    assert "such as Ab-v0: reasoning-gym's ab" in families["reasoning"]
    assert "your questions about your texts" in families["retrieval"]
    assert "rows of a file" in families["dataset:..."]
    _, out, _ = agentrl(capsys, "envs", "retrieval")
    assert [line.split()[0] for line in out.splitlines()] == [
        "id",
        "retrieval/Corpus-v0",
        "retrieval/Wiki-v0",
    ]
    _, out, _ = agentrl(capsys, "envs", "code/Ab-v0")
    assert "entry point          agentrl_envs.code:CodeEnv" in out.splitlines()
    assert "env.kwargs.families  ab" in out.splitlines()
    code, out, err = agentrl(capsys, "envs", "retreival")
    assert (code, out) == (2, "")
    assert "did you mean retrieval?" in err


def test_check_env_plays_the_environment(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentrl.cli.init import make_project

    monkeypatch.chdir(make_project("shop_one", tmp_path))
    code, out, err = agentrl(capsys, "check-env", "shop_one_env:shop_one/Multiply-v0")
    assert (code, err) == (0, "")
    assert "ok  gold scores\n" in out
    hasty = ("--max-turns", "1", "--timeout-s", "30", "--grace-s", "9")
    code, _, err = agentrl(capsys, "check-env", "shop_one/Multiply-v0", *hasty)
    assert code == 2
    assert "gold scores: the gold player earned 0 on task" in err, "one action is not enough"
    for kwargs, says in (
        ("{", "broken JSON"),
        ("[" * 5000 + "]" * 5000, "the JSON is nested more than 64 deep"),
        ("[]", "expected a JSON object"),
        ('{"x": 1}', "x"),
    ):
        code, _, err = agentrl(capsys, "check-env", "shop_one/Multiply-v0", "--kwargs", kwargs)
        assert code == 2
        assert says in err


def test_check_template_needs_a_tokenizer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, _, err = agentrl(capsys, "check-template", str(tmp_path))
    assert code == 2
    assert "has no tokenizer that can be loaded" in err
    assert "give a folder that contains tokenizer.json" in err


def test_check_template_asks_no_hub_that_cannot_be_reached(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    code, _, err = agentrl(capsys, "check-template", "nope")
    assert code == 2
    assert "'nope' has no tokenizer that can be loaded (there is no such folder, and the Hu" in err
    assert "give a folder that contains tokenizer.json" in err


def test_eval_of_a_run_without_a_checkpoint(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text(MINIMAL)
    code, _, err = agentrl(capsys, "eval", str(tmp_path))
    assert code == 2
    assert f"{tmp_path} has no checkpoint to evaluate" in err
    for step in (9, 10):
        (tmp_path / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
    assert newest_checkpoint(tmp_path).name == "step-000010"


def test_the_result_of_a_run_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"pass@1": 0.25, "ci90": [0.2, 0.31], "n": 300}
    lost = {"pass@1": None, "ci90": None, "n": 0}
    show(
        TrainingResult(
            folder=Path("runs/x"), steps=5, before=found, after=lost, seconds={"train": 1.26}
        )
    )
    out = capsys.readouterr().out
    assert "held-out tasks, 5 steps" in out
    assert "before  0.250    0.200 .. 0.310           300" in out.splitlines()
    assert "all trajectories failed" in out
    assert "train 1.3 s" in out
    assert "view runs/x" in out
    assert "reward" not in out


def test_the_result_of_a_run_has_its_curve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewards = [0.25, None, *(0.5 for _ in range(95)), 1.0]
    lines = (json.dumps({"step": step, "reward/mean": r}) for step, r in enumerate(rewards))
    (tmp_path / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    found = {"pass@1": 0.25, "ci90": [0.2, 0.31], "n": 300}
    show(TrainingResult(folder=tmp_path, steps=98, before=found, after=found, seconds={}))
    line = next(line for line in capsys.readouterr().out.splitlines() if "reward" in line)
    assert line == f"reward 0.38 ▁{'▄' * 46}█ 0.67", "48 bars, of two or three steps each"


def test_the_doctor_names_what_is_missing_and_how_to_get_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parts = {part.name: part for _, group in examine() for part in group}
    assert parts["python"].live
    assert parts["torch"].live
    for part in parts.values():
        assert part.detail
        assert part.live or part.get_it
    code, out, _ = agentrl(capsys, "doctor")
    assert code == 0
    for name in parts:
        assert f" {name} " in out


@pytest.mark.parametrize(
    ("group", "names"),
    [
        ("isolation", {"bubblewrap", "docker engine"}),
        ("browser", {"chromium", "isolation", "memory bound"}),
    ],
)
def test_what_others_report_are_parts_for_the_doctor(
    root: Path, group: str, names: set[str]
) -> None:
    """The entry point as it is declared; an installation made before it does not know it."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["agentrl.runtime.doctor"][group].partition(":")
    layers = getattr(import_module(module), name)()
    assert names <= {layer.name for layer in layers}
    for layer in layers:
        ProbedPart(layer.name, layer.live, layer.detail, layer.get_it)
        assert layer.detail
        assert layer.get_it


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("program", ["/usr/bin/pytest", ".venv/bin/agentrl"])
def test_a_stopped_run_names_the_command_that_goes_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    program: str,
    begun: bool,
) -> None:
    def stop(*_: object, **__: object) -> None:
        if begun:
            Path("runs/second").mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr("agentrl.run.train.train", stop)
    monkeypatch.setattr(sys, "argv", [program, "train", "a run.yaml", "run.name=second"])
    monkeypatch.chdir(tmp_path)
    Path("a run.yaml").write_text("env: {id: reasoning/ChainSum-v0}\npolicy: {make: {}}\n")
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    named = program if program.endswith("agentrl") else "agentrl"
    command = f"{named} train 'a run.yaml' run.name=second --resume"
    said = capsys.readouterr().err
    assert (f"stopped; to resume runs/second, run {command}\n" in said) is begun
    assert ("nothing to resume" in said) is not begun
