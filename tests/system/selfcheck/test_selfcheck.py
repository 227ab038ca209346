"""Self-checks whose checks crash, hang and lie: the others go on, and a report is left.

Mutants seen caught: a check is ended without its children; a process without a verdict has passed;
the report is written at the end only; a check that was given less than its time has failed; a pipe
that a child holds open is waited for; a folder is left by a self-check that is killed. Of the fork
server: it asks CUDA's driver; its variable stays; it imports nothing; it runs a check itself; it
outlives a runner while it imports; it is not started again; a late order to end is a request; a
fork without the driver goes on; an import longer than the whole time has failed. Of the command:
all skipped is 0; a folder that takes no file.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.errors import ConfigError
from agentrl.runtime.supervisor import find_descendants
from agentrl.selfcheck import runner
from agentrl.selfcheck.catalogue import CHECKS, DeviceCheck
from agentrl.selfcheck.check_processes import CheckForkServer
from agentrl.selfcheck.report import CheckResult
from agentrl.selfcheck.runner import choose_device, run_checks, run_process
from tests.support.commands import agentrl

DOUBLES = "tests.support.selfcheck_doubles"
IMPORTING = "tests.support.importing_checks"


def double(name: str, limit_s: float = 60.0) -> DeviceCheck:
    return DeviceCheck(name, f"{DOUBLES}:{name}", limit_s, "")


def run(name: str, limit_s: float = 60.0, words: tuple[str, ...] = ()) -> CheckResult:
    return run_check(double(name, limit_s), words=words)


def run_check(check: DeviceCheck, words: tuple[str, ...] = ()) -> CheckResult:
    with closing(CheckForkServer([check])) as server:
        server.start()
        return run_process(server, check, device="cpu", limit_s=check.limit_s, words=words)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pids: list[int]) -> None:
    until_s = time.monotonic() + 20
    while any(map(is_alive, pids)):
        assert time.monotonic() < until_s, f"{pids} live on"
        time.sleep(0.05)


def test_a_check_that_is_fine_has_passed() -> None:
    found = run("fine")
    assert (found.status, found.reason) == ("passed", "")
    assert found.figures["device"] == "cpu"
    assert found.figures["folder_is_empty"] is True
    assert float(found.figures["peak_host_mib"] or 0) > 1


def test_a_module_that_cannot_be_imported_is_named() -> None:
    check = DeviceCheck("x", "tests.support.no_such_module:check", 60.0, "")
    found = run_check(check)
    assert found.status == "failed"
    assert found.reason.startswith("ConfigError: tests.support.no_such_module:check: there is no")


def test_what_is_missing_is_skipped_with_its_reason() -> None:
    found = run("missing")
    assert (found.status, found.reason) == ("skipped", "it needs a part")


def test_all_faults_are_told_and_nothing_private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFCHECK_TOKEN", "0123456789")
    words = runner.find_private_words(os.environ, ())
    found = run("wrong", words=words)
    assert found.status == "failed"
    assert "a is 2, and at most 1 is allowed; b is nan, and at most 1" in found.reason
    assert found.figures["b"] == "nan"
    assert found.figures["secret"] == "***"
    assert found.figures["place"] == ".../file.txt"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("crash", "ended by SIGSEGV; its last output: a kernel was launched wrong in .../secret"),
        ("run_out_of_memory", "ended by SIGKILL, as it is where memory runs out"),
        ("leave", "ended with exit status 3"),
    ],
)
def test_a_process_without_a_verdict_has_failed(name: str, words: str) -> None:
    found = run(name)
    assert found.status == "failed"
    assert words in found.reason
    assert name != "crash" or found.figures["before"] == 1


def test_one_that_hangs_is_ended_with_its_children() -> None:
    start_s = time.monotonic()
    found = run("hang", limit_s=4.0)
    assert found.status == "failed"
    assert found.reason.startswith("it took longer than 4 s, and was ended")
    assert time.monotonic() - start_s < 30
    wait_until_gone(json.loads(str(found.figures["pids"])))


def test_signals_that_are_refused_do_not_matter() -> None:
    found = run("hang_with_interpreter_held", limit_s=4.0)
    assert (found.status, found.figures["begun"]) == ("failed", True)


def test_a_child_that_is_left_behind_is_ended() -> None:
    found = run("leave_child")
    assert found.status == "passed"
    assert found.seconds < 50
    wait_until_gone(json.loads(str(found.figures["pids"])))


def test_output_blocks_nothing() -> None:
    found = run("fill_output")
    assert found.status == "passed"
    assert len(found.figures) == 11


def test_a_folder_that_cannot_be_removed_is_no_fault() -> None:
    assert run("break_folder").status == "passed"


def test_a_report_is_there_after_each_check(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    reports: list[dict[str, Any]] = []

    def tell(result: CheckResult) -> None:
        reports.append(json.loads(file.read_text()))

    checks = [double("fine"), double("crash"), double("missing")]
    report = run_checks(checks, device="cpu", minutes=3, file=file, tell=tell)
    assert [each["waiting"] for each in reports] == [["crash", "missing"], ["missing"], []]
    assert [each["complete"] for each in reports] == [False, False, True]
    assert [each.status for each in report.results] == ["passed", "failed", "skipped"]
    assert reports[-1] == report.to_json()


def test_a_report_that_cannot_be_written_stops_no_check(tmp_path: Path) -> None:
    folder, told = tmp_path / "reports", list[str]()
    with pytest.raises(ConfigError, match=r"report .*/reports/r\.json cannot be written: No such"):
        run_checks([double("fine")], device="cpu", minutes=3, file=folder / "r.json")
    folder.mkdir()

    def tell(result: CheckResult) -> None:
        told.append(result.name)
        shutil.rmtree(folder, ignore_errors=True)

    checks = [double("fine"), double("missing")]
    with pytest.raises(ConfigError, match="cannot be written"):
        run_checks(checks, device="cpu", minutes=3, file=folder / "r.json", tell=tell)
    assert told == ["fine", "missing"]


def test_a_check_cut_short_by_the_whole_time_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "LEAST_S", 1.0)
    checks = [double("hang", limit_s=100.0), double("fine")]
    report = run_checks(checks, device="cpu", minutes=0.1, file=tmp_path / "r.json")
    cut, late = report.results
    assert (cut.status, late.status) == ("skipped", "skipped")
    assert re.fullmatch(r"the time was up after \d s of it; raise --minutes", cut.reason)
    assert late.reason == "the time was up after 0.1 minutes; raise --minutes"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_self_check_that_ends_leaves_a_report_and_no_process(
    number: signal.Signals, tmp_path: Path
) -> None:
    with self_check(tmp_path, "fine", "hang") as (parent, file):
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"fine\n"
        processes = wait_for_processes(parent.pid, 3)
        parent.send_signal(number)
    report = json.loads(file.read_text())
    assert (report["complete"], report["waiting"]) == (False, ["hang"])
    assert [check["status"] for check in report["checks"]] == ["passed"]
    wait_until_gone(processes)
    assert [*(tmp_path / "scratch").iterdir()] == []


def test_a_killed_self_check_leaves_no_process_that_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    monkeypatch.setenv("SELFCHECK_IMPORT", "hang")
    monkeypatch.setenv("SELFCHECK_MARK", str(mark))
    with self_check(tmp_path, "tell_import", module=IMPORTING) as (parent, _):
        processes = wait_for_processes(parent.pid, 1)
        while not mark.exists():
            time.sleep(0.05)
        parent.kill()
    wait_until_gone(processes)


@contextmanager
def self_check(
    tmp_path: Path, *names: str, module: str = DOUBLES
) -> Generator[tuple[subprocess.Popen[bytes], Path]]:
    """Start a self-check in a process, and wait for its end; yield it with its report."""
    file, scratch = tmp_path / "report.json", tmp_path / "scratch"
    scratch.mkdir()
    code = (
        f"import signal, sys; sys.path[:] = {sys.path!r}\n"
        # A shell without job control has what it starts in the background ignore it.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from pathlib import Path\n"
        "from agentrl.selfcheck.catalogue import DeviceCheck\n"
        "from agentrl.selfcheck.runner import run_checks\n"
        f"checks = [DeviceCheck(n, f'{module}:{{n}}', 600, '') for n in {names!r}]\n"
        f"run_checks(checks, device='cpu', minutes=9, file=Path({str(file)!r}),"
        " tell=lambda result: print(result.name, flush=True))\n"
    )
    environment = {**os.environ, "TMPDIR": str(scratch)}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        yield parent, file


def wait_for_processes(pid: int, count: int) -> list[int]:
    """Return so many processes below one, once all are there."""
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        if len(found := find_descendants(pid)) == count:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{pid} has not {count} processes below it")


def test_modules_are_imported_once_and_checks_run_apart() -> None:
    names = ("tell_import", "change_module", "tell_import")
    checks = [DeviceCheck(name, f"{IMPORTING}:{name}", 60.0, "") for name in names]
    with closing(CheckForkServer(checks)) as server:
        server.start()
        found = [run_process(server, check, device="cpu", limit_s=60.0) for check in checks]
    assert [each.status for each in found] == ["passed"] * 3
    first, _, last = (dict(each.figures) for each in found)
    assert first["importer"] == first["parent"] == last["importer"]
    assert first["pid"] != last["pid"]
    assert (first["value"], last["value"]) == (0, 0)


def test_a_fork_server_that_is_killed_is_started_again(tmp_path: Path) -> None:
    checks = [double("kill_fork_server"), double("fine")]
    report = run_checks(checks, device="cpu", minutes=3, file=tmp_path / "r.json")
    killed, after = report.results
    assert (killed.status, after.status) == ("failed", "passed")
    assert killed.reason.startswith("its process was ended by SIGKILL")
    wait_until_gone(json.loads(str(killed.figures["pids"])))


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ("crash", "ended by SIGSEGV; its last output: no such instruction"),
        ("hang", "it took longer than 2 s, and was ended"),
    ],
)
def test_modules_that_cannot_be_imported_fail_every_check(
    event: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SELFCHECK_IMPORT", event)
    monkeypatch.setattr(runner, "START_S", 2.0)
    checks = [DeviceCheck(name, f"{IMPORTING}:tell_import", 60.0, "") for name in "ab"]
    report = run_checks(checks, device="cpu", minutes=3, file=tmp_path / "r.json")
    assert [each.status for each in report.results] == ["failed", "failed"]
    for each in report.results:
        assert each.reason.startswith("what the checks need could not be imported: ")
        assert words in each.reason


def test_an_import_longer_than_the_whole_time_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SELFCHECK_IMPORT", "hang")
    check = DeviceCheck("x", f"{IMPORTING}:tell_import", 60.0, "")
    report = run_checks([check], device="cpu", minutes=0.1, file=tmp_path / "r.json")
    assert report.results[0].status == "skipped"
    assert report.results[0].reason.startswith("the time was up after 0.1 minutes")


def test_a_module_that_asks_for_a_gpu_leaves_its_driver_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = run_check(DeviceCheck("x", "tests.support.gpu_asking_check:tell", 60.0, ""))
    assert (found.status, found.figures["asked_before"]) == ("passed", 0)
    assert found.figures["asked_now"] == 1, "the variable of the import is there no more"
    assert found.figures["threads"] == 1


def test_a_fork_without_the_driver_is_replaced_by_a_new_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SELFCHECK_LOSE_DRIVER", "1")
    found = run_check(DeviceCheck("x", "tests.support.gpu_asking_check:tell", 60.0, ""))
    assert (found.status, found.figures["program"]) == ("passed", "__main__.py")


def test_an_order_to_end_that_is_late_is_no_request(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "agentrl.selfcheck.fork_server", str(theirs.fileno()), DOUBLES]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with (
        ours,
        (tmp_path / "log").open("w+b") as log,
        subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment) as process,
    ):
        theirs.close()
        ours.settimeout(60)
        assert ours.recv(100) == b"ready"
        ours.send(b"end")
        request = json.dumps([f"{DOUBLES}:leave", "cpu", str(tmp_path), "60"]).encode()
        life, our_life = os.pipe()
        socket.send_fds(ours, [request], [life, log.fileno(), log.fileno()])
        os.close(life)
        assert json.loads(ours.recv(100))["code"] == 3
        os.close(our_life)
        ours.close()
        assert process.wait(20) == 0


def test_the_command_tells_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from agentrl.selfcheck import catalogue

    checks = [double(name) for name in ("fine", "leave", "missing")]
    monkeypatch.setattr(catalogue, "CHECKS", tuple(checks))
    monkeypatch.chdir(tmp_path)
    code, out, _ = agentrl(capsys, "doctor", "--device", "cpu")
    assert code == 1
    lines = [line.split() for line in out.splitlines()]
    assert [line[:2] for line in lines[:2]] == [["passed", "fine"], ["failed", "leave"]]
    assert out.splitlines()[-1] == ("1 passed, 1 failed, 1 skipped on cpu; report: selfcheck.json")
    assert json.loads(Path("selfcheck.json").read_text())["complete"] is True
    code, out, _ = agentrl(
        capsys, "doctor", "--device", "auto", "--only", "fine", "--report", "other.json"
    )
    assert code == 0
    assert out.endswith("report: other.json\n")
    assert [each["name"] for each in json.loads(Path("other.json").read_text())["checks"]] == [
        "fine"
    ]
    code, out, _ = agentrl(capsys, "doctor", "--device", "cpu", "--only", "missing")
    assert (code, out.splitlines()[-1]) == (1, "nothing was checked: every check was skipped")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device", "tpu"], "--device is 'tpu': give cpu, cuda or auto"),
        (["--device", "cuda:1"], "CUDA_VISIBLE_DEVICES"),
        (["--device", "cpu", "--only", "x"], "there is no check 'x'"),
        (["--device", "cpu", "--minutes", "0"], "--minutes is 0; give a number above 0"),
        (["--device", "cpu", "--minutes", "nan"], "--minutes is nan"),
        (["--device", "cpu", "--report", "/nowhere/x.json"], "the folder /nowhere does not exist"),
        (
            ["--device", "cpu", "--report", "/proc/x"],
            "is /proc/x, but the folder /proc takes no new",
        ),
        (["--device", "cpu", "--report", "/dev/null"], "which is a device or a pipe and would be"),
        (["--device", "cpu", "config.yaml"], "without a config, but config.yaml is given"),
        (["--report", "x.json"], "--only and --report belong to --device"),
    ],
)
def test_a_wrong_option_is_told(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = agentrl(capsys, "doctor", *arguments)
    assert code == 2
    assert words in err


def test_a_gpu_that_cannot_be_used_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_none(version: str | None) -> str:
        return ""

    monkeypatch.setattr(runner, "find_cuda_fault", find_none)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "9")
    with pytest.raises(ConfigError, match=r"no GPU that it can use .*DEVICES is '9', and only the"):
        choose_device("cuda")
    chosen, why = choose_device("auto")
    assert chosen == "cpu"
    assert why.startswith("torch finds no GPU that it can use")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    found = [choose_device(name) for name in ("cuda", "auto", "cpu")]
    assert found == [("cuda", ""), ("cuda", ""), ("cpu", "")]


def test_a_driver_that_is_broken_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down() -> bool:
        raise RuntimeError("unknown error")

    monkeypatch.setattr(torch.cuda, "is_available", break_down)
    assert runner.find_gpu_fault(None) == "torch cannot ask the GPU's driver: unknown error"

    def complain() -> bool:
        warnings.warn("the driver is too old", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", complain)
    assert runner.find_gpu_fault(None).endswith("view); torch says: the driver is too old")


REAL = ("weights-shared", "weights-gloo", "weights-nccl", "ranks", "throughput")


@pytest.fixture(scope="module")
def real_checks() -> Generator[tuple[CheckForkServer, dict[str, DeviceCheck]]]:
    """Checks by name, and the process that has imported what all of them need."""
    checks = {check.name: check for check in CHECKS if check.name in REAL}
    with closing(CheckForkServer([*checks.values()])) as server:
        server.start()
        yield server, checks


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_checks_that_start_processes_pass_on_the_cpu(
    real_checks: tuple[CheckForkServer, dict[str, DeviceCheck]], name: str
) -> None:
    server, checks = real_checks
    server.start()  # a check that failed may have ended it
    found = run_process(server, checks[name], device="cpu", limit_s=checks[name].limit_s)
    expected = "skipped" if name == "weights-nccl" else "passed"
    assert found.status == expected, found.reason
