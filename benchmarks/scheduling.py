"""The three modes in virtual time: the real gate on simulated engines and environments.

Long-tailed lengths (lognormal; 10 % ten times longer), an agentic trace with straggling tools,
failures at 0, 1 and 5 %, 64 to 10,000 environments. A step's batch is half of the environments,
the engine decodes a quarter of them at once, and the trainer takes 60 % of the time that the engine
needs for a batch when it never waits: the trainer is no bottleneck, and in `sync` and `partial`
nothing is generated while it works. On APRIL's setting (32 groups of 8, 64 in flight, lengths
without tools) only rollouts are timed: the trainer takes none. The ideal is work divided by
capacity. And what one decision of the scheduler costs in real CPU time.
"""

from collections.abc import Iterator
from functools import partial
from itertools import cycle

from rich.table import Table

from agentrl.metrics.latency_trace import LatencyTrace
from agentrl.rollout.scheduler.member import QueuedRollout
from agentrl.rollout.scheduler.policy import SchedulerPolicy
from agentrl.rollout.scheduler.queue import RolloutQueue
from agentrl.simulate.engine import EngineSpeed
from agentrl.simulate.study import StudyResult, StudySetting, compare
from agentrl.simulate.synthetic import agentic, bimodal, lognormal
from agentrl.trajectory import Failed, Finished, Leaf
from benchmarks.harness import Benchmark, Contender, Run

GROUP = 8
TRAIN_SHARE = 0.6
TOKEN_S = 0.03
"""Of a decode step with all slots taken; engines are added as environments are."""


def speed(slots: int) -> EngineSpeed:
    """Return an engine, or several as one, that decodes so many requests at once."""
    return EngineSpeed(slots=slots, step_s=TOKEN_S / 3, slot_s=TOKEN_S * 2 / 3 / slots)


def setting(trace: LatencyTrace, environments: int, failures: float, *, steps: int) -> StudySetting:
    """Return a run on so many environments."""
    engine = speed(environments // 4)
    batch = environments // 2 // GROUP
    policy = SchedulerPolicy(
        groups_per_step=batch,
        group_size=GROUP,
        concurrency=environments,
        over_provision=2.0,
        max_staleness=3,
        min_valid=1,
    )
    train_s = TRAIN_SHARE * batch * GROUP * trace.tokens_mean / engine.tokens_per_s
    return StudySetting(
        trace=trace,
        policy=policy,
        speed=engine,
        train_s=train_s,
        steps=steps,
        warm_steps=min(3, steps // 2),
        failure_rate=failures,
    )


def aprils(trace: LatencyTrace, *, steps: int) -> StudySetting:
    """Return APRIL's setting: 32 groups of 8, twice as many in flight, rollouts alone."""
    policy = SchedulerPolicy(
        groups_per_step=32, group_size=8, concurrency=512, over_provision=2.0, max_staleness=3
    )
    return StudySetting(
        trace=trace, policy=policy, speed=speed(256), train_s=0.0, steps=steps, warm_steps=3
    )


def settings(*, quick: bool) -> Iterator[tuple[str, StudySetting]]:
    """Yield what is played, by name."""
    steps = 6 if quick else 14
    traces = [lognormal(), bimodal(), agentic()]
    for trace in traces[:2]:
        yield f"APRIL, {trace.name}", aprils(trace, steps=steps)
    for trace in traces:
        count = 32 if quick else 512
        for failures in (0.05,) if quick else (0.0, 0.01, 0.05):
            yield (
                f"{trace.name}, {count} environments, {failures:.0%} fail",
                setting(trace, count, failures, steps=steps),
            )
    for environments in (64,) if quick else (64, 2048, 10_000):
        few = 5 if environments > 2048 else steps
        yield (
            f"agentic, {environments} environments, 1% fail",
            setting(agentic(), environments, 0.01, steps=few),
        )


def table(rows: list[tuple[str, list[StudyResult]]]) -> Table:
    """Return every study as a line."""
    made = Table(title="in virtual time")
    for heading in ("setting", "mode", "traj/s", "x sync", "tokens/s, x sync", "of ideal"):
        made.add_column(heading)
    for heading in ("engine busy", "env busy", "age mean, max", "tokens/traj", "failed, retried"):
        made.add_column(heading)
    for name, studied in rows:
        sync = studied[0]
        for one in studied:
            made.add_row(
                name if one is sync else "",
                one.setting.policy.mode,
                f"{one.per_s:.3f}",
                f"{one.per_s / sync.per_s:.2f}",
                f"{one.tokens_per_s / sync.tokens_per_s:.2f}",
                f"{one.per_s / one.ideal_per_s:.0%}",
                f"{one.engine_busy:.1%}",
                f"{one.env_busy:.1%}",
                f"{one.age_mean:.2f}, {one.age_max}",
                f"{one.tokens / one.trajectories:.0f}",
                f"{one.failed}, {one.retried}",
            )
        made.add_row("", "ideal", f"{sync.ideal_per_s:.3f}", end_section=True)
    return made


def decisions(count: int, environments: int) -> Run:
    """Return a run of `count` ends of trajectories in a full `async` ledger, all that follows."""
    policy = SchedulerPolicy(
        mode="async",
        groups_per_step=environments // 2 // GROUP,
        group_size=GROUP,
        concurrency=environments,
        max_staleness=3,
        max_start_lag=4,
        max_age=4,
        when_old="restart",
        min_valid=1,
    )
    ledger = RolloutQueue(policy)
    live: list[QueuedRollout] = []

    def pump() -> None:
        while wanted := ledger.groups_to_open():
            ledger.open_groups([0] * wanted)
        while (member := ledger.start_next()) is not None:
            live.append(member)

    pump()
    fates = cycle([True] * 19 + [False])

    def play() -> float:
        version, place = ledger.state.version, 0
        for _ in range(count):
            place = (place * 7919 + 1) % len(live)
            live[place], live[-1] = live[-1], live[place]
            end_one(ledger, live.pop(), fails=not next(fates))
            ledger.wait_for_batch()
            if ledger.batch_is_ready():
                ledger.take()
                version += 1
                for member in ledger.publish(version):
                    ledger.restart(member)
                    live.remove(member)
            ledger.next_segment_is_due()
            pump()
        return float(count)

    return play


def end_one(ledger: RolloutQueue, member: QueuedRollout, *, fails: bool) -> None:
    """End a trajectory, and its group where that completes it."""
    ledger.note_version(member, member.born)
    outcome = Failed("env", "x") if fails else Finished(1.0)
    end = ledger.end_rollout(member, Leaf(node=None, outcome=outcome, sample=member.sample))
    if not end.again and end.group == "ready":
        group = ledger.group(member.group)
        assert group is not None
        ledger.accept(group)


def main() -> None:
    """Play, measure, print and write."""
    bench = Benchmark.from_command_line("scheduling", __doc__)
    rows: list[tuple[str, list[StudyResult]]] = []
    for name, one in settings(quick=bench.quick):
        rows.append((name, compare(one)))
        bench.console.print(f"played {name}", highlight=False)
    bench.console.width = max(bench.console.width, 180)
    bench.console.print(table(rows))
    for name, (sync, part, asyn) in rows:
        april = name.startswith("APRIL")
        bench.row(
            f"partial, {name}",
            part.per_s / sync.per_s,
            unit="x",
            peer="sync",
            goal=1.44 if april else None,
        )
        agents = name.startswith("agentic")
        bench.row(
            f"async, {name}",
            asyn.per_s / sync.per_s,
            unit="x",
            peer="sync",
            goal=2.5 if agents else None,
        )
        bench.row(
            f"engine busy in async, {name}",
            100 * asyn.engine_busy,
            unit="%",
            goal=95 if agents else None,
        )
    size = 1 if bench.quick else 5
    runs = bench.compare(
        {
            f"{count} environments": Contender(set_up=partial(decisions, 10_000 * size, count))
            for count in ((512,) if bench.quick else (512, 10_000))
        }
    )
    for name, own in runs.items():
        bench.cost(f"one decision, {name}", own, goal=50)
    bench.finish()


if __name__ == "__main__":
    main()
