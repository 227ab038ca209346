"""Virtual time: the clock, traces, the simulated engine's promises, recommendation, pictures."""

import asyncio
import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl.cli.app import app
from agentrl.errors import ConfigError
from agentrl.metrics.latency_trace import (
    FILE,
    TrajectoryCost,
    TurnCost,
    append_costs,
    cost_of,
    quantile,
    read_trace,
    trace_of,
    write_trace,
)
from agentrl.policy import Completion, GenerateRequest, Sampling
from agentrl.rollout.branching.entropy import EntropySignal
from agentrl.rollout.scheduler.policy import SchedulerPolicy
from agentrl.simulate import timeline
from agentrl.simulate.clock import run_virtual
from agentrl.simulate.engine import EngineSpeed, SimulatedEngine
from agentrl.simulate.recommend import SearchGrid, recommend, search
from agentrl.simulate.study import StudySetting, compare, ideal_per_s
from agentrl.simulate.synthetic import agentic, synthetic
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Leaf, Node, Tree

SMALL = StudySetting(
    trace=agentic(),
    policy=SchedulerPolicy(groups_per_step=4, group_size=4, concurrency=32, over_provision=2.0),
    speed=EngineSpeed(slots=16),
    steps=5,
    warm_steps=1,
)


def test_an_hour_passes_at_once_and_timers_keep_their_order() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        seen: list[float] = []
        for delay_s in (3600.0, 1.0, 60.0):
            loop.call_later(delay_s, lambda: seen.append(loop.time()))
        await asyncio.sleep(4000)
        return seen

    assert run_virtual(main()) == pytest.approx([1.0, 60.0, 3600.0])


def whole_reply(request: GenerateRequest) -> Completion:
    async def main() -> Completion:
        engine = SimulatedEngine(EngineSpeed(), tokens_left=lambda request: 99)
        return await engine.generate(request)

    return run_virtual(main())


PROBED = GenerateRequest(
    id="a/0/0", prompt=(1,) * 5, max_new_tokens=20, seed=3, top_logprobs=99, entropies=True
)


def test_log_probs_alternatives_and_entropies_are_of_one_distribution() -> None:
    """Mutants seen caught: an entropy of the wrong sign or base, alternatives least likely first,
    more of them than asked for, one distribution for all places, a continued request with others.
    """
    reply = whole_reply(PROBED)
    for token, logprob, top, entropy in zip(
        reply.token_ids, reply.logprobs, reply.top_logprobs, reply.entropies, strict=True
    ):
        chances = [math.exp(x) for _, x in top]
        assert sum(chances) == pytest.approx(1)
        assert chances == sorted(chances, reverse=True)
        assert dict(top)[token] == logprob
        assert entropy == pytest.approx(-sum(p * math.log(p) for p in chances))
        (probe,) = [EntropySignal(vocabulary=100).measure([[x for _, x in top]])]
        assert probe is not None
        assert probe.lower - 1e-9 <= entropy <= probe.upper + 1e-9
    assert len({round(entropy, 6) for entropy in reply.entropies}) > 3
    few = whole_reply(replace(PROBED, top_logprobs=2)).top_logprobs
    assert few == tuple(row[:2] for row in reply.top_logprobs)
    later = whole_reply(replace(PROBED, prompt=(1,) * 8, max_new_tokens=17))
    assert later.top_logprobs == reply.top_logprobs[3:]
    assert whole_reply(replace(PROBED, seed=4)).entropies != reply.entropies


def test_what_nobody_asked_for_is_not_reported() -> None:
    reply = whole_reply(replace(PROBED, top_logprobs=0, entropies=False))
    assert (reply.top_logprobs, reply.entropies) == ((), ())
    greedy = whole_reply(replace(PROBED, sampling=Sampling(temperature=0.0)))
    assert {*greedy.logprobs, *greedy.entropies} == {0.0}
    assert {*greedy.top_logprobs} == {((1, 0.0),)}


def test_a_decode_step_is_shared_by_all_and_slots_are_bounded() -> None:
    """Two slots at 1 s + 0.5 s per request: 4 and 8 tokens, and a third one that waits."""
    speed = EngineSpeed(slots=2, step_s=1.0, slot_s=0.5, prefill_tokens_per_step=10**9)

    async def main() -> list[float]:
        engine = SimulatedEngine(speed, tokens_left=lambda request: request.seed)

        async def one(tokens: int) -> float:
            request = GenerateRequest(
                id=f"{tokens}/0/0", prompt=(1,), max_new_tokens=99, seed=tokens
            )
            await engine.generate(request)
            return asyncio.get_running_loop().time()

        times = await asyncio.gather(one(4), one(8), one(6))
        engine.advance()
        # 8 + 8 + 4 s: 18 tokens, of which two at a time for 8 s and 8 s, alone for the rest.
        assert engine.busy_s == pytest.approx(16 + 3 / 1.5)
        return list(times)

    assert run_virtual(main()) == pytest.approx([8.0, 16.0, 19.0])


def tree_with(outcome: Finished | Failed) -> tuple[Tree, Leaf]:
    tree = Tree(Task(prompt="x"))
    at = tree.add(Node(parent=None, source="prompt", token_ids=(1,) * 5, turn=0))
    for turn, (sampled, reply) in enumerate([(3, 2), (4, 0)]):
        tokens = (1,) * sampled
        at = tree.add(
            Node(
                parent=at, source="sampled", token_ids=tokens, turn=turn, seconds=2.0,
                logprobs=(0.0,) * sampled, versions=(0,) * sampled,
            )
        )  # fmt: skip
        if reply:
            at = tree.add(
                Node(parent=at, source="tool", token_ids=(1,) * reply, turn=1, seconds=0.5)
            )
            at = tree.add(Node(parent=at, source="template", token_ids=(1,), turn=1))
    leaf = Leaf(node=at, outcome=outcome, sample=0, seconds=5.5)
    tree.end(leaf)
    return tree, leaf


def test_a_trace_is_what_the_tree_recorded() -> None:
    tree, leaf = tree_with(Finished(1.0))
    assert cost_of(tree, leaf) == TrajectoryCost(
        prompt_tokens=5,
        turns=(
            TurnCost(tokens=3, step_s=0.5, reply_tokens=3),
            TurnCost(tokens=4, step_s=0.0, reply_tokens=0),
        ),
        reset_s=1.0,
    )


def test_a_run_appends_and_record_makes_a_file_that_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "myrun"
    run.mkdir()
    append_costs(run / FILE, [tree_with(Finished(1.0))[0]] * 3)
    append_costs(run / FILE, [tree_with(Failed("env", "x"))[0]])
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["trace", "record", str(run)]).exit_code == 0
    trace = read_trace(tmp_path / "myrun.trace.jsonl")
    assert (trace.name, len(trace.trajectories), trace.failure_rate) == ("myrun", 3, 0.25)
    shown = CliRunner().invoke(app, ["trace", "show", "myrun.trace.jsonl"])
    assert "25.0% of attempts failed" in shown.output
    with (run / FILE).open("a") as file:
        file.write('{"prompt": 1, "rese')
    assert len(read_trace(run / FILE).trajectories) == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}\n", "bad.jsonl:1 is not a line of a trace"),
        ('{"prompt": 1, "reset_s": -1, "turns": [[1, 1, 1]]}\n', "not negative"),
        ('{"agentrl_trace": 99, "name": "x"}\n', "format 99"),
        ("", "no trajectory that ended successfully"),
    ],
)
def test_a_broken_trace_is_refused_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_trace(path)


def test_a_trace_survives_the_disk_and_names_are_checked(tmp_path: Path) -> None:
    trace = trace_of("mine", agentic().trajectories[:20], failure_rate=0.1)
    write_trace(tmp_path / "t.jsonl", trace)
    read = read_trace(tmp_path / "t.jsonl")
    assert (read.name, read.failure_rate) == ("mine", 0.1)
    assert [c.tokens for c in read.trajectories] == [c.tokens for c in trace.trajectories]
    with pytest.raises(ConfigError, match="lognormal, bimodal, agentic"):
        synthetic("other")
    with pytest.raises(ConfigError, match="no such file"):
        read_trace(tmp_path / "none.jsonl")
    assert quantile([3.0, 1.0], 0.5) == 2.0


def test_the_modes_come_in_order_and_are_drawn() -> None:
    studied = compare(SMALL)
    sync, partial, asyn = (one.per_s for one in studied)
    assert sync < partial < asyn < 1.3 * ideal_per_s(SMALL)
    assert studied[0].age_max == 0
    lines = timeline.text(studied[0].timeline, columns=40).splitlines()
    assert [len(line) for line in lines] == [48, 48]
    assert "T" in lines[1]
    assert ElementTree.fromstring(timeline.picture(studied)).tag.endswith("svg")
    load = timeline.engine_load(studied[2].timeline, 50)
    assert max(load.shares) <= 1.0


def test_the_recommendation_is_the_freshest_that_is_nearly_the_fastest() -> None:
    grid = SearchGrid(concurrency=(16, 32), over_provision=(1.0, 2.0), max_staleness=(0, 1, 3))
    results = search(SMALL, grid)
    assert len(results) == 2 * 5
    best = recommend(results, "async")
    fastest = max(r.tokens_per_s for r in results if r.setting.policy.mode == "async")
    assert best.tokens_per_s >= 0.97 * fastest
    assert recommend([replace(best)], "async") == best
    with pytest.raises(ValueError, match="partial"):
        recommend([best], "partial")


def test_the_command_prints_the_table_and_the_timeline(tmp_path: Path) -> None:
    picture = tmp_path / "t.svg"
    ran = CliRunner().invoke(
        app, ["simulate", "bimodal", "--steps", "4", "--no-recommend", "--picture", str(picture)]
    )
    assert ran.exit_code == 0, ran.output
    assert all(word in ran.output for word in ("sync", "partial", "async", "ideal", "trainer"))
    assert picture.read_text().startswith("<svg")


def test_an_environment_is_held_while_it_waits_and_works_only_while_it_works() -> None:
    cost = TrajectoryCost(prompt_tokens=1, reset_s=10.0, turns=(TurnCost(tokens=100, step_s=10.0),))
    setting = StudySetting(
        trace=trace_of("one", [cost]),
        policy=SchedulerPolicy(groups_per_step=1, group_size=1, concurrency=2),
        speed=EngineSpeed(slots=1, step_s=0.1, slot_s=0.0, prefill_tokens_per_step=10**9,
                          pause_s=0.0, load_s=0.0),
        train_s=30.0, steps=4, warm_steps=1, granule_tokens=1,
    )  # fmt: skip
    (one,) = compare(setting, ("sync",))
    # Of two environments one has 30 s of an episode, 20 of them its own, then 30 s of nothing.
    assert one.env_held == pytest.approx(30 / 60 / 2, rel=1e-3)
    assert one.env_busy == pytest.approx(20 / 60 / 2, rel=1e-3)
