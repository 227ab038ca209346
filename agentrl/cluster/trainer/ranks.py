"""The way from the leading rank to the others, which are actors of Ray."""

import threading
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, cast

from agentrl.cluster.connection import connect_ray, first_line
from agentrl.cluster.env_worker import RemoteFailure
from agentrl.cluster.interface import listen_at
from agentrl.cluster.placement import PlacementRequest
from agentrl.cluster.trainer.host import RankHost, RankInfo
from agentrl.errors import ConfigError, LearnError
from agentrl.learn.sharded.rank_link import RankCommand
from agentrl.learn.sharded.rank_spec import RankSpec, device_of, leave

if TYPE_CHECKING:
    from agentrl.config.cluster import ClusterSection

BLAME_S = 20.0
"""Seconds to wait for Ray to see an actor as dead after something broke."""
END_S = 30.0
"""Seconds in which a call that waits for an actor has to see that it was ended."""


class RayRankLauncher:
    """Launcher of the other ranks, wherever Ray has room."""

    def __init__(self, section: "ClusterSection") -> None:
        self._section = section

    @property
    def host(self) -> str:
        return find_address()

    def start(self, setup: RankSpec) -> "RayRanks":
        return RayRanks(self._section, followers(setup, gpus=self._section.trainer_gpus))


def followers(setup: RankSpec, *, gpus: int) -> list[RankSpec]:
    """Return the setups of the other ranks, on the kind of device that the leading rank has.

    An actor sees the GPU it was given as its first. Raises `ConfigError` where they would have
    another kind of device than the leading rank.
    """
    config = setup.run
    kind = device_of(config, setup.local_rank).partition(":")[0]
    if (kind == "cuda") != (gpus > 0):
        way = "set it to 1" if kind == "cuda" else "remove it, or set policy.device: cuda"
        raise ConfigError(
            f"cluster.trainer_gpus is {gpus}, but the first rank of the trainer, which is this "
            f"process, computes on {kind}, and all ranks need the same kind of device: {way}"
        )
    # Not `auto`, which another machine may understand differently.
    values = {**setup.config, "policy": {**setup.config["policy"], "device": kind}}
    spec = replace(setup, config=values)
    return [spec.for_rank(rank=rank, local_rank=0) for rank in range(1, setup.size)]


class RayRanks:
    """A `RankLink` to actors. Each ends with it, with this process, or with the first failure."""

    def __init__(self, section: "ClusterSection", setups: Sequence[RankSpec]) -> None:
        """Start the actors and wait until each has its model; raises what keeps one from it."""
        self._members: list[_Member] = []
        self._stack = ExitStack()
        try:
            self._stack.enter_context(connect_ray(section))
            self._stack.enter_context(listen_at(find_address()))
            room = self._stack.enter_context(_hold_room(section, len(setups)))
            for index, setup in enumerate(setups):
                self._members.append(_Member(setup, section, room, index))
            deadline = time.monotonic() + setups[0].run.learn.devices.start_s
            for member in self._members:
                member.wait_loaded(deadline)
            for member in self._members:
                member.join()
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Return the ids of the actors' processes, by rank."""
        return [member.pid for member in self._members]

    def tell(self, command: RankCommand) -> None:
        """Let every actor do this next.

        It is in Ray's object store once on each machine: arrays are views of it there.
        """
        import ray

        command_ref = ray.put(command)
        for member in self._members:
            member.run(command_ref)

    def blame(self) -> str | None:
        """Return which rank has ended and why: one that died before those that only failed.

        What dies breaks the others' connections, and they may tell so before Ray sees the death.
        """
        deadline = time.monotonic() + BLAME_S
        while True:
            ended = [member for member in self._members if member.ended is not None]
            late = time.monotonic() > deadline
            if died := [member for member in ended if member.died]:
                return died[0].ended
            if late:
                return min(ended, key=lambda one: one.ended_s).ended if ended else None
            time.sleep(0.05)

    def close(self) -> None:
        """End the actors and give their room back. Idempotent."""
        members, self._members = self._members, []
        for member in members:
            member.end()
        for member in members:
            member.wait_ended(END_S)
        self._stack.close()
        leave()


class _Member:
    """An actor, and a thread that waits for its answers in turn."""

    def __init__(self, setup: RankSpec, section: "ClusterSection", room: Any, index: int) -> None:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self.rank = setup.rank
        self.pid = 0
        self.ended: str | None = None
        """Which rank, and why it has ended; None while it lives."""
        self.died = False
        """Whether nothing of it was left that could say why."""
        self.ended_s = 0.0
        self._address = ""
        actor_class: Any = ray.remote(RankHost)
        self._actor = actor_class.options(
            num_cpus=section.trainer_cpus,
            num_gpus=section.trainer_gpus,
            max_restarts=0,  # a rank alone has no state to go on from: the run is resumed
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=room, placement_group_bundle_index=index
            ),
        ).remote(setup, find_address)
        self._loading = self._actor.load.remote()
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._thread = threading.Thread(
            target=self._listen, name=f"agentrl-rank-{self.rank}", daemon=True
        )

    def wait_loaded(self, deadline: float) -> None:
        """Wait until it can join; `LearnError` where it cannot be in time."""
        import ray
        from ray.exceptions import GetTimeoutError, RayError

        try:
            result = ray.get(self._loading, timeout=max(0.0, deadline - time.monotonic()))
        except GetTimeoutError:
            raise LearnError(
                f"rank {self.rank} of the trainer, an actor, was not ready in time "
                "(learn.devices.start_s)"
            ) from None
        except RayError as error:
            raise LearnError(
                f"rank {self.rank} of the trainer, an actor, ended before it was ready: "
                f"{first_line(error)}"
            ) from error
        if isinstance(result, RemoteFailure):
            raise result.error()
        assert isinstance(result, RankInfo)
        self._address, self.pid = result.address, result.pid

    def join(self) -> None:
        self._thread.start()
        self._answers.put(self._actor.join.remote())

    def run(self, told: Any) -> None:
        self._answers.put(self._actor.run.remote(told))

    def end(self) -> None:
        import ray

        self._answers.put(None)
        ray.kill(self._actor, no_restart=True)

    def wait_ended(self, within_s: float) -> None:
        if self._thread.is_alive():
            self._thread.join(within_s)

    def _listen(self) -> None:
        import ray
        from ray.exceptions import RayError

        while (answer := self._answers.get()) is not None:
            try:
                trace = cast(Any, ray.get(answer))
            except RayError as error:
                self._note_end(first_line(error), died=True)
                return
            if trace is not None:
                self._note_end(f"its output: {trace}", died=False)
                # The others wait for it, and notice that it is gone.
                ray.kill(self._actor, no_restart=True)
                return

    def _note_end(self, why: str, *, died: bool) -> None:
        self.died, self.ended_s = died, time.monotonic()
        self.ended = (
            f"rank {self.rank} of the trainer, the actor of process {self.pid} on {self._address}, "
            f"has ended: {why}"
        )


def find_address() -> str:
    """Return the address of this machine in the cluster."""
    from ray.util import get_node_ip_address

    return get_node_ip_address()


@contextmanager
def _hold_room(section: "ClusterSection", ranks: int) -> Generator[Any]:
    import ray
    from ray.exceptions import RayError
    from ray.util.placement_group import remove_placement_group

    request = PlacementRequest(
        what="ranks of the trainer",
        count=ranks,
        cpus=section.trainer_cpus,
        gpus=section.trainer_gpus,
        strategy=section.trainer_strategy,
        keys="learn.devices.count, cluster.trainer_cpus or cluster.trainer_gpus",
    )
    room = request.ask()
    try:
        try:
            there, _ = ray.wait([room.ready()], timeout=section.start_s)
        except RayError as error:
            raise ConfigError(f"Ray stopped while ranks waited for resources: {error}") from error
        if not there:
            raise request.refusal(within_s=section.start_s)
        yield room
    finally:
        remove_placement_group(room)
