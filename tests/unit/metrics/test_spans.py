"""Spans of a run, through OpenTelemetry's own SDK and its exporter to memory.

Seen caught: waiting that ends when learning does; what broke as no error; spans that belong to no
run.
"""

import time

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from agentrl.events.kinds import GroupRequest
from agentrl.events.log import EventLog
from agentrl.metrics.spans import SpanExporter
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Leaf, Node


def collected() -> tuple[SpanExporter, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return SpanExporter.open("sums", provider), exporter


def play(spans: SpanExporter, outcome: Finished | Failed) -> None:
    """Let a run of one trajectory tell of its end."""
    log = EventLog()
    log.subscribe(spans)
    request = GroupRequest(task=Task(prompt="2 + 3", id="t"))
    tree = log.open_group(4, request, size=1, step=0).tree
    rollout = log.start_rollout(4, sample=1, seed=0, version=0)
    prompt = tree.add(Node(parent=None, source="prompt", token_ids=(1, 2), turn=0))
    node = Node(
        parent=prompt,
        source="sampled",
        token_ids=(3, 4, 5),
        turn=0,
        logprobs=(0.0,) * 3,
        versions=(0,) * 3,
    )
    leaf = Leaf(node=tree.add(node), outcome=outcome, sample=1, seconds=2.5, tool_calls=3)
    rollout.finish(leaf)


def lasted_s(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def test_a_run_is_a_tree_of_spans() -> None:
    spans, exporter = collected()
    began_ns = time.time_ns()
    with spans:
        spans.step(7, {"seconds/rollout": 3.0, "seconds/learn": 1.0, "reward/mean": 0.5})
    found = {span.name: span for span in exporter.get_finished_spans()}
    assert found.keys() == {"agentrl.run", "agentrl.step", "agentrl.rollout", "agentrl.learn"}
    run = found["agentrl.run"]
    assert run.attributes == {"agentrl.run": "sums"}
    assert run.parent is None
    for name, seconds in (("step", 4.0), ("rollout", 3.0), ("learn", 1.0)):
        span = found[f"agentrl.{name}"]
        assert lasted_s(span) == pytest.approx(seconds)
        assert span.parent is not None
        assert run.context is not None
        assert span.parent.span_id == run.context.span_id
        assert span.attributes == {"agentrl.step": 7, "agentrl.reward": 0.5}
    rollout, learn = found["agentrl.rollout"], found["agentrl.learn"]
    assert rollout.end_time is not None
    assert learn.start_time is not None
    assert learn.end_time is not None
    # The two were made one after the other, so the later clock may be a little later.
    assert 0 <= learn.start_time - rollout.end_time < 60e9
    assert learn.end_time >= began_ns


def test_a_trajectory_is_a_span() -> None:
    spans, exporter = collected()
    play(spans, Finished(0.5))
    play(spans, Failed("tool", "it is gone"))
    one, broke = exporter.get_finished_spans()
    assert one.name == "agentrl.trajectory"
    assert lasted_s(one) == pytest.approx(2.5)
    assert one.attributes == {
        "agentrl.task": "t",
        "agentrl.group": 4,
        "agentrl.sample": 1,
        "agentrl.outcome": "finished",
        "agentrl.tool_calls": 3,
        "agentrl.sampled_tokens": 3,
        "agentrl.reward": 0.5,
    }
    assert broke.attributes is not None
    assert "agentrl.reward" not in broke.attributes
    assert (broke.status.status_code, broke.status.description) == (
        StatusCode.ERROR,
        "it is gone",
    )
    assert one.status.status_code is StatusCode.UNSET
    spans.close()
    spans.close()
    assert len(exporter.get_finished_spans()) == 3
