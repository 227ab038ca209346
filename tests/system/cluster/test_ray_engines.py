"""Engines in actors of Ray, for real: on two simulated machines, killed, moved and given weights.

A cluster and an engine take seconds to start, so that a test here does several things with one.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.cluster.engines.host import EngineAddressInfo, EngineHost
from agentrl.cluster.engines.replicas import RayEngineHost
from agentrl.cluster.engines.weight_cache import NodeWeightCache
from agentrl.cluster.env_worker import RemoteFailure
from agentrl.config.cluster import ClusterSection
from agentrl.engine.local import LocalEngine
from agentrl.engine.remote import EngineReplica, connect
from agentrl.engine.remote.client import RemoteEngine
from agentrl.engine.remote.shared_weights import SharedWeights
from agentrl.engine.remote.weight_broadcast import WeightBroadcaster
from agentrl.engine.spec import EngineSpec
from agentrl.engine.weights import Weights
from agentrl.errors import ConfigError, EngineError, EngineLost
from agentrl.policy import Completion, GenerateRequest
from agentrl.testing.engine import check_engine
from agentrl.weight_sync.adapters import AdapterWeights
from tests.conftest import child_commands
from tests.support.adapters import adapted, base_of
from tests.support.engine_models import VOCABULARY, prompt_of, recipe_in, shared, tiny
from tests.support.processes import parent_of

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(1200),
    # Ray's own: what it starts is ended by it, not by us.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings(
        "ignore::FutureWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]
CONTEXT_TOKENS = 1024
SOON_S = 1000.0


def section(**keys: Any) -> ClusterSection:
    return ClusterSection.model_validate({"kind": "ray", "start_s": SOON_S, **keys})


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> EngineSpec:
    model = shared("qwen3")
    folder = tmp_path_factory.mktemp("policy")
    return recipe_in(folder, model, context_tokens=CONTEXT_TOKENS)


@pytest.fixture(autouse=True)
def ray_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let actors find what tests find."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    yield
    import ray

    ray.shutdown()
    assert not [line for line in child_commands() if "agentrl.engine.remote" in line]


def request(number: int, tokens: int = 8) -> GenerateRequest:
    return GenerateRequest(
        id=f"a/{number}/0/0", prompt=prompt_of(20, number), max_new_tokens=tokens, seed=number
    )


async def of_each(replicas: Any, number: int) -> list[Completion]:
    """Ask every engine for the same, and again where the first answer is that it has died."""

    async def ask(engine: Any) -> Completion:
        try:
            return await engine.generate(request(number))
        except EngineError:
            return await engine.generate(request(number))

    return await asyncio.gather(*(ask(engine) for engine in replicas.engines))


async def told_here(weights: int | AdapterWeights, version: int, number: int) -> Completion:
    """Return what a model of this seed, or the first one with such weights, says here."""
    model = tiny("qwen3", weights) if isinstance(weights, int) else tiny("qwen3")
    async with LocalEngine(model, slots=1, context_tokens=CONTEXT_TOKENS, version=version) as local:
        if isinstance(weights, AdapterWeights):
            await local.load(weights, version)
        return await local.generate(request(number))


def remote_of(engine: Any) -> Any:
    return served(engine).engine


@pytest.mark.nightly
async def test_engines_on_two_machines_die_move_and_keep_their_weights(
    recipe: EngineSpec,
) -> None:
    import ray
    from ray.cluster_utils import Cluster

    from agentrl.cluster.engines.replicas import RayEngineReplicas

    cluster: Any = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    try:
        away = cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        replicas = RayEngineReplicas(
            recipe,
            section(engine_strategy="SPREAD"),
            count=2,
            python=None,
            start_s=SOON_S,
            max_restarts=5,
        )
        async with asyncio.timeout(SOON_S), replicas:
            here, there = one_here_one_there(replicas)
            freight = here.freight
            await replicas.load(tiny("qwen3", 1).state_dict(), 5)
            assert freight.sendings == 1, "to the other machine, and not to this one"
            assert await of_each(replicas, 0) == [await told_here(1, 5, 0)] * 2

            # There an actor dies, with what it carries; here a process, and its actor lives.
            running = [asyncio.create_task(e.generate(request(1, 900))) for e in (here, there)]
            await asyncio.sleep(0)
            os.kill(parent_of(served(there).opened.pid), signal.SIGKILL)
            os.kill(served(here).opened.pid, signal.SIGKILL)
            ends = await asyncio.gather(*running, return_exceptions=True)
            assert [type(end) for end in ends] == [EngineLost, EngineLost]
            assert await of_each(replicas, 2) == [await told_here(1, 5, 2)] * 2
            assert freight.sendings == 2

            # Its actor is gone, which its process learns a moment later: it is still connected.
            held = served(there).opened.pid
            os.kill(held, signal.SIGSTOP)
            try:
                ray.kill(served(there).actor)
                await replicas.load(tiny("qwen3", 2).state_dict(), 6)
            finally:
                with suppress(ProcessLookupError):
                    os.kill(held, signal.SIGCONT)
            assert await of_each(replicas, 3) == [await told_here(2, 6, 3)] * 2
            assert there._restarts_left == 3

            # The other machine dies, and another one comes.
            gone = served(there).opened.node
            cluster.remove_node(away)
            cluster.add_node(num_cpus=1)
            assert await of_each(replicas, 4) == [await told_here(2, 6, 4)] * 2
            assert served(there).opened.node not in (gone, served(here).opened.node)
            await replicas.load(tiny("qwen3", 1).state_dict(), 7)
            assert await of_each(replicas, 5) == [await told_here(1, 7, 5)] * 2

            # Of adapters the base goes over once, to each engine.
            base = base_of(tiny("qwen3", 3))
            for version in (8, 9):
                await replicas.load(adapted(base, version), version)
                told = await told_here(adapted(base, version), version, 6)
                assert await of_each(replicas, 6) == [told] * 2
            assert [engine.base for engine in map(remote_of, replicas.engines)] == [base.id] * 2
            assert replicas.version == 9
        assert ray.is_initialized(), "what was there before is left as it was"
        assert {room["state"] for room in rooms()} == {"REMOVED"}, "the room is given back"
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.nightly
async def test_weights_are_broadcast_to_engines_on_two_machines(recipe: EngineSpec) -> None:
    import ray
    from ray.cluster_utils import Cluster

    from agentrl.cluster.engines.replicas import RayEngineReplicas

    cluster: Any = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    try:
        cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        spreader = WeightBroadcaster(backend="gloo", bucket_bytes=50_000, deadline_s=SOON_S)
        replicas = RayEngineReplicas(
            recipe,
            section(engine_strategy="SPREAD"),
            count=2,
            python=None,
            start_s=SOON_S,
            max_restarts=5,
            spreader=spreader,
        )
        async with asyncio.timeout(SOON_S), replicas:
            here, there = one_here_one_there(replicas)
            for version in (5, 6):
                await replicas.load(tiny("qwen3", version % 2).state_dict(), version)
                want = await told_here(version % 2, version, version)
                assert await of_each(replicas, version) == [want] * 2
            assert spreader.groups == 1
            # A replacement is sent them alone; the next version comes to both again.
            os.kill(served(there).opened.pid, signal.SIGKILL)
            assert await of_each(replicas, 7) == [await told_here(0, 6, 7)] * 2
            assert spreader.groups == 2
            await replicas.load(tiny("qwen3", 1).state_dict(), 8)
            assert await of_each(replicas, 8) == [await told_here(1, 8, 8)] * 2
            assert spreader.groups == 3
            assert here.freight.sendings == 0, "Ray's object store carries none of them"
    finally:
        ray.shutdown()
        cluster.shutdown()


def served(engine: Any) -> Any:
    return engine.served


def one_here_one_there(replicas: Any) -> list[Any]:
    from agentrl.cluster.engines.replicas import find_address

    home = find_address()[1]
    engines = sorted(replicas.engines, key=lambda engine: served(engine).opened.node != home)
    assert [served(engine).opened.node == home for engine in engines] == [True, False]
    return engines


def rooms() -> list[dict[str, Any]]:
    from ray.util import placement_group_table

    return [*placement_group_table().values()]


async def test_the_contract_holds_and_what_cannot_be_had_says_why(recipe: EngineSpec) -> None:
    import ray

    from agentrl.cluster.engines.replicas import RayEngineReplicas

    def replicas(made: EngineSpec, python: str | None = None, **keys: Any) -> RayEngineReplicas:
        return RayEngineReplicas(
            made, section(**keys), count=1, python=python, start_s=SOON_S, max_restarts=1
        )

    options: Any = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
    ray.init(address="local", num_cpus=1, **options)
    weights = tiny("qwen3", 1).state_dict()
    async with asyncio.timeout(SOON_S):
        async with replicas(recipe) as engine:
            await check_engine(
                engine, vocab_size=VOCABULARY, context_tokens=CONTEXT_TOKENS, weights=weights
            )
        with pytest.raises(ConfigError, match=r"1 GPUs each \(PACK\).*has 1 CPUs.*and 0 GPUs"):
            async with replicas(recipe, engine_gpus=1, start_s=2):
                pass
        with pytest.raises(ConfigError, match=r"/no/python cannot be started.*engine\.python"):
            async with replicas(recipe, python="/no/python"):
                pass


def files_of(folder: Path) -> dict[str, Any]:
    return {
        file.name: np.frombuffer(file.read_bytes(), dtype=np.uint8) for file in folder.iterdir()
    }


async def test_a_folder_that_a_machine_lacks_is_sent(recipe: EngineSpec) -> None:
    """As an actor would, in this process."""

    def here() -> tuple[str, str]:
        return "127.0.0.1", "here"

    host = EngineHost(
        replace(recipe, folder="/elsewhere/policy"), here, python=None, start_s=SOON_S
    )
    assert host.lacks_folder()
    async with asyncio.timeout(SOON_S):
        refused = await host.open()
        assert isinstance(refused, RemoteFailure)
        assert isinstance(refused.error(), ConfigError)
        host.unpack(files_of(Path(recipe.folder)))
        assert not host.lacks_folder()
        opened = await host.open()
        assert isinstance(opened, EngineAddressInfo)
        assert host.lacks_folder(), "it is read and gone"
        try:
            with pytest.raises(ConfigError, match="refused the connection"):
                await connect(opened.address, key=b"another")
            async with await connect(opened.address, key=opened.key) as engine:
                told = await engine.generate(request(0))
        finally:
            await host.close()
        async with LocalEngine(shared("qwen3"), slots=1, context_tokens=CONTEXT_TOKENS) as local:
            assert told == await local.generate(request(0))


class Stub:
    """Serves an engine that nobody asks."""

    name = "stub"
    is_open = True
    engine = None

    async def load(self, weights: Any, version: int) -> None: ...

    async def read_output(self) -> str:
        return ""

    async def close(self) -> None: ...


class Dying(EngineReplica):
    """Dies so often while it starts."""

    def __init__(self, deaths: int, *, max_restarts: int) -> None:
        super().__init__(max_restarts=max_restarts)
        self.deaths = deaths
        self.starts = 0
        self.may_start = asyncio.Event()
        self.may_start.set()

    async def start(self) -> Any:
        self.starts += 1
        await self.may_start.wait()
        if self.starts <= self.deaths:
            raise EngineLost("the machine is gone")
        return Stub()


async def test_who_waits_for_a_replacement_is_let_go_by_a_pause_or_an_abort() -> None:
    """A gate closes in a minute, and an engine may take longer to start."""
    engine = Dying(0, max_restarts=0)
    engine.may_start.clear()
    waiting = [asyncio.create_task(engine.generate(request(n))) for n in range(3)]
    await asyncio.sleep(0)
    await engine.abort("a/0/0/0")
    ends = [await waiting[0]]
    assert not waiting[1].done()
    await engine.pause()
    ends += await asyncio.gather(*waiting[1:])
    assert [(end.finish, end.token_ids) for end in ends] == [("aborted", ())] * 3
    # Who asks from here on is held back, as ever.
    later = asyncio.create_task(engine.generate(request(4)))
    await asyncio.sleep(0)
    assert not later.done()
    later.cancel()
    await asyncio.gather(later, return_exceptions=True)
    await engine.close()


async def test_an_engine_that_dies_while_it_starts_is_started_again() -> None:
    async with Dying(2, max_restarts=2) as engine:
        assert engine.starts == 3
    engine = Dying(3, max_restarts=2)
    with pytest.raises(EngineLost):
        async with engine:
            pass
    assert engine.starts == 3


class Carrier:
    """An actor of Ray's, without Ray: `remote` is the call, and awaiting it the answer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lives = True
        self.keep = self

    async def remote(self, reference: Any) -> str:
        await asyncio.sleep(0)
        if not self.lives:
            raise EngineLost(f"{self.name} is gone")
        return f"/{self.name}"


def stored(weights: SharedWeights) -> list[str]:
    """Put weights where Ray would."""
    return ["reference"]


async def test_weights_come_to_a_machine_once_however_many_engines_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def answer(reference: Any) -> Any:
        return await reference

    monkeypatch.setattr("agentrl.cluster.engines.weight_cache._store_weights", stored)
    freight = NodeWeightCache(home="home", folder=Path("/none"), await_answer=answer)
    weights = SharedWeights(tiny("qwen3", 1).state_dict())
    one, two, three = (Carrier(name) for name in ("one", "two", "three"))

    async def paths(*asked: tuple[str, Carrier]) -> list[str]:
        found = (freight.path(weights, node=node, actor=actor) for node, actor in asked)
        return [str(path) for path in await asyncio.gather(*found)]

    assert await paths(("home", one)) == [str(weights.path)]
    assert await paths(("a", one), ("a", two), ("b", three)) == ["/one", "/one", "/three"]
    assert freight.sendings == 2
    # Who carries is gone before it has them: who asked for itself fails, the next one carries.
    weights = SharedWeights(tiny("qwen3", 2).state_dict())
    one.lives = False
    first, second = await asyncio.gather(
        freight.path(weights, node="a", actor=one),
        freight.path(weights, node="a", actor=two),
        return_exceptions=True,
    )
    assert isinstance(first, EngineLost)
    assert str(second) == "/two"
    assert await paths(("a", three)) == ["/two"]
    freight.forget("a", one)
    assert freight.carrier("a") is two, "only who carries is forgotten"
    freight.forget("a", two)
    assert await paths(("a", three)) == ["/three"]


class Bereft(RemoteEngine):
    """The process of an engine whose actor dies before it has read the weights that it keeps."""

    def __init__(self, actor: Carrier) -> None:
        self.actor = actor

    @property
    def is_open(self) -> bool:
        return True

    @property
    def base(self) -> None:
        return None

    async def load(self, weights: Weights, version: int) -> None:
        self.actor.lives = False
        raise ValueError(f"no such file: {weights}")


async def test_weights_that_went_with_the_actor_are_its_loss_and_no_fault_of_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agentrl.cluster.engines.weight_cache._store_weights", stored)
    freight = NodeWeightCache(
        home="home", folder=Path("/none"), await_answer=lambda reference: reference
    )
    actor, weights = Carrier("one"), SharedWeights(tiny("qwen3", 1).state_dict())
    served = RayEngineHost(
        actor, EngineAddressInfo("there:1", b"", "there", 1), Bereft(actor), freight
    )
    with pytest.raises(EngineLost):
        await served.load(weights, 1)
    assert not served.is_open, "it is replaced, although its process can still be reached"


async def test_the_newest_weights_and_those_before_are_kept(recipe: EngineSpec) -> None:
    host = EngineHost(recipe, lambda: ("127.0.0.1", "here"), python=None, start_s=1)
    paths = [Path(host.keep(np.frombuffer(bytes([n] * 3), dtype=np.uint8))) for n in range(3)]
    assert [path.read_bytes() for path in paths[1:]] == [b"\x01\x01\x01", b"\x02\x02\x02"]
    assert not paths[0].exists() or paths[0].read_bytes() != b"\x00\x00\x00"
