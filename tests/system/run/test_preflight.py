"""What a machine lacks is said before anything heavy is imported, and in one sentence."""

import contextlib
import errno
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agentrl import make, rewards
from agentrl.authoring.tool_env import ToolEnv
from agentrl.config.load import load_config
from agentrl.config.run import RunConfig
from agentrl.env import say
from agentrl.errors import ConfigError
from agentrl.evaluation.endpoint import HttpEndpoint
from agentrl.registry import registry, spec
from agentrl.run import build, preflight
from agentrl.run.evaluate import evaluate
from agentrl.run.preflight import (
    check_folder,
    check_machine,
    check_policy,
    check_training,
    find_cuda_fault,
)
from agentrl.run.train import train
from agentrl.runtime.imports import import_callable
from agentrl.runtime.reachability import CONNECT_S, endpoint_faults, place_faults, unreachable
from agentrl_envs.gui.desktop.launch import PYTHON
from agentrl_envs.gui.tasks.pack import TEMPLATES
from agentrl_envs.gui.tasks.template import DesktopTemplate, Wanted
from agentrl_envs.needs import PROGRAMS_OF
from agentrl_envs.templates import UnfitChoice
from agentrl_tools.python import Python
from tests.support.doubles import doubles

ENDPOINT = {"kind": "endpoint", "endpoint": {"urls": ["http://127.0.0.1:9/v1"], "model": "m"}}


def config_of(env: str = "reasoning/ChainSum-v0", **sections: Any) -> RunConfig:
    return RunConfig.model_validate({"env": {"id": env}, **sections})


@pytest.fixture
def empty_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any program."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_a_gpu_is_missing_without_its_driver_or_a_build_for_it(tmp_path: Path) -> None:
    driver = tmp_path / "nvidiactl"
    assert find_cuda_fault("2.13.0+cu130", (driver,)) == "this machine has no GPU driver"
    driver.touch()
    assert find_cuda_fault("2.13.0+cu130", (driver,)) == ""
    assert find_cuda_fault("2.13.0+cpu", (driver,)) == "torch 2.13.0+cpu is built for the CPU"


def test_a_gpu_says_by_its_driver_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's program is a script here, with a T4's lines; torch says it is built for CUDA."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'Tesla T4, 7.5, 550.54.15'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(preflight, "find_cuda_fault", lambda version: "")  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(preflight, "read_torch_cuda", lambda: "12.8")
    config = config_of(policy={"dtype": "bfloat16"}, learn={"precision": "bfloat16"})
    with pytest.raises(ConfigError) as refused:
        check_training(config)
    said = str(refused.value)
    assert "policy.dtype is bfloat16, but Tesla T4 (compute capability 7.5) does not" in said
    assert "learn.precision is bfloat16, but Tesla T4" in said
    check_training(config_of(policy={"dtype": "bfloat16", "device": "cpu"}))
    monkeypatch.setattr(preflight, "read_torch_cuda", lambda: "13.0")
    with pytest.raises(ConfigError, match=r"device is cuda, but torch is built for CUDA 13\.0"):
        check_machine(config_of(policy={"device": "cuda"}))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_everything_that_is_missing_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        check_machine(config_of(policy={"device": "cuda"}, engine={"kind": "vllm"}))
    said = str(refused.value)
    assert said.startswith("policy.device is cuda, but ")
    assert "engine.kind is vllm, but vLLM is not installed here" in said
    with pytest.raises(ConfigError, match=r"engine\.python is .*, which has no vLLM: install it"):
        check_machine(config_of(engine={"kind": "vllm", "python": sys.executable}))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_first_run_is_refused_before_torch_is_imported(root: Path) -> None:
    program = (
        "import sys\n"
        "from agentrl.config.load import load_config\n"
        "from agentrl.run.preflight import check_machine\n"
        "from agentrl.errors import ConfigError\n"
        "try:\n"
        "    check_machine(load_config('configs/quickstart.yaml', {'policy.device': 'cuda'}))\n"
        "except ConfigError as error:\n"
        "    print('torch' in sys.modules, error)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=60
    )
    assert ran.stdout.startswith("False policy.device is cuda"), ran.stderr


# --- what an environment needs --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("miniwob/ClickTest-v0", "browsers run inside bubblewrap, but bwrap is not installed"),
        ("shop/Mix-v0", "browsers run inside bubblewrap, but bwrap is not installed"),
        ("gui/Dialog-v0", "bwrap, Xvfb"),
        ("gui/Dialog-v0", r"the tasks use programs that are not installed \(yad\)"),
    ],
)
def test_programs_that_an_environment_needs(env: str, said: str, empty_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        check_machine(config_of(env))
    check_machine(config_of("reasoning/ChainSum-v0"))


@pytest.mark.namespaces
@pytest.mark.parametrize("env", ["code/ChainSum-v0", "programs/Mix-v0"])
def test_a_sandbox_needs_no_program(env: str, empty_path: Path) -> None:
    check_machine(config_of(env))
    config = config_of(env, sandbox={"backend": "bubblewrap"})
    with pytest.raises(ConfigError, match="'bubblewrap', but there is no bwrap on PATH"):
        check_machine(config)


def test_a_browser_of_ones_own_that_is_not_there() -> None:
    kwargs = {"browser": {"executable": "/opt/no-browser", "isolation": "none"}}
    config = config_of().model_copy(
        update={"env": config_of("miniwob/ClickTest-v0").env.model_copy(update={"kwargs": kwargs})}
    )
    with pytest.raises(
        ConfigError, match="there is no program '/opt/no-browser' to use as the browse"
    ):
        check_machine(config)


def test_a_machine_that_refuses_namespaces(empty_path: Path) -> None:
    bubblewrap = empty_path / "bwrap"
    bubblewrap.write_text(
        "#!/bin/sh\necho bwrap: No permissions to create a namespace >&2\nexit 1\n"
    )
    bubblewrap.chmod(0o755)
    config = config_of("code/ChainSum-v0", sandbox={"backend": "bubblewrap"})
    with pytest.raises(ConfigError, match=r"bubblewrap could not build .*: bwrap: No permissions"):
        check_machine(config)


@pytest.mark.parametrize(
    ("sandbox", "said"),
    [
        ({"backend": "process"}, "set sandbox.allow_unisolated: true"),
        ({"packages": "/no/folder"}, "sandbox.packages is '/no/folder', which is not a directory"),
    ],
)
def test_a_sandbox_that_cannot_be_opened(sandbox: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_machine(config_of("code/ChainSum-v0", sandbox=sandbox))


def test_a_place_of_leases_that_others_could_write_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setenv("AGENTRL_STATE", str(tmp_path))
    with pytest.raises(ConfigError, match="or set AGENTRL_STATE to another directory"):
        check_machine(config_of("code/ChainSum-v0"))


def test_a_docker_engine_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("docker")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    with pytest.raises(ConfigError, match="no Docker engine answers at unix://"):
        check_machine(config_of("code/ChainSum-v0", sandbox={"backend": "docker"}))


class OwnEnv(ToolEnv):
    """An environment with no registration, which the tools of a sandbox speak for."""

    def __init__(self) -> None:
        super().__init__(
            tasks=doubles,
            tools=(Python,),
            reward=rewards.exact_answer,
            gold=lambda task, _: say(str(task.answer)),
        )


def test_tools_of_an_own_environment_say_what_they_need(empty_path: Path) -> None:
    config = config_of(f"{__name__}:OwnEnv", sandbox={"backend": "bubblewrap"})
    with pytest.raises(ConfigError, match="there is no bwrap on PATH"):
        evaluate(config, player="gold")
    assert isinstance(build.build_env_factory(config, plays=False)(), OwnEnv)


@pytest.mark.parametrize("env", ["code/ChainSum-v0", "programs/ListPipeline-v0"])
def test_what_is_registered_as_needed_is_what_the_tools_need(env: str) -> None:
    """Otherwise it is only said once the environment is imported and made."""
    made = make(env)
    assert isinstance(made, ToolEnv)
    assert made.needs
    assert {*made.needs} <= {*spec(env).needs}


def test_every_need_that_is_registered_is_a_function() -> None:
    every = {need for one in registry.values() for need in one.needs}
    assert len(every) >= 8
    assert all(map(import_callable, every))


def wanted_by(template: DesktopTemplate, seed: int) -> Wanted | None:
    try:
        return template.make(Random(seed))
    except UnfitChoice:
        return None


def test_the_programs_of_every_kind_of_desktop_task() -> None:
    for template in TEMPLATES:
        wanted = next(filter(None, (wanted_by(template, seed) for seed in range(20))))
        commands = {command[0] for command in template.programs(wanted)}
        assert commands <= {*PROGRAMS_OF[template.program], PYTHON, "sh"}, template.name


@pytest.mark.parametrize(
    ("module", "sections", "said"),
    [
        ("reasoning_gym", {}, r"ChainSum-v0 needs reasoning_gym, .*-gym\[reasoning\]'"),
        ("pycosat", {"env": "reasoning/ZebraPuzzles-v0"}, "'zebra_puzzles' needs pycosat, which"),
        ("miniwob", {"env": "miniwob/ClickTest-v0"}, r"needs miniwob, .*-gym\[web\]'"),
        ("playwright", {"env": "miniwob/ClickTest-v0"}, r"needs playwright, .*-gym\[web\]'"),
        ("bm25s", {"env": "retrieval/Wiki-v0"}, r"needs bm25s, .*-gym\[web\]'"),
        ("PIL", {"env": "visual/SeeButton-v0"}, r"needs PIL, .*-gym\[gui\]'"),
        ("peft", {"learn": {"lora": {}}}, r"learn.lora needs peft, .*-gym\[train\]'"),
        ("tensorboard", {"metrics": {"tensorboard": True}}, r"needs tensorboard, .*\[sinks\]'"),
        ("wandb", {"metrics": {"wandb": {}}}, r"metrics.wandb needs wandb, .*-gym\[sinks\]'"),
        ("mlflow", {"metrics": {"mlflow": {}}}, r"metrics.mlflow needs mlflow, .*\[sinks\]'"),
        ("opentelemetry", {"metrics": {"opentelemetry": True}}, r"install 'agentrl-gym\[sinks\]'"),
        ("ray", {"cluster": {"kind": "ray"}}, r"cluster.kind: ray needs ray, .*-gym\[ray\]'"),
        ("transformers", {}, r"a policy needs transformers, .*-gym\[train\]'"),
    ],
)
def test_packages_that_a_config_needs(
    module: str, sections: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=said):
        check_training(config_of(**sections))


@pytest.mark.parametrize(
    ("custom", "said"),
    [
        ({"function": "no_such:one"}, "learn.advantage: function 'no_such:one' cannot be imported"),
        (
            {"function": "textwrap:dedent", "arguments": {"txt": 1}},
            "'txt'; did you mean 'text'?",
        ),
        ({"function": "json:loads", "arguments": {"x": 1}}, ""),
        ({"function": "builtins:min", "arguments": {"x": 1}}, ""),
    ],
)
def test_functions_of_ones_own(custom: dict[str, Any], said: str) -> None:
    config = config_of(learn={"advantage": {"name": "custom", **custom}})
    if said:
        with pytest.raises(ConfigError, match=re.escape(said)):
            check_training(config)
    else:
        check_training(config)


def test_options_that_vllm_does_not_know(tmp_path: Path) -> None:
    """The interpreter is this one behind a script; what it finds is laid out as vLLM is."""
    (tmp_path / "vllm" / "engine").mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").write_text("raise RuntimeError('it was imported')")
    arguments = "class EngineArgs:\n    tensor_parallel_size: int = 1\n"
    (tmp_path / "vllm" / "engine" / "arg_utils.py").write_text(arguments)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)

    def check(**options: int) -> None:
        vllm = {"options": options}
        check_machine(config_of(engine={"kind": "vllm", "python": str(python), "vllm": vllm}))

    check(tensor_parallel_size=2)
    with pytest.raises(ConfigError) as refused:
        check(tensor_parallel_sise=2)
    assert "engine.vllm.options.tensor_parallel_sise is no argument of vLLM" in str(refused.value)
    assert str(refused.value).endswith("remove it, or use tensor_parallel_size")


def test_files_and_programs_that_an_engine_needs(tmp_path: Path) -> None:
    engine = {"kind": "vllm", "processes": 1, "python": str(tmp_path / "python")}
    with pytest.raises(ConfigError, match=r"engine\.python is .*python, but there is no such prog"):
        check_machine(config_of(engine=engine))
    with pytest.raises(ConfigError, match=r"engine\.key_file is .*key, but there is no such file"):
        check_machine(config_of(engine={"key_file": str(tmp_path / "key")}))


def test_an_agent_program_that_is_not_there() -> None:
    kwargs = {"tasks": "a:b", "score": "a:c", "command": ["no-such-program", "{prompt}"]}
    config = RunConfig.model_validate({"env": {"id": "blackbox/Program-v0", "kwargs": kwargs}})
    with pytest.raises(
        ConfigError, match=r"command \(of env\.kwargs\) starts with 'no-such-program'"
    ):
        check_machine(config)


def test_a_file_of_an_agent_program_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutants: the word is looked for as it is; words are not looked at."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").touch()
    (tmp_path / "agent").touch(0o700)

    def check(*command: str) -> None:
        kwargs = {"tasks": "a:b", "score": "a:c", "command": [*command, "{prompt}"]}
        check_machine(
            RunConfig.model_validate({"env": {"id": "blackbox/Program-v0", "kwargs": kwargs}})
        )

    check("python3", "{here}/agent.py")
    check("{here}/agent")
    with pytest.raises(ConfigError, match=r"starts with '/.*/other', but there is no such program"):
        check("{here}/other")
    with pytest.raises(
        ConfigError, match=r"has '\{here\}/other.py', but there is no /.*/other\.py: start agentrl"
    ):
        check("python3", "{here}/other.py")


# --- servers that others start --------------------------------------------------------------------


def test_a_server_that_is_not_there_yet_is_told_and_waited_for() -> None:
    config, told = config_of(engine=ENDPOINT), list[str]()
    check_machine(config, told.append)
    (said,) = told
    assert said.startswith("engine.endpoint.urls names http://127.0.0.1:9/v1, which cannot be")
    assert said.endswith("; the run waits up to 600 s for it (engine.start_s)")
    with pytest.raises(ConfigError, match=r"cannot be reached .*: start the server there"):
        check_machine(config)
    engine = {"addresses": ["127.0.0.1:9"], "key_file": __file__}
    with pytest.raises(ConfigError, match=r"engine\.addresses names 127.0.0.1:9, which cannot be"):
        check_machine(config_of(engine=engine))


def test_a_ray_cluster_that_is_not_there() -> None:
    config = config_of(cluster={"kind": "ray", "address": "127.0.0.1:9"})
    with pytest.raises(ConfigError, match=r"no Ray cluster answers at cluster\.address = '127\."):
        check_machine(config)


@pytest.fixture
def locked_server() -> Generator[str]:
    """The URL of a server that wants the key `right`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.headers["Authorization"] == "Bearer right" else 401)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def test_a_key_that_is_missing_or_wrong(locked_server: str) -> None:
    def found(**environment: str) -> str:
        fault = endpoint_faults([locked_server], "KEY", environment).get(locked_server)
        assert fault is None or not fault.may_pass
        return "" if fault is None else fault.why

    assert found() == "requires a key (401), but the variable KEY is not set"
    assert found(KEY="wrong") == "requires a key (401), but the variable KEY is refused"
    assert not found(KEY="right")


@pytest.mark.parametrize("answer", [b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000])
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_server_that_answers_no_http_is_left_to_the_one_that_asks(answer: bytes) -> None:
    """What breaks in a thread of the look is a traceback on stderr and a warning here."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):  # the knock, the question
                connection, _ = server.accept()
                with connection, contextlib.suppress(OSError):
                    connection.sendall(answer)
                    connection.recv(2**16)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        assert endpoint_faults([url], "KEY", {}) == {}
        thread.join(10)
        assert not thread.is_alive()


def test_a_url_that_is_none_is_told() -> None:
    faults = endpoint_faults(["http://[::1"], "KEY", {})
    assert faults["http://[::1"].why.startswith("is not the URL of a server")
    assert not faults["http://[::1"].may_pass


def test_who_does_not_answer_is_waited_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking a name up has no deadline of its own."""
    over = threading.Event()

    def hang(place: object, timeout_s: float) -> None:
        del place, timeout_s
        over.wait(60)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", hang)
    begun = time.monotonic()
    faults = place_faults(["nowhere:1", "nowhere:2"])
    took = time.monotonic() - begun
    over.set()
    assert [*faults] == ["nowhere:1", "nowhere:2"]
    assert faults["nowhere:1"].why == "cannot be reached (no answer within 1.1 s)"
    assert CONNECT_S <= took < 2 * CONNECT_S


def test_a_server_that_listens_and_is_busy_has_no_fault() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        url = f"http://127.0.0.1:{busy.getsockname()[1]}/v1"
        assert endpoint_faults([url], "KEY", {}) == {}


# --- where a run is kept --------------------------------------------------------------------------


def test_a_folder_that_cannot_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not check_folder(tmp_path / "runs" / "a")
    assert "is full: " in check_folder(tmp_path / "runs", least_free_bytes=2**60)
    file = tmp_path / "file"
    file.touch()
    assert check_folder(file / "runs") == f"{file} is a file"
    config = config_of(run={"folder": str(file)})
    with pytest.raises(ConfigError, match=r"run\.folder is .*file is a file: choose a run\.folder"):
        check_training(config)
    check_machine(config)
    read_only = SimpleNamespace(f_flag=os.ST_RDONLY, f_bavail=2**20, f_frsize=2**12)
    monkeypatch.setattr(os, "statvfs", {tmp_path: read_only}.get)
    assert check_folder(tmp_path) == f"{tmp_path} is on a read-only file system"


# --- how soon it is said --------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["doctor", "train"])
def test_the_sentence_comes_before_anything_heavy(
    command: str, root: Path, empty_path: Path, tmp_path: Path
) -> None:
    program = (
        "import sys\n"
        "from agentrl.cli import main\n"
        f"sys.argv = ['agentrl', '{command}', {str(root / 'configs' / 'quickstart.yaml')!r}, "
        "'sandbox.backend=bubblewrap']\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    heavy = 'agentrl.run.train torch transformers reasoning_gym sympy docker'.split()\n"
        "    print('imported:', sorted({*heavy} & {*sys.modules}))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 2, ran.stderr
    assert "there is no bwrap on PATH" in ran.stderr
    assert ran.stdout.strip() == "imported: []"
    assert ran.stderr.startswith("code/Mix-v0, ") == (command == "train")
    assert not (tmp_path / "runs").exists()


def test_adapters_that_do_not_fit_are_told_before_a_folder_is_made(
    root: Path, tmp_path: Path
) -> None:
    changes = {"learn.lora": {"targets": ["q_proj", "vproj"]}, "run.folder": str(tmp_path / "runs")}
    with pytest.raises(ConfigError, match=r"learn\.lora\.targets names vproj, but Qwen3ForCausal"):
        train(root / "configs" / "quickstart.yaml", changes)
    assert not (tmp_path / "runs").exists()


def test_a_hub_that_cannot_be_reached_is_told_at_once(tmp_path: Path) -> None:
    away = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    said = check_policy("some/model", away)
    assert said.startswith("there is no such folder, and the Hugging Face hub cannot be reached")
    (tmp_path / "hub" / "models--some--model").mkdir(parents=True)
    assert not check_policy("some/model", away)


def test_an_endpoint_where_nobody_listens_is_told_at_once(root: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        with pytest.raises(ConfigError, match=r"cannot be reached .*start the server there"):
            evaluate(
                load_config(root / "configs" / "quickstart.yaml"),
                endpoint=HttpEndpoint(url=url, model="m"),
            )
        free.listen()
        assert not unreachable(url, {})


def test_the_folder_of_a_run_is_told_from_that_of_its_policies(tmp_path: Path) -> None:
    for name in ("policy", "checkpoints/step-000004", "checkpoints/step-000012"):
        (tmp_path / name).mkdir(parents=True)
        for file in ("config.json", "tokenizer.json"):
            (tmp_path / name / file).write_text("{}")
    last = tmp_path / "checkpoints" / "step-000012"
    said = "it is the folder of a run, not of a model: set policy.path to "
    assert check_policy(str(tmp_path)) == f"{said}{tmp_path / 'policy'} or {last}"
    assert check_policy(str(last.parent)) == f"{said}{last}"
    assert not check_policy(str(last))


@pytest.mark.parametrize(
    ("files", "path", "said"),
    [
        (["model/x"], "model", "it has no config.json"),
        (["model/config.yaml"], "model", "it is the folder of a run that has no policy yet; "),
        (["model/adapter_config.json"], "model", "it holds adapters alone; "),
        (["model/config.json", "model/adapter_config.json"], "model", "it holds a LoRA adapter ("),
        (["model/config.json"], "model/config.json", "it is a file; give the folder that "),
        (["model/config.json"], "model", "it has no tokenizer: copy that of the model into it"),
        ([], "", "that names nothing"),
    ],
)
def test_a_path_that_holds_no_model_is_told_at_once(
    files: list[str], path: str, said: str, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert check_policy(str(tmp_path / path) if path else "").startswith(said)


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt", "spiece.model", "tekken.json"])
def test_a_folder_with_any_tokenizer_may_be_a_model(name: str, tmp_path: Path) -> None:
    for file in ("config.json", name):
        (tmp_path / file).write_text("{}")
    assert not check_policy(str(tmp_path))


def test_a_clone_without_its_large_files_is_told_the_command(tmp_path: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 268435456\n"
    for name, text in (
        ("config.json", "{}"),
        ("tokenizer.json", "{}"),
        ("model.safetensors", pointer),
    ):
        (tmp_path / name).write_text(text)
    told = "its model.safetensors is a pointer of Git LFS: run git lfs pull in the folder"
    assert check_policy(str(tmp_path)) == told


def test_a_link_to_nothing_and_a_folder_one_may_not_read_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to("gone")
    assert check_policy(str(tmp_path / "link")) == "it is a link to gone, which does not exist"

    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    assert check_policy(str(tmp_path)) == "it cannot be read (Permission denied)"


def test_a_folder_that_is_missing_is_told_with_its_neighbours(tmp_path: Path, root: Path) -> None:
    for name in ("qwen-small", "qwen-large", "other"):
        (tmp_path / "models" / name).mkdir(parents=True)
    said = check_policy(str(tmp_path / "models" / "qwen-smal"))
    assert said.startswith("there is no such folder; similar folders are qwen-small")
    config = load_config(
        root / "configs" / "quickstart.yaml",
        {"policy.make": None, "policy.path": "./models/nope"},
    )
    with pytest.raises(ConfigError, match=r"policy\.path is \./models/nope, but there is no such"):
        check_machine(config)
