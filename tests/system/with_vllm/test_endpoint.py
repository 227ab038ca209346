"""vLLM's own server as the engine of a run: versions, log-probs, updates in flight, whole runs.

The server has the options that this needs; test_openai.py asks one without them.
"""

import asyncio
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest
from transformers import PreTrainedModel

from agentrl.config.load import load_config
from agentrl.engine.endpoint import CompletionsEngine, ServerSettings
from agentrl.errors import WeightsUnproven
from agentrl.metrics.writer import read_metrics
from agentrl.models.folders import load_model
from agentrl.policy import Sampling
from agentrl.run.train import train, warmstart
from agentrl.testing.engine import check_engine
from agentrl.weight_sync.adapters import BaseWeights
from agentrl.weight_sync.check import CheckedWeights, WeightCheck
from tests.support.adapters import adapted, base_of, merged
from tests.support.examples import spread_cases
from tests.support.tiny_run import config_file
from tests.system.with_vllm.served import served
from tests.system.with_vllm.test_engine import picked, policy_logprobs, request, score_of, worst_gap

pytestmark = pytest.mark.filterwarnings("default")

ADAPTERS = ("--enable-lora", "--max-lora-rank", "8", "--logprobs-mode", "processed_logprobs")
UPDATES = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
CONTEXT_TOKENS = 128
SHAPED = Sampling(temperature=0.7, top_k=5)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first policy of a run, as `agentrl warmstart` leaves it."""
    folder = tmp_path_factory.mktemp("first")
    config = load_config(config_file(folder), {"policy.make.head_dim": 32})
    return warmstart(config)


@pytest.fixture(scope="module")
def url(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    log = tmp_path_factory.mktemp("log") / "log"
    with served(policy, log, *ADAPTERS, **UPDATES) as at:
        yield at


@pytest.fixture(scope="module")
def model(policy: Path) -> PreTrainedModel:
    return load_model(str(policy), dtype="float32", device="cpu").eval()


def engine_at(url: str, folder: Path, model: PreTrainedModel) -> CompletionsEngine:
    settings = ServerSettings(
        url=url,
        model="tiny",
        adapters=folder / "adapters",
        vocabulary=model.config.get_text_config().vocab_size,
        context_tokens=CONTEXT_TOKENS,
        samplings=(SHAPED,),
        top_logprobs=5,
    )
    return CompletionsEngine(settings)


def proven(model: PreTrainedModel, base: BaseWeights, seed: int, *, says: int) -> CheckedWeights:
    """Return weights with what a plain forward pass of the same, or of other ones, says."""
    tokens = tuple(range(7, 24))
    other = merged(model, adapted(base, says))
    said = picked(policy_logprobs(other, tokens[:1], tokens[1:]), tokens[1:])
    proof = WeightCheck(token_ids=tokens, logprobs=tuple(said), max_gap=1e-3, deadline_s=300.0)
    return CheckedWeights(adapted(base, seed), proof)


def models_at(url: str) -> list[str]:
    return [model["id"] for model in httpx.get(f"{url}/models", timeout=60).json()["data"]]


@pytest.mark.timeout(900)
@pytest.mark.nightly
async def test_the_promises_of_an_engine(url: str, tmp_path: Path, model: PreTrainedModel) -> None:
    async with engine_at(url, tmp_path, model) as engine:
        await check_engine(
            engine,
            vocab_size=model.config.get_text_config().vocab_size,
            context_tokens=CONTEXT_TOKENS,
            weights=adapted(base_of(model), 1),
            timeout_s=300.0,
            is_server=True,
        )
    assert not (tmp_path / "adapters").exists()
    assert models_at(url) == ["tiny"]


@pytest.mark.timeout(900)
async def test_every_token_is_of_the_version_that_it_names(
    url: str, tmp_path: Path, model: PreTrainedModel
) -> None:
    base = base_of(model)
    plain = [model, *(merged(model, adapted(base, seed)) for seed in (1, 2, 3))]
    async with engine_at(url, tmp_path, model) as engine:
        for version in range(4):
            if version:
                await engine.load(proven(model, base, version, says=version), version)
            asked = [request(n, max_new_tokens=24) for n in range(5)]
            done = await asyncio.gather(*(engine.generate(one) for one in asked))
            assert {v for one in done for v in one.versions} == {version}
            assert worst_gap([*zip(asked, done, strict=True)], plain) <= 1e-3
        asked = request(0)
        drawn = await engine.generate(asked)
        scores = await engine.score(score_of(asked, drawn.token_ids))
        assert scores.logprobs == pytest.approx(drawn.logprobs, abs=1e-3)
        with pytest.raises(WeightsUnproven, match="version 4"):
            await engine.load(proven(model, base, 1, says=2), 4)
        assert engine.version == 3


@pytest.mark.timeout(900)
async def test_what_is_in_flight_goes_on_under_new_weights(
    url: str, tmp_path: Path, model: PreTrainedModel
) -> None:
    base = base_of(model)
    plain = [model, merged(model, adapted(base, 1))]
    async with engine_at(url, tmp_path, model) as engine:
        await engine.load(adapted(base, 1), 1)
        asked = [request(n, max_new_tokens=70) for n in range(8)]
        for version in range(2, 8):  # the server may be through before it hears of the next one
            plain.append(merged(model, adapted(base, version)))
            running = [asyncio.create_task(engine.generate(one)) for one in asked]
            # One that is short is done when the others have begun.
            await engine.generate(request(50, max_new_tokens=4))
            await engine.load(adapted(base, version), version)
            done = await asyncio.gather(*running)
            assert all(list(one.versions) == sorted(one.versions) for one in done)
            assert worst_gap([*zip(asked, done, strict=True)], plain) <= 1e-3
            if any({*one.versions} == {version - 1, version} for one in done):
                return
        pytest.fail("no request met new weights")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", spread_cases(["sync", "async"], 1))
def test_a_run_trains_from_it(url: str, tmp_path: Path, policy: Path, mode: str) -> None:
    changes = {
        "run.steps": 3,
        "policy.make": None,
        "policy.path": str(policy),
        "warmstart": None,
        "learn.lora": {"rank": 4},
        "rollout.mode": mode,
        "engine.kind": "endpoint",
        "engine.endpoint": {"urls": [url], "model": "tiny"},
        # So near that weights of one step ago would be found.
        "engine.probe": {"max_gap": 1e-3},
    }
    result = train(config_file(tmp_path), changes)
    lines = read_metrics(result.folder)
    assert len(lines) == 3
    for line in lines:
        newest = "engine_gap/max" if mode == "sync" else "engine_gap/age0_max"
        if mode == "sync" or line["age/max"] == 0:
            assert 0 < line[newest] < 1e-3
        assert line["grad/norm"] > 0
    assert result.after["failed"] == 0
    assert not (result.folder / "adapters").exists()
    assert models_at(url) == ["tiny"]
