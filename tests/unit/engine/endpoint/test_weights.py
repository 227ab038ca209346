"""Adapters at a server that somebody else started: each version proven, each token of its own.

The server is in this event loop; tests/system/with_vllm/test_endpoint.py asks vLLM's.

Mutants seen caught: requests in flight stay with old weights; tokens carry the version of the
start; nothing is proven, or the old version is; old adapters, or their folders, stay; a server
begun anew is not proven, or given its weights by every request, or for ever; a scale without the
rank; copies that are none.
"""

import asyncio
import copy
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from peft import PeftModel

from agentrl.engine.endpoint import EndpointReplicas
from agentrl.engine.endpoint.adapters import write_adapter
from agentrl.errors import ConfigError, EngineLost, WeightsUnproven
from agentrl.policy import ScoreRequest as Asked
from agentrl.weight_sync.adapters import AdapterWeights, BaseWeights, LoraAdapter
from tests.support.adapters import adapted, base_of
from tests.support.completions_server import (
    PROMPT,
    Server,
    asking,
    check_said,
    provable,
    request,
    served,
    weights,
)
from tests.support.engine_models import tiny
from tests.support.rights import has_rights_of_new_files


async def test_requests_in_flight_go_on_under_new_weights(tmp_path: Path) -> None:
    server, amounts = Server(), {0: 0.0, 1: 0.4, 2: -0.7}
    async with asking(server, tmp_path) as engine:
        server.holds = 3
        running = [asyncio.create_task(engine.generate(request(n))) for n in range(3)]
        for _ in running:
            await server.held.acquire()
        for version in (1, 2):
            await engine.load(provable(amounts[version]), version)
            assert engine.version == version
            for _ in running:
                await server.held.acquire()
        server.go.set()
        for done in await asyncio.gather(*running):
            assert done.versions == (0,) * 3 + (1,) * 3 + (2,) * 6
            check_said(done, amounts)
        names = [body["lora_name"] for path, body in server.told if path.startswith("load")]
        assert len({*names}) == 2
        assert list(server.adapters) == names[1:], "the last but one is let go of"
        await engine.load(provable(0.1), 3)
        assert len([*(tmp_path / "adapters").glob("*/*")]) == 2, "this one's, and the last one's"
    assert server.adapters == {}
    assert not (tmp_path / "adapters").exists()


async def test_a_folder_that_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "adapters").mkdir()
    async with asking(Server(), tmp_path) as engine:
        await engine.load(weights(0.1), 1)
        assert [*(tmp_path / "adapters").iterdir()]
    assert [*(tmp_path / "adapters").iterdir()] == []


async def test_a_server_that_keeps_old_weights_is_found(tmp_path: Path) -> None:
    server = Server()
    async with asking(server, tmp_path) as engine:
        await engine.load(provable(0.3), 1)
        server.stale.extend([True])  # once may happen
        await engine.load(provable(0.5), 2)
        server.stale.extend([True, True])
        with pytest.raises(WeightsUnproven, match=r"version 3 .* after 2 tries.*max_gap"):
            await engine.load(provable(0.9), 3)
        assert engine.version == 2
        check_said(await engine.generate(request()), {2: 0.5})
        assert len(server.adapters) == 1
        folders = [*(tmp_path / "adapters").glob("*/*")]
        assert len(folders) == 2, "that of the version in use, and of the one before"


async def test_a_base_that_is_not_the_policy_is_found(tmp_path: Path) -> None:
    async with asking(served(base=0.2), tmp_path) as engine:
        with pytest.raises(WeightsUnproven, match="version 0"):
            await engine.load(provable(0.0), 0)


async def test_weights_are_late(tmp_path: Path) -> None:
    server = Server()
    async with asking(server, tmp_path) as engine:
        server.loads.clear()
        with pytest.raises(WeightsUnproven, match=r"loading took longer than 0\.2 s"):
            await engine.load(provable(0.3, deadline_s=0.2), 1)
        assert engine.version == 0
        assert [*(tmp_path / "adapters").glob("*/*")] == []


@pytest.mark.parametrize("status", [400, 404])
async def test_a_server_that_takes_no_adapters(tmp_path: Path, status: int) -> None:
    server = Server()
    async with asking(server, tmp_path) as engine:
        server.load_faults.append(httpx.Response(status, text="rank is too high"))
        with pytest.raises(ConfigError, match=r"rank is too high.*; start it with VLLM_ALLOW"):
            await engine.load(weights(0.3), 1)
        assert engine.version == 0
        with pytest.raises(ConfigError, match=r"full weights; set learn\.lora"):
            await engine.load(dict(weights(0.3)), 1)


async def test_an_adapter_whose_answer_was_lost_is_there(tmp_path: Path) -> None:
    server = Server()
    load = server.load

    def lost(body: dict[str, Any]) -> httpx.Response:
        answer = load(body)
        server.load = load
        assert answer.is_success
        return httpx.Response(502, text="proxy")

    server.load = lost
    async with asking(server, tmp_path) as engine:
        await engine.load(provable(0.3), 1)
        check_said(await engine.generate(request()), {1: 0.3})


async def test_a_server_that_was_started_anew_is_given_the_weights_again(tmp_path: Path) -> None:
    server = Server()
    async with asking(server, tmp_path) as engine:
        await engine.load(provable(0.3), 1)
        server.holds = 3
        running = [asyncio.create_task(engine.generate(request(n))) for n in range(4)]
        for _ in running:
            await server.held.acquire()
        server.adapters.clear()
        loads = len(server.told)
        scoring = asyncio.create_task(engine.score(Asked(id="s", prompt=PROMPT, token_ids=(8,))))
        running += [asyncio.create_task(engine.generate(request(n))) for n in (5, 6)]
        server.loads.clear()
        for _ in range(3):
            await server.unknown.acquire()
        server.loads.set()
        server.go.set()
        assert (await scoring).version == 1
        for one in await asyncio.gather(*running):
            check_said(one, {1: 0.3})
        assert len(server.told) == loads + 1
        server.adapters.clear()
        server.base = 0.5
        with pytest.raises(WeightsUnproven, match="lost version 1"):
            await engine.generate(request(7))


async def test_a_server_that_goes_on_forgetting_is_lost(tmp_path: Path) -> None:
    server = Server()
    async with asking(server, tmp_path, retries=2) as engine:
        await engine.load(weights(0.3), 1)
        server.faults.extend(httpx.Response(404) for _ in range(9))
        with pytest.raises(EngineLost, match=r"3 tries: it loads version 1 .* and loses it again"):
            await engine.generate(request())
        with pytest.raises(EngineLost, match=r"3 tries"):
            await engine.score(Asked(id="s", prompt=PROMPT, token_ids=(8,)))
        server.faults = deque([httpx.Response(404)])
        check_said(await engine.generate(request(1)), {1: 0.3})


async def test_several_servers_are_one_engine(tmp_path: Path) -> None:
    servers = [Server(), Server()]
    async with EndpointReplicas([asking(one, tmp_path) for one in servers]) as engine:
        taken = provable(0.3)
        prepared = await engine.prepare(taken)
        changed = taken.weights
        assert isinstance(changed, AdapterWeights)
        next(iter(changed.adapters.values())).b.zero_()  # the trainer goes on
        await engine.roll(prepared, 1)
        assert engine.version == 1
        for one in servers:
            assert list(one.adapters.values()) == pytest.approx([0.3])
        done = await asyncio.gather(*(engine.generate(request(n, id=f"{n}/0/0")) for n in range(6)))
        for one in done:
            check_said(one, {1: 0.3})
        assert all(any(body.get("stream") for body in one.bodies) for one in servers)
        scores = await engine.score(Asked(id="s/0/0", prompt=PROMPT, token_ids=(8,)))
        assert scores.version == 1
    with pytest.raises(ConfigError, match="max-model-len"):
        async with EndpointReplicas(
            [asking(Server(), tmp_path), asking(served(max_model_len=9), tmp_path)]
        ):
            raise AssertionError


# --- adapters as a folder -------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft asks transformers of what is renamed
def test_peft_reads_the_folder(tmp_path: Path) -> None:
    model = tiny("qwen3")
    whole = adapted(base_of(model), 1)
    merged = copy.deepcopy(model)
    merged.load_state_dict(dict(whole))
    write_adapter(whole, tmp_path / "adapter")
    assert has_rights_of_new_files(tmp_path / "adapter")
    read = PeftModel.from_pretrained(copy.deepcopy(model), str(tmp_path / "adapter"))
    ids = torch.arange(12).unsqueeze(0)
    with torch.no_grad():
        ours, theirs = merged(ids).logits, read(ids).logits
        assert (ours - model(ids).logits).abs().max() > 0.1
    torch.testing.assert_close(theirs, ours, atol=1e-4, rtol=1e-4)


def test_adapters_that_no_folder_holds(tmp_path: Path) -> None:
    base = BaseWeights({f"{n}.weight": torch.zeros(3, 3) for n in "ab"})
    one, other = (LoraAdapter(torch.zeros(r, 3), torch.zeros(3, r), 1.0) for r in (1, 2))
    with pytest.raises(ConfigError, match="one rank and scale"):
        write_adapter(AdapterWeights(base, {"a.weight": one, "b.weight": other}), tmp_path / "x")
    turned = replace(one, transposed=True)
    with pytest.raises(ConfigError, match=r"a\.weight, which is not a linear layer"):
        write_adapter(AdapterWeights(base, {"a.weight": turned}), tmp_path / "x")
    assert [*tmp_path.iterdir()] == []
