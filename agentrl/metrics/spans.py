"""A run as OpenTelemetry spans: its steps, what they consist of, and every trajectory.

Where the process has a tracer provider already, such as under `opentelemetry-instrument`, that one
is used; otherwise one is made that sends to `OTEL_EXPORTER_OTLP_ENDPOINT`.
"""

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from agentrl.errors import ConfigError
from agentrl.events.kinds import Event, RolloutFinished
from agentrl.events.state import RunState
from agentrl.runtime.extras import explain_missing
from agentrl.trajectory import Failed, outcome_name, reward_of

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer, TracerProvider

FLUSH_MS = 10_000


@dataclass(slots=True, eq=False)
class SpanExporter(AbstractContextManager["SpanExporter"]):
    """Makes the spans of one run. Made by `open`; use it in `with`."""

    tracer: "Tracer"
    run: "Span"
    """All others are below it."""
    owned: Any = None
    """The provider, if it was made for this run and ends with it."""
    _context: "Context | None" = field(default=None)

    @classmethod
    def open(cls, name: str, provider: "TracerProvider | None" = None) -> Self:
        """Begin the span of a run. Raises `ConfigError` where the packages are missing."""
        try:
            from opentelemetry import trace

            owned = None if provider or _is_set_up() else _provider()
        except ImportError as error:
            raise ConfigError(
                f"{explain_missing('metrics.opentelemetry', 'opentelemetry')}, or set it to false"
            ) from error
        tracer_provider = provider or owned or trace.get_tracer_provider()
        tracer = tracer_provider.get_tracer("agentrl")
        run = tracer.start_span("agentrl.run", attributes={"agentrl.run": name})
        return cls(tracer, run, owned, trace.set_span_in_context(run))

    def on_event(self, event: Event, state: RunState) -> None:
        """Make the span of a trajectory that has just ended, as long as its own clock ran."""
        if not isinstance(event, RolloutFinished):
            return
        leaf, tree = event.leaf, state.groups[event.group].tree
        path = () if leaf.node is None else tree.path(leaf.node)
        attributes: dict[str, Any] = {
            "agentrl.task": tree.task.id,
            "agentrl.group": event.group,
            "agentrl.sample": leaf.sample,
            "agentrl.outcome": outcome_name(leaf.outcome),
            "agentrl.tool_calls": leaf.tool_calls,
            "agentrl.sampled_tokens": sum(
                len(node.token_ids) for node in path if node.source == "sampled"
            ),
        }
        if (reward := reward_of(leaf.outcome)) is not None:
            attributes["agentrl.reward"] = reward
        broke = leaf.outcome.error if isinstance(leaf.outcome, Failed) else ""
        self._span("agentrl.trajectory", attributes, seconds=leaf.seconds, error=broke)

    def step(self, number: int, figures: Mapping[str, float]) -> None:
        """Make the spans of a step that has just ended: waiting for its groups, then learning."""
        waited, learnt = figures["seconds/rollout"], figures["seconds/learn"]
        attributes = {"agentrl.step": number, "agentrl.reward": figures.get("reward/mean", 0.0)}
        self._span("agentrl.step", attributes, seconds=waited + learnt)
        self._span("agentrl.rollout", attributes, seconds=waited, ago_s=learnt)
        self._span("agentrl.learn", attributes, seconds=learnt)

    def close(self) -> None:
        """End the run's span, and send what is left within a deadline. Idempotent."""
        if self.run.is_recording():
            self.run.end()
        owned, self.owned = self.owned, None
        if owned is not None:
            owned.force_flush(FLUSH_MS)
            owned.shutdown()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _span(
        self,
        name: str,
        attributes: Mapping[str, Any],
        *,
        seconds: float,
        ago_s: float = 0.0,
        error: str = "",
    ) -> None:
        from opentelemetry.trace import Status, StatusCode

        ended = time.time_ns() - round(ago_s * 1e9)
        span = self.tracer.start_span(
            name,
            context=self._context,
            attributes=dict(attributes),
            start_time=ended - round(seconds * 1e9),
        )
        if error:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(ended)


def _is_set_up() -> bool:
    from opentelemetry import trace

    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def _provider() -> "TracerProvider":
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: "agentrl"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
