"""The command, environment and start folder of vLLM's server, decided without vLLM.

Mutants seen caught: raw log-probs; chunks of prompts on a CPU; a flag that is false and left out;
a port in place of a socket; variables of the engine in this process; a head that is not added;
devices that are the sum of parallel sizes; an internal module that is imported; a worker in
the core's process on a GPU, with several devices, or with threads bound to cores.
"""

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from agentrl.engine.vllm.launch import (
    VllmServerSettings,
    build_arguments,
    build_environment,
    count_devices,
    find_room,
    to_flags,
)
from agentrl.engine.vllm.server import (
    check_request_fits,
    explain_end,
    find_cause,
    find_refusal,
    untie_folder,
)
from agentrl.errors import ConfigError
from agentrl.policy import GenerateRequest, Sampling
from agentrl.runtime.gpu_placement import place_devices
from tests.support.engine_models import tiny


def settings(**changes: Any) -> VllmServerSettings:
    made: dict[str, Any] = {"model": "folder", **changes}
    return VllmServerSettings(**made)


def arguments(*, cpu: bool = False, **changes: Any) -> list[str]:
    return build_arguments(settings(**changes), model="folder", socket="/run/s", cpu=cpu)


def value_of(flags: list[str], flag: str) -> str:
    return flags[flags.index(flag) + 1]


def test_arguments_golden() -> None:
    options = {
        "tensor_parallel_size": 4,
        "pipeline-parallel-size": 2,
        "data_parallel_size": 2,
        "enable_expert_parallel": True,
        "async_scheduling": False,
        "compilation_config": {"mode": 0},
    }
    assert arguments(options=options) == [
        *("--model", "folder", "--served-model-name", "policy", "--uds", "/run/s"),
        *("--dtype", "auto", "--max-model-len", "2048", "--max-num-seqs", "32"),
        *("--enable-prefix-caching", "--gpu-memory-utilization", "0.45"),
        *("--skip-tokenizer-init", "--logprobs-mode", "processed_logprobs"),
        *("--max-logprobs", "-1", "--generation-config", "vllm"),
        *("--enable-prompt-tokens-details", "--seed", "0"),
        *("--tensor-parallel-size", "4", "--pipeline-parallel-size", "2"),
        *("--data-parallel-size", "2", "--enable-expert-parallel", "--no-async-scheduling"),
        *("--compilation-config", '{"mode": 0}'),
    ]
    assert count_devices(options) == 16


def test_a_cpu_computes_prompts_whole() -> None:
    flags = arguments(cpu=True)
    assert "--no-enable-chunked-prefill" in flags
    assert value_of(flags, "--max-num-batched-tokens") == "2048"
    assert value_of(flags, "--kv-cache-memory-bytes") == str(2**30)
    assert "--enforce-eager" in flags
    assert value_of(arguments(cpu=True, context_tokens=9000), "--max-num-batched-tokens") == "9000"
    with pytest.raises(ConfigError, match=r"prefill_tokens is 24 and engine\.context_tokens is"):
        arguments(cpu=True, prefill_tokens=24)
    assert value_of(arguments(prefill_tokens=24), "--max-num-batched-tokens") == "24"


def test_what_other_keys_ask_for() -> None:
    assert "--enable-scale-out" in arguments(update="keep")
    assert "--enable-sleep-mode" in arguments(sleep_level=1)
    assert "--enable-sleep-mode" not in arguments(sleep_level=1, cpu=True)
    nccl = value_of(arguments(transfer="nccl"), "--weight-transfer-config")
    assert json.loads(nccl) == {"backend": "nccl"}
    lora = arguments(adapter_rank=9)
    assert (value_of(lora, "--max-lora-rank"), value_of(lora, "--max-loras")) == ("16", "2")
    assert (find_room(1), find_room(512)) == (1, 512)
    with pytest.raises(ConfigError, match=r"learn\.lora\.rank is 513"):
        find_room(513)


@pytest.mark.parametrize("name", ["uds", "logprobs-mode", "max_model_len", "port"])
def test_what_follows_from_other_keys_is_no_option(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"engine\.vllm\.options\.{name.replace('-', '_')}"):
        settings(options={name: 1})


def test_no_value_that_json_cannot_hold() -> None:
    with pytest.raises(ConfigError, match=r"options\.x is <object"):
        to_flags({"x": object()})
    given = {"a": None, "b": ["c", "d"], "e": 0.5, "f": [1]}
    assert to_flags(given) == ["--b", "c", "d", "--e", "0.5", "--f", "[1]"]


@pytest.mark.parametrize("value", [0, -1, True, "2", 1.0])
def test_parallel_sizes_are_counts(value: object) -> None:
    with pytest.raises(ConfigError, match=r"tensor_parallel_size is"):
        count_devices({"tensor_parallel_size": value})


def test_the_environment_opens_control_and_is_not_that_of_the_engine_in_this_process() -> None:
    ours = {"PATH": "/bin", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "INFO"}
    made = build_environment(settings(), ours, cuda_devices="2,3", cpu=False)
    assert made["VLLM_SERVER_DEV_MODE"] == "1"
    assert made["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert made["VLLM_LOGGING_LEVEL"] == "INFO"
    assert made["PATH"] == "/bin"
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in made
    assert "VLLM_ALLOW_INSECURE_SERIALIZATION" not in made
    ipc = build_environment(settings(transfer="ipc"), ours, cuda_devices=None, cpu=False)
    assert ipc["VLLM_ALLOW_INSECURE_SERIALIZATION"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in ipc
    lora = build_environment(settings(adapter_rank=4), ours, cuda_devices=None, cpu=False)
    assert lora["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"


@pytest.mark.parametrize(
    ("cpu", "options", "ours", "expected"),
    [
        (True, {}, {}, "0"),
        (True, {"tensor-parallel-size": 1}, {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}, "0"),
        (True, {"tensor_parallel_size": 2}, {}, None),
        (True, {}, {"VLLM_CPU_OMP_THREADS_BIND": "0-3"}, None),
        (False, {}, {}, None),
    ],
)
def test_one_unbound_cpu_device_is_computed_on_in_the_core(
    cpu: bool, options: dict[str, int], ours: dict[str, str], expected: str | None
) -> None:
    made = build_environment(settings(options=options), ours, cuda_devices=None, cpu=cpu)
    assert made.get("VLLM_ENABLE_V1_MULTIPROCESSING") == expected


def test_a_tied_head_is_given_as_one_of_its_own(tmp_path: Path) -> None:
    tied = tiny("qwen3")
    tied.config.tie_word_embeddings = True
    tied.tie_weights()
    tied.save_pretrained(tmp_path / "tied")
    made = Path(untie_folder(str(tmp_path / "tied"), tmp_path / "made"))
    assert json.loads((made / "config.json").read_text())["tie_word_embeddings"] is False
    head = load_file(made / "head.safetensors")["lm_head.weight"]
    embedding: Any = tied.get_input_embeddings().weight
    assert head.equal(embedding)
    assert (made / "model.safetensors").resolve() == tmp_path / "tied" / "model.safetensors"
    config = tmp_path / "tied" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "tie_word_embeddings": False}))
    assert untie_folder(str(tmp_path / "tied"), tmp_path / "other") == str(tmp_path / "tied")
    config.write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        untie_folder(str(tmp_path / "tied"), tmp_path / "other")


def test_the_last_error_is_the_reason() -> None:
    output = "\n".join(
        [
            "INFO: starts",
            "ValueError: an older one",
            "pydantic_core.ValidationError: 1 validation error for VllmConfig",
            "  Value error, heads (4) must be divisible by 3",
            "    For further information",
            "more",
        ]
    )
    assert find_refusal(output).endswith("must be divisible by 3 For further information")
    assert find_refusal("INFO: all is well") == ""


def test_the_error_of_the_process_that_had_it_is_the_cause() -> None:
    """Mutants seen caught: the last error instead; a log's prefix left in; consequences not
    skipped; an error in a sentence taken for one."""
    at = "[worker.py:7]"
    lines = [
        "(APIServer pid=1) WARNING 01-31 12:00:00 [a.py:1] Failed with error OSError: [Errno 24]",
        "(Worker_TP0 pid=3) ERROR 01-31 12:00:01 [worker.py:7] Traceback (most recent call last):",
        f"(Worker_TP0 pid=3) ERROR 01-31 12:00:01 {at} torch.OutOfMemoryError: CUDA out of memory.",
        "(EngineCore pid=2) ERROR 01-31 12:00:02 [core.py:1] Exception: WorkerProc initialization "
        "failed due to an exception in a background process. See stack trace for root cause.",
        *["  a frame of the parent's traceback"] * 500,
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    assert find_cause("\n".join(lines)) == "torch.OutOfMemoryError: CUDA out of memory."
    assert find_cause("\n".join(lines[3:])) == ""
    error = str(explain_end("\n".join(lines), 1, "python3"))
    assert error.startswith("vLLM's server ended with status 1: torch.OutOfMemoryError: CUDA out")
    assert len(error) < 3000


@pytest.mark.parametrize(
    "changes",
    [{"entropies": True}] + [{"sampling": Sampling(temperature=value)} for value in (0.005, 2.5)],
)
def test_what_the_servers_sampler_does_not_do_is_refused(changes: dict[str, Any]) -> None:
    given: dict[str, Any] = {"id": "a", "prompt": (1,), "max_new_tokens": 1}
    check_request_fits(GenerateRequest(**given, sampling=Sampling(temperature=0)))
    with pytest.raises(ValueError, match=r"engine\.vllm\.sampler: agentrl"):
        check_request_fits(GenerateRequest(**{**given, **changes}))


@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_an_engine_of_several_devices_has_different_ones(
    devices: int, ranks: int, per_engine: int, engines: int
) -> None:
    names = tuple(map(str, range(devices)))
    if ranks > devices or per_engine > devices:
        with pytest.raises(ConfigError, match="visible"):
            place_devices(names, ranks=ranks, engines=engines, per_engine=per_engine)
        return
    placement = place_devices(names, ranks=ranks, engines=engines, per_engine=per_engine)
    groups = [group.split(",") for group in placement.engines]
    assert all(len({*group}) == per_engine for group in groups)
    is_enough = ranks + engines * per_engine <= devices
    assert placement.has_own_devices == is_enough


def test_groups_of_devices_golden() -> None:
    names = tuple(map(str, range(8)))
    placement = place_devices(names, ranks=2, engines=3, per_engine=2)
    assert placement.engines == ("2,3", "4,5", "6,7")
    assert placement.describe().endswith("engine 2 on GPU 6,7")
    shared = place_devices(names[:2], ranks=2, engines=1, per_engine=2)
    assert shared.engines == ("1,0",)


DOCUMENTED = "vllm.distributed.weight_transfer"
"""The only part of vLLM that is imported: the trainer's half of its weight-transfer API."""


def test_the_default_path_imports_nothing_of_vllms_insides(root: Path) -> None:
    paths = [*(root / "agentrl/engine/endpoint").glob("*.py"), root / "agentrl/engine/spec.py"]
    paths += [root / "agentrl/engine/vllm" / name for name in ("launch.py", "server.py")]
    paths += [root / "agentrl/run/build_engine.py", root / "agentrl/engine/vllm/__init__.py"]
    assert len(paths) > 10
    modules = {
        (path.name, name)
        for path in paths
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
        if name.split(".")[0] == "vllm"
    }
    assert {file for file, _ in modules} == {"transfer.py"}
    assert all(name.startswith(DOCUMENTED) for _, name in modules)
