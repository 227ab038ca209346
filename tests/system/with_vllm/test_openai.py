"""vLLM's own server, asked over chat completions with tools; and what it lacks to train from."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.cli.eval import newest_checkpoint
from agentrl.engine.endpoint import CompletionsEngine, ServerSettings
from agentrl.errors import ConfigError
from agentrl.evaluation.endpoint import HttpEndpoint
from agentrl.models.folders import load_model
from agentrl.policy import Sampling
from agentrl.run.evaluate import evaluate
from agentrl.run.train import train
from tests.support.adapters import adapted, base_of
from tests.support.tiny_run import config_file
from tests.system.with_vllm.served import served
from tests.system.with_vllm.test_engine import request, worst_gap

pytestmark = pytest.mark.filterwarnings("default")

TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
GREEDY = {"evaluate.temperature": 0.0, "policy.make.head_dim": 32}


async def check_what_it_lacks(url: str, policy: Path, folder: Path) -> None:
    """A server as somebody starts it who has read nothing says what training needs."""
    model = load_model(str(policy), dtype="float32", device="cpu").eval()
    neutral = ServerSettings(
        url=url,
        model="tiny",
        adapters=folder / "adapters",
        vocabulary=model.config.get_text_config().vocab_size,
        context_tokens=128,
    )
    with pytest.raises(ConfigError, match="--logprobs-mode processed_logprobs"):
        async with CompletionsEngine(replace(neutral, samplings=(Sampling(top_p=0.9),))):
            raise AssertionError
    async with CompletionsEngine(neutral) as engine:
        done = await engine.generate(request(1))
        assert worst_gap([(request(1), done)], [model]) <= 1e-3
        with pytest.raises(ConfigError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"):
            await engine.load(adapted(base_of(model), 1), 1)


@pytest.mark.timeout(900)
@pytest.mark.nightly
def test_a_served_checkpoint_is_evaluated(tmp_path: Path) -> None:
    config = config_file(tmp_path)
    changes = {**GREEDY, "run.steps": 1, "warmstart.steps": 150}
    result = train(config, changes)
    checkpoint = newest_checkpoint(result.folder)
    with served(checkpoint, tmp_path / "log", *TOOLS) as url:
        report = evaluate(config, changes, endpoint=HttpEndpoint(url=url, model="tiny"))
        asyncio.run(check_what_it_lacks(url, checkpoint, tmp_path))
    assert report.summary()["failed"] == 0
    assert report.summary()["n"] == 6
