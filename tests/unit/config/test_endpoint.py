"""What a config says of a server that somebody else started, and what comes of it."""

from pathlib import Path
from typing import Any

import pytest

from agentrl.config.load import load_config
from agentrl.config.run import RunConfig
from agentrl.engine.endpoint import CompletionsEngine, EndpointReplicas, WeightsEngine
from agentrl.engine.vllm import VllmServers
from agentrl.errors import ConfigError
from agentrl.learn.trainer import PolicyTrainer
from agentrl.run import build
from agentrl.run.build_engine import build_engine, build_engine_spec, build_vllm_servers
from agentrl.run.evaluate import evaluate
from agentrl.run.policy_model import PolicyModel, load_policy
from agentrl.runtime.gpu_placement import DevicePlacement
from agentrl.weight_sync.check import CheckedWeights
from tests.support.engine_models import recipe_in, tiny

ENDPOINT = {"urls": ["http://one.test/v1"], "model": "m"}
ASKED: dict[str, Any] = {"engine.kind": "endpoint", "engine.endpoint": ENDPOINT, "learn.lora": {}}


def config(folder: Path, changes: dict[str, Any]) -> RunConfig:
    path = folder / "config.yaml"
    path.write_text(f"env: {{id: code/ChainSum-v0}}\nrun: {{folder: {folder}}}\n")
    return load_config(path, changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engine.endpoint": None}, r"set engine\.endpoint\.urls and engine\.endpoint\.model"),
        ({"engine.kind": "local"}, r"engine\.endpoint is set but engine\.kind is local"),
        (
            {"learn.lora": None},
            r"accepts adapters, not full weights; set learn\.lora",
        ),
        ({"engine.endpoint.update": "keep"}, r"weights is adapters: .* weights: folder"),
        ({"engine.endpoint.api": "sglang"}, r"api is sglang and engine\.endpoint\.weights is"),
        (
            {"engine.endpoint.update": "keep", "engine.endpoint.weights": "folder"},
            r"completions name no weight versions",
        ),
        ({"engine.processes": 2}, r"engine\.processes is 2, but with engine\.kind: endpoint"),
        ({"engine.addresses": ["h:1"]}, r"engine\.addresses is"),
        ({"engine.python": "python"}, r"engine\.python is python"),
        ({"engine.broadcast": {}}, r"engine\.broadcast is"),
        ({"rollout.drafts": {}}, r"needs full token distributions"),
        ({"engine.draft_tokens": 4}, r"draft_tokens is 4 and engine\.kind is endpoint"),
        ({"policy.make.vision": {}}, r"policy\.make\.vision is set"),
        ({"curation.steps.name": "high_entropy"}, r"needs the entropy of sampled tokens"),
        ({"engine.endpoint.urls": []}, r"engine\.endpoint\.urls"),
        ({"engine.rolling": True, "rollout.mode": "async"}, r"add engine\.addresses or engine\."),
    ],
)
def test_what_does_not_go_together_is_told(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    config(tmp_path, ASKED)
    with pytest.raises(ConfigError, match=words):
        config(tmp_path, {**ASKED, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rollout.drafts": {}}, r"engine\.vllm\.sampler: agentrl"),
        ({"curation.steps.name": "high_entropy"}, r"engine\.vllm\.sampler: agentrl"),
        ({"sampling.temperature": 2.5}, r"sampling\.temperature is 2\.5, .* 0\.01 to 2"),
        ({"evaluate.temperature": 0.001}, r"evaluate\.temperature is 0\.001, .* 0\.01 to 2"),
    ],
)
def test_what_vllms_own_sampler_does_not_do_is_told(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    asked = {"engine.kind": "vllm"}
    config(tmp_path, asked)
    config(tmp_path, {**asked, **changes, "engine.vllm.sampler": "agentrl"})
    with pytest.raises(ConfigError, match=words):
        config(tmp_path, {**asked, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"transfer": "nccl", "sampler": "agentrl"}, r"transfer is nccl and .* is agentrl"),
        ({"update": "keep", "sampler": "agentrl"}, r"update is keep and .* is agentrl"),
        ({"sleep_level": 1, "sampler": "agentrl"}, r"sleep_level is 1 and .* is agentrl"),
        ({"update": "keep", "adapters": "native"}, r"update is keep and .* is native"),
        ({"transfer": "ipc", "adapters": "native"}, r"transfer is ipc and .* is native"),
        ({"sleep_level": 2, "adapters": "native"}, r"sleep_level is 2 and .* is native"),
        ({"sleep_level": 3}, r"sleep_level"),
        ({"options": {"max-model-len": 9}}, r"options\.max-model-len is 9, but this argument"),
    ],
)
def test_what_only_vllms_server_does_is_told(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    asked = {"engine.kind": "vllm", "learn.lora": {}}
    with pytest.raises(ConfigError, match=words):
        config(tmp_path, {**asked, **{f"engine.vllm.{k}": v for k, v in changes.items()}})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rollout.mode": "async", "engine.vllm.sleep_level": 1}, r"rollout\.mode: async"),
        ({"engine.broadcast": {}, "engine.processes": 2}, r"engine\.vllm\.transfer"),
        ({"policy.make.vision": {}}, r"images are not sent to vLLM's server"),
    ],
)
def test_what_vllms_server_does_not_do_is_told(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        config(tmp_path, {"engine.kind": "vllm", **changes})
    if "engine.vllm.sleep_level" not in changes:
        config(tmp_path, {"engine.kind": "vllm", **changes, "engine.vllm.sampler": "agentrl"})


def test_a_probe_and_several_servers_go_together(tmp_path: Path) -> None:
    two = {"engine.endpoint": {**ENDPOINT, "urls": ["http://a/v1", "http://b/v1"]}}
    rolling = {"engine.rolling": True, "rollout.mode": "async", "engine.probe": {"tokens": 5}}
    assert config(tmp_path, {**ASKED, **two, **rolling}).engine.rolling


def policy_in(folder: Path, made: RunConfig) -> PolicyModel:
    recipe_in(folder, tiny("qwen3"), context_tokens=64)
    return load_policy(made, folder)


def test_the_engine_of_a_config(tmp_path: Path) -> None:
    made = config(tmp_path, ASKED)
    policy = policy_in(tmp_path / "policy", made)
    assert isinstance(build_engine(made, policy), CompletionsEngine)
    urls = ["http://a/v1", "http://b/v1"]
    both = config(tmp_path, {**ASKED, "engine.endpoint": {**ENDPOINT, "urls": urls}})
    assert isinstance(build_engine(both, policy), EndpointReplicas)
    whole = {"engine.endpoint": {**ENDPOINT, "weights": "folder"}, "learn.lora": None}
    assert isinstance(build_engine(config(tmp_path, {**ASKED, **whole}), policy), WeightsEngine)
    vllm = {"engine.kind": "vllm", "engine.processes": 2}
    assert isinstance(build_engine(config(tmp_path, vllm), policy), VllmServers)
    with pytest.raises(ConfigError, match=r"transfer is nccl, but the trainer is on cpu"):
        build_engine(config(tmp_path, {**vllm, "engine.vllm.transfer": "nccl"}), policy)
    placed = {("nccl", "0"): "nccl", ("nccl", "1"): "", ("ipc", "0"): "", ("ipc", "1"): "ipc"}
    placed |= {("ipc", "0,1"): "ipc", ("nccl", "1,2"): ""}
    for (transfer, devices), refused in placed.items():
        tensors = config(tmp_path, {**vllm, "engine.vllm.transfer": transfer})
        placement = DevicePlacement(ranks=("0",), engines=(devices,))
        recipe = build_engine_spec(tensors, str(policy.path), device="cpu")
        if refused:
            with pytest.raises(ConfigError, match=f"transfer is {refused}, but trainer rank 0"):
                build_vllm_servers(tensors, policy, recipe, placement)
        else:
            assert build_vllm_servers(tensors, policy, recipe, placement)
    with pytest.raises(ConfigError, match="no engine can be built"):
        build_engine_spec(made, str(policy.path), device="cpu")
    with pytest.raises(ConfigError, match="a URL and a model"):
        build_engine(config(tmp_path, {**ASKED, "engine.endpoint.urls": ["h:1"]}), policy)


@pytest.mark.parametrize("is_own", [True, False])
def test_what_a_killed_run_left_in_its_own_folder_goes(tmp_path: Path, is_own: bool) -> None:
    named = {} if is_own else {"engine.endpoint.adapters": str(tmp_path / "shared")}
    made = config(tmp_path, {**ASKED, **named, "run.name": "killed"})
    policy = policy_in(tmp_path / "policy", made)
    folders = [tmp_path / "killed" / "adapters" / "agentrl-1", tmp_path / "shared" / "agentrl-2"]
    for folder in folders:
        folder.mkdir(parents=True)
    build_engine(made, policy)
    assert [folder.exists() for folder in folders] == [not is_own, True]


@pytest.mark.parametrize("tokens", [None, 5])
def test_its_weights_are_always_proven(tmp_path: Path, tokens: int | None) -> None:
    own = {} if tokens is None else {"engine.probe": {"tokens": tokens}}
    made = config(tmp_path, {**ASKED, **own})
    trainer = PolicyTrainer(tiny("qwen3"), made.learn, seed=0, temperature=1.0, steps=1)
    found = build.build_weight_source(made, trainer)()
    assert isinstance(found, CheckedWeights)
    assert len(found.proof.logprobs) == (tokens or 16)


def test_a_checkpoint_is_not_what_it_serves(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="have the base model of a run but not somewhere"):
        evaluate(config(tmp_path, ASKED), checkpoint="somewhere")
