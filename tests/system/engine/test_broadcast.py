"""Weights by broadcast: rows of bytes, groups that form and break, engines killed in the middle.

Mutants seen caught: the last bucket is as long as the others; who waits for a bucket does not look
whether it is to stop; the group of all is left and that of two kept; it is left for one of two;
what has arrived is loaded for other weights.
"""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any, Self

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load
from torch import Tensor

from agentrl.config.check import RULES
from agentrl.config.run import RunConfig
from agentrl.engine.local import LocalEngine
from agentrl.engine.remote import AddressEngine, EngineReplicas, EngineServer, ProcessEngine
from agentrl.engine.remote import process as process_module
from agentrl.engine.remote.client import RemoteEngine, connect
from agentrl.engine.remote.shared_weights import SharedWeights
from agentrl.engine.remote.weight_broadcast import WeightBroadcaster
from agentrl.engine.remote.weight_receiver import WeightReceiver
from agentrl.engine.scripted import ScriptedEngine
from agentrl.engine.spec import EngineSpec
from agentrl.engine.weights import read_weights
from agentrl.errors import EngineError, EngineLost, WeightsUnproven
from agentrl.policy import Completion, GenerateRequest
from agentrl.testing.engine import check_engine
from agentrl.weight_sync.adapters import AdapterWeights, BaseWeights, LoraAdapter
from agentrl.weight_sync.buckets import SafetensorsBytes, buckets
from agentrl.weight_sync.check import CheckedWeights, WeightCheck
from agentrl.weight_sync.safetensors import KINDS
from agentrl.weight_sync.transfer_group import GroupRendezvous, WeightTransferGroup, store_at
from tests.conftest import child_commands
from tests.support.engine_models import VOCABULARY, prompt_of, recipe_in, shared, tiny

CONTEXT_TOKENS = 1024
DEADLINE_S = 200.0
KEY = b"a key that nobody guesses"


# --- rows of bytes --------------------------------------------------------------------------------


@given(
    parts=st.lists(
        st.tuples(st.sampled_from(list(KINDS)), st.lists(st.integers(0, 4), max_size=2)), max_size=5
    ),
    bucket_bytes=st.integers(1, 90),
    seed=st.integers(0, 99),
)
def test_buckets_put_together_are_the_file(
    parts: Sequence[tuple[torch.dtype, list[int]]], bucket_bytes: int, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    weights = {
        f"layer.{i}": torch.randint(0, 2, shape, generator=draw).to(kind)
        for i, (kind, shape) in enumerate(parts)
    }
    kept = SharedWeights(weights)
    for row in (SafetensorsBytes.from_weights(weights), SafetensorsBytes.from_file(kept.path)):
        assert row.size_bytes == kept.path.stat().st_size
        target = torch.full((row.size_bytes,), 77, dtype=torch.uint8)
        ends = [0]
        for start, end in buckets(row.size_bytes, bucket_bytes):
            assert start == ends[-1]
            ends.append(end)
            row.copy_to(target[start:end], start=start)
        assert ends[-1] == row.size_bytes
        assert target.numpy().tobytes() == kept.path.read_bytes()
    assert load(kept.path.read_bytes()).keys() == weights.keys()


# --- groups ---------------------------------------------------------------------------------------


def meetings(
    size: int, *, port: int, name: str = "a", deadline_s: float = 60.0
) -> list[GroupRendezvous]:
    first = GroupRendezvous(
        name=name,
        host="127.0.0.1",
        port=port,
        rank=0,
        size=size,
        address="127.0.0.1",
        backend="gloo",
        deadline_s=deadline_s,
    )
    return [replace(first, rank=rank) for rank in range(size)]


class Ranks:
    """Every rank of a group in a thread of its own."""

    def __init__(self, size: int, **changes: Any) -> None:
        self.store = store_at("127.0.0.1", deadline_s=60.0)
        self.meetings = meetings(size, port=self.store.port, **changes)
        self.stops = [threading.Event() for _ in range(size)]
        self.pool = ThreadPoolExecutor(size)

    def join(self, *ranks: int) -> list["Future[WeightTransferGroup]"]:
        return [
            self.pool.submit(
                WeightTransferGroup.join, self.meetings[r], self.stops[r], None if r else self.store
            )
            for r in ranks
        ]


@pytest.fixture
def row() -> SafetensorsBytes:
    draw = torch.Generator().manual_seed(0)
    return SafetensorsBytes([torch.randint(0, 256, (5001,), dtype=torch.uint8, generator=draw)])


def test_every_rank_has_every_byte_however_small_the_buckets(row: SafetensorsBytes) -> None:
    ranks = Ranks(3)
    groups = [joined.result(60) for joined in ranks.join(0, 1, 2)]
    wanted = torch.empty(row.size_bytes, dtype=torch.uint8)
    row.copy_to(wanted, start=0)
    for bucket_bytes in (1000, 5001, 10**6):
        targets = [torch.zeros(row.size_bytes, dtype=torch.uint8) for _ in groups[1:]]
        calls = [
            ranks.pool.submit(
                group.receive, target, bucket_bytes=bucket_bytes, stop=threading.Event()
            )
            for group, target in zip(groups[1:], targets, strict=True)
        ]
        groups[0].send(row, bucket_bytes=bucket_bytes, stop=threading.Event())
        for call in calls:
            call.result(60)
        assert all(torch.equal(target, wanted) for target in targets)
    for group in groups:
        group.close()
        group.close()


def test_a_rank_that_never_comes_is_named_and_who_waits_can_be_let_go() -> None:
    late = Ranks(3, deadline_s=5.0)
    last = late.join(2)
    late.store.wait(["a/here/2"], timedelta(seconds=60))
    for joined in late.join(0) + last:
        with pytest.raises(EngineError, match=r"of 3 at 127\.0\.0\.1\): ranks \[1\] of 3 did not"):
            joined.result(60)
    stopped = Ranks(2, deadline_s=600.0)
    (waiting,) = stopped.join(0)
    stopped.stops[0].set()
    with pytest.raises(EngineError, match="abandoned"):
        waiting.result(60)


def test_who_waits_for_a_bucket_is_let_go_and_its_leaving_breaks_the_group(
    row: SafetensorsBytes,
) -> None:
    ranks = Ranks(3)
    sender, one, two = (joined.result(60) for joined in ranks.join(0, 1, 2))
    # Rank 1 leaves when what it waits for has ended; rank 2 sees that nothing comes.
    one.meeting = replace(one.meeting, deadline_s=20.0)
    two.meeting = replace(two.meeting, deadline_s=1.0)
    stop, never = threading.Event(), threading.Event()
    target = torch.zeros(row.size_bytes, dtype=torch.uint8)
    waits = [
        ranks.pool.submit(group.receive, target.clone(), bucket_bytes=100, stop=mine)
        for group, mine in ((one, stop), (two, never))
    ]
    stop.set()
    with pytest.raises(EngineError, match=r"rank 1 of 3.*abandoned"):
        waits[0].result(60)
    began_s = time.monotonic()
    one.close()
    assert time.monotonic() - began_s < 15, "who leaves waits for nothing"
    with pytest.raises(EngineError, match="rank 2 of 3"):
        waits[1].result(60)
    two.close()
    with pytest.raises(EngineError, match="rank 0 of 3"):
        sender.send(row, bucket_bytes=100, stop=never)
    sender.close()


def test_a_bucket_that_is_late_breaks_the_group() -> None:
    ranks = Ranks(2)
    sender, other = (joined.result(60) for joined in ranks.join(0, 1))
    other.meeting = replace(other.meeting, deadline_s=0.5)
    with pytest.raises(EngineError, match="rank 1 of 2"):
        other.receive(torch.zeros(9, dtype=torch.uint8), bucket_bytes=4, stop=threading.Event())
    sender.close()
    other.close()


# --- engines in this process ----------------------------------------------------------------------


WEIGHTS = {"a": torch.arange(40.0), "b": torch.arange(6).reshape(2, 3).T}


class Reading(ScriptedEngine):
    """Reads what it is given, as an engine does, before its memory is used for the next."""

    def __init__(self) -> None:
        super().__init__(lambda request: (5,))
        self.has: list[tuple[int, dict[str, Tensor]]] = []

    async def load(self, weights: Any, version: int) -> None:
        self.has.append((version, {k: v.clone() for k, v in read_weights(weights).items()}))
        await super().load(weights, version)


def spreader(*, bucket_bytes: int = 64, deadline_s: float = 60.0) -> WeightBroadcaster:
    return WeightBroadcaster(backend="gloo", bucket_bytes=bucket_bytes, deadline_s=deadline_s)


class Away:
    """Engines behind sockets, each with its server."""

    def __init__(self, count: int) -> None:
        self.engines = [Reading() for _ in range(count)]
        self.servers = [EngineServer(engine, key=KEY) for engine in self.engines]
        self.remotes: list[RemoteEngine] = []

    async def __aenter__(self) -> Self:
        for server in self.servers:
            port = await server.listen("127.0.0.1", 0)
            self.remotes.append(await connect(f"127.0.0.1:{port}", key=KEY))
        return self

    async def __aexit__(self, *error: object) -> None:
        for one in (*self.remotes, *self.servers):
            await one.close()

    def has(self, number: int) -> tuple[int, bool]:
        """Return the version that an engine was given last, and whether it is all there."""
        version, found = self.engines[number].has[-1]
        same = (torch.equal(found[name], value * version) for name, value in WEIGHTS.items())
        return version, found.keys() == WEIGHTS.keys() and all(same)


def times(version: int) -> dict[str, Tensor]:
    return {name: value * version for name, value in WEIGHTS.items()}


async def test_all_engines_have_them_before_any_loads_them_and_the_group_is_kept() -> None:
    async with asyncio.timeout(DEADLINE_S), Away(3) as away:
        sends = spreader()
        for version in (1, 2):
            copy = await sends.spread(times(version), away.remotes)
            before = [len(engine.has) for engine in away.engines]
            assert before == [version - 1] * 3, "they have arrived, and are not loaded"
            for remote in away.remotes:
                await sends.load(remote, copy, version)
            assert [away.has(number) for number in range(3)] == [(version, True)] * 3
        assert sends.groups == 1
        # One that goes back is sent the older ones, alone; the group of all is not broken up by it.
        older = SharedWeights(times(1))
        await sends.load(away.remotes[1], older, 1)
        assert [away.has(number)[0] for number in range(3)] == [2, 1, 2]
        assert away.has(1) == (1, True)
        assert sends.groups == 2
        copy = await sends.spread(times(3), away.remotes)
        await sends.load(away.remotes[1], copy, 3)
        assert (away.has(1), sends.groups) == ((3, True), 2)
        # What has arrived there is of another version than what it is to load.
        await sends.load(away.remotes[2], older, 1)
        assert away.has(2) == (1, True)
        await sends.close()


async def test_of_weights_with_adapters_the_adapters_alone_are_broadcast() -> None:
    base = BaseWeights({"a": torch.rand(64, 64), "b": torch.rand(3)})

    def adapted(step: int) -> AdapterWeights:
        return AdapterWeights(
            base, {"a": LoraAdapter(torch.ones(2, 64) * step, torch.ones(64, 2), 0.5)}
        )

    async with asyncio.timeout(DEADLINE_S), Away(2) as away:
        sends = spreader()
        for step in (1, 2):
            copy = await sends.spread(adapted(step), away.remotes)
            assert copy.path.stat().st_size < base.weights["a"].nbytes
            for remote in away.remotes:
                await sends.load(remote, copy, step)
            for engine in away.engines:
                version, found = engine.has[-1]
                assert version == step
                assert torch.equal(found["a"], adapted(step)["a"])
                assert torch.equal(found["b"], base.weights["b"])
        assert sends.groups == 1
        await sends.close()


async def test_what_has_not_come_is_not_loaded() -> None:
    async with asyncio.timeout(DEADLINE_S), Away(1) as away:
        with pytest.raises(
            ValueError, match="no weights named 'x/1' have arrived; send them first"
        ):
            await away.remotes[0].load_received("x/1", 1)
        sends = spreader()
        copy = await sends.spread(times(1), away.remotes)
        await sends.load(away.remotes[0], copy, 1)
        with pytest.raises(ValueError, match="no weights named"):
            await away.remotes[0].load_received("x/1", 1)
        await sends.close()


async def test_engines_that_are_gone_are_left_out_and_the_group_is_formed_anew() -> None:
    async with asyncio.timeout(DEADLINE_S), Away(3) as away:
        sends = spreader()
        await sends.spread(times(1), away.remotes)
        await away.servers[2].close()
        copy = await sends.spread(times(2), away.remotes)
        for remote in away.remotes[:2]:
            await sends.load(remote, copy, 2)
        assert [away.has(number) for number in range(2)] == [(2, True)] * 2
        with pytest.raises(EngineLost):
            await sends.load(away.remotes[2], copy, 2)
        await sends.close()


async def test_when_all_are_gone_there_is_the_copy_for_those_that_replace_them() -> None:
    async with asyncio.timeout(DEADLINE_S), Away(2) as away, Away(1) as later:
        sends = spreader()
        await sends.spread(times(1), away.remotes)
        for server in away.servers:
            await server.close()
        copy = await sends.spread(times(2), away.remotes)
        await sends.load(later.remotes[0], copy, 2)
        assert later.has(0) == (2, True)
        await sends.close()


async def test_one_that_dies_over_what_it_is_sent_alone_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the group breaks before the connection does."""
    async with asyncio.timeout(DEADLINE_S), Away(1) as away:

        async def dies(self: WeightBroadcaster, *how: Any, **keeps: Any) -> str:
            await away.servers[0].close()
            raise EngineError("the group broke")

        sends = spreader()
        monkeypatch.setattr(WeightBroadcaster, "_send_once", dies)
        with pytest.raises(EngineLost, match="the group broke"):
            await sends.load(away.remotes[0], SharedWeights(times(1)), 1)
        await sends.close()


async def test_engines_that_die_one_after_the_other_are_no_reason_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    once, tried = WeightBroadcaster._send_once, list[int]()  # pyright: ignore[reportPrivateUsage]
    async with asyncio.timeout(DEADLINE_S), Away(3) as away:

        async def dies(
            self: WeightBroadcaster, row: Any, engines: Any, *how: Any, **keeps: Any
        ) -> str:
            tried.append(len(engines))
            if len(engines) > 1:
                await away.servers[len(engines) - 1].close()
                raise EngineError("an engine died")
            return await once(self, row, engines, *how, **keeps)

        monkeypatch.setattr(WeightBroadcaster, "_send_once", dies)
        sends = spreader()
        copy = await sends.spread(times(1), away.remotes)
        await sends.load(away.remotes[0], copy, 1)
        assert (tried, away.has(0)) == ([3, 2, 1], (1, True))
        await sends.close()


async def test_engines_that_live_and_cannot_meet_are_an_error_after_two_tries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []

    async def refuses(self: WeightReceiver, meeting: GroupRendezvous, **sizes: Any) -> Any:
        tried.append(meeting.rank)
        raise EngineError("no interface has that address")

    monkeypatch.setattr(WeightReceiver, "receive", refuses)
    async with asyncio.timeout(DEADLINE_S), Away(1) as away:
        sends = spreader()
        with pytest.raises(EngineError, match="no interface has that address"):
            await sends.spread(times(1), away.remotes)
        assert tried == [1, 1]
        await sends.close()


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the numbers of the groups that the trainer has left."""
    found: list[str] = []
    close = WeightTransferGroup.close

    def leave(self: WeightTransferGroup) -> None:
        if self.meeting.rank == 0:
            found.append(self.meeting.name.rpartition("/")[2])
        close(self)

    monkeypatch.setattr(WeightTransferGroup, "close", leave)
    return found


async def test_a_group_is_left_when_it_is_of_no_use_any_more(left: list[str]) -> None:
    async with asyncio.timeout(DEADLINE_S), Away(2) as away:
        sends = spreader()
        await sends.spread(times(1), away.remotes)
        await sends.load(away.remotes[1], SharedWeights(times(2)), 2)
        assert left == ["2"], "it was of one engine, for once"
        await sends.spread(times(3), away.remotes[:1])
        assert left == ["2", "1"], "there are other engines now"
        await sends.close()
        assert left == ["2", "1", "3"]


@pytest.mark.parametrize("versions", [1, 2], ids=["new group", "kept group"])
async def test_a_group_that_an_engine_breaks_when_all_is_sent_is_left(
    monkeypatch: pytest.MonkeyPatch, left: list[str], versions: int
) -> None:
    receive, failing = WeightReceiver.receive, [versions]
    send, sent, all_sent = WeightTransferGroup.send, list[WeightTransferGroup](), threading.Event()

    def noted(self: WeightTransferGroup, row: SafetensorsBytes, **how: Any) -> None:
        send(self, row, **how)
        sent.append(self)
        if len(sent) == versions:
            all_sent.set()

    async def fails(self: WeightReceiver, meeting: GroupRendezvous, **sizes: Any) -> Any:
        found = await receive(self, meeting, **sizes)
        failing[0] -= 1
        if failing[0] == 0:
            assert await asyncio.to_thread(all_sent.wait, DEADLINE_S)
            raise EngineError("no room")
        return found

    monkeypatch.setattr(WeightReceiver, "receive", fails)
    monkeypatch.setattr(WeightTransferGroup, "send", noted)
    async with asyncio.timeout(DEADLINE_S), Away(1) as away:
        sends = spreader()
        for version in range(1, versions + 1):
            copy = await sends.spread(times(version), away.remotes)
            await sends.load(away.remotes[0], copy, version)
        assert away.has(0) == (versions, True)
        assert sends.groups == 2
        assert left == ["1"]
        await sends.close()


# --- engines in processes -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> EngineSpec:
    model = shared("qwen3")
    folder = tmp_path_factory.mktemp("policy")
    return recipe_in(folder, model, context_tokens=CONTEXT_TOKENS)


@pytest.fixture(autouse=True)
def no_engine_is_left() -> Iterator[None]:
    yield
    assert not [line for line in child_commands() if "agentrl.engine.remote" in line]


def request(number: int, tokens: int = 8) -> GenerateRequest:
    return GenerateRequest(
        id=f"a/{number}/0/0", prompt=prompt_of(20, number), max_new_tokens=tokens, seed=number
    )


async def told_here(weights: int, version: int, number: int) -> Completion:
    async with LocalEngine(
        tiny("qwen3", weights), slots=1, context_tokens=CONTEXT_TOKENS, version=version
    ) as local:
        return await local.generate(request(number))


def strikes(monkeypatch: pytest.MonkeyPatch, pid: int | None, signal_: int) -> list[int]:
    """Have a process be sent a signal once, when some of the next weights are on their way."""
    struck: list[int] = []
    copy_to = SafetensorsBytes.copy_to

    def strike(self: SafetensorsBytes, target: Tensor, *, start: int) -> None:
        assert pid is not None
        copy_to(self, target, start=start)
        if start and not struck:
            struck.append(start)
            os.kill(pid, signal_)

    monkeypatch.setattr(SafetensorsBytes, "copy_to", strike)
    return struck


@pytest.mark.nightly
async def test_an_engine_that_stops_or_is_killed_in_the_middle_is_replaced(
    recipe: EngineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stops, which its silence shows; later the other is killed, which breaks the group at
    once: both long before the deadline. Then the weights go round one engine after the other."""
    monkeypatch.setattr(process_module, "STOP_S", 1.0)  # one that is stopped ends by no other way
    engines = [ProcessEngine(recipe, max_restarts=3, silence_s=30.0) for _ in range(2)]
    sends = spreader(bucket_bytes=20_000, deadline_s=600.0)
    async with asyncio.timeout(DEADLINE_S), EngineReplicas(engines, sends) as both:

        async def have(weights: int, version: int) -> None:
            want = await told_here(weights, version, version)
            assert [await engine.generate(request(version)) for engine in engines] == [want] * 2

        await both.load(tiny("qwen3", 1).state_dict(), 5)
        await have(1, 5)
        for version, index, kind in ((6, 0, signal.SIGSTOP), (7, 1, signal.SIGKILL)):
            pid = engines[index].pid
            struck = strikes(monkeypatch, pid, kind)
            await both.load(tiny("qwen3", version % 2).state_dict(), version)
            assert struck
            assert engines[index].pid != pid
            await have(version % 2, version)
        groups = sends.groups
        await both.roll(await both.prepare(tiny("qwen3", 2).state_dict()), 8)
        await have(2, 8)
        assert sends.groups == groups + 1, "of all, and nobody is sent anything alone"
        assert both.version == 8


async def test_the_contract_holds_and_so_do_proofs() -> None:
    weights = tiny("qwen3", 1).state_dict()
    local = LocalEngine(shared("qwen3"), slots=4, context_tokens=CONTEXT_TOKENS)
    sends = spreader(bucket_bytes=2**20)
    async with asyncio.timeout(DEADLINE_S), local, EngineServer(local, key=KEY) as server:
        port = await server.listen("127.0.0.1", 0)
        engine = AddressEngine(f"127.0.0.1:{port}", key=KEY)
        async with EngineReplicas([engine], sends) as alone:
            await alone.load(weights, 5)
            assert await alone.generate(request(0)) == await told_here(1, 5, 0)
            proof = WeightCheck(
                token_ids=(3, 4, 5),
                logprobs=(-1.0, -2.0),
                max_gap=100.0,
                deadline_s=60.0,
            )
            await alone.load(CheckedWeights(weights, proof), 10)
            groups = sends.groups
            wrong = replace(proof, logprobs=(-100.0, -100.0), max_gap=1.0)
            with pytest.raises(WeightsUnproven, match="did not load version 11"):
                await alone.load(CheckedWeights(tiny("qwen3", 2).state_dict(), wrong), 11)
            assert (engine.went_back, alone.version) == (1, 10)
            assert sends.groups > groups, "what it went back to was sent again"
            assert await alone.generate(request(1)) == await told_here(1, 10, 1)
            await alone.load(weights, 12)  # what is open from here on is no leak of the check's
            await check_engine(
                alone, vocab_size=VOCABULARY, context_tokens=CONTEXT_TOKENS, weights=weights
            )


# --- configs --------------------------------------------------------------------------------------


def problems(cluster: dict[str, Any] | None = None, **engine: Any) -> list[str]:
    (rule,) = (rule for rule in RULES if rule.__name__ == "_check_engines")
    config = RunConfig.model_validate(
        {"env": {"id": "a/B-v0"}, "engine": engine, "cluster": cluster or {}}
    )
    return [*rule(config)]


def test_what_does_not_go_together_is_refused() -> None:
    (said,) = problems(broadcast={})
    assert said.startswith("engine.broadcast is set, but the engine runs in this process")
    (said,) = problems({"kind": "ray"}, broadcast={"backend": "nccl"}, processes=2)
    assert "cluster.engine_gpus is 0" in said
    assert not problems(
        {"kind": "ray", "engine_gpus": 1}, broadcast={"backend": "nccl"}, processes=2
    )
    assert not problems(broadcast={}, processes=2)
    # Whether this machine has the GPUs is seen when the engines are made.
    assert not problems(broadcast={"backend": "nccl"}, processes=2)
