"""Prometheus metrics, in a registry of their own for every server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from lcspec.engine.events import Event, Finished
from lcspec.engine.metrics import Totals
from lcspec.engine_host import Life

if TYPE_CHECKING:
    from lcspec.server.limits import Capacity

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0)
RATES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0)


class HttpMetrics:
    """What the server as a whole did. Updated on the event loop's thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.http = Counter(
            "lcspec_http_requests", "Answers by path and status.", ["path", "status"], registry=self.registry
        )
        self.loads = Counter(
            "lcspec_model_loads", "Models loaded, unloaded, or not loaded.", ["model", "result"], registry=self.registry
        )

    def answered(self, path: str, status: int) -> None:
        """An HTTP answer."""
        self.http.labels(path, str(status) if status else "gone").inc()

    def loaded(self, model: str, result: str) -> None:
        """A model was loaded, was unloaded, or failed to load."""
        self.loads.labels(model, result).inc()


class Page:
    """The metrics page: the server's, and those of its models, which a label tells apart where there may be several."""

    def __init__(self, whole: HttpMetrics, models: Mapping[str, Metrics], labelled: bool) -> None:
        self.whole, self.models, self.labelled = whole, models, labelled

    def collect(self) -> Iterator[Metric]:
        """Every family once."""
        yield from self.whole.registry.collect()
        families: dict[str, Metric] = {}
        for model, metrics in self.models.items():
            for family in metrics.registry.collect():
                known = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    labels = {"model": model, **sample.labels} if self.labelled else sample.labels
                    known.samples.append(sample._replace(labels=labels))
        yield from families.values()

    def text(self) -> bytes:
        """As Prometheus reads it."""
        return bytes(generate_latest(self))


class Metrics:
    """What happened to one model's requests so far. Updated on the event loop's thread.

    Attributes:
        totals: the engine's latest snapshot, to be renewed before the page is made.
    """

    def __init__(self, capacity: Capacity, life: Callable[[], Life] = Life) -> None:
        """Of requests that `capacity` counts, and an engine whose `life` is looked at for every page."""
        self.capacity = capacity
        self._life = life
        self.totals = Totals()
        registry = self.registry = CollectorRegistry()
        self.first = Histogram(
            "lcspec_time_to_first_token_seconds", "From arrival to the first text.", buckets=SECONDS, registry=registry
        )
        self.total = Histogram(
            "lcspec_request_seconds", "From arrival to the last event.", buckets=SECONDS, registry=registry
        )
        self.rate = Histogram(
            "lcspec_tokens_per_second", "Decoding rate of a request.", buckets=RATES, registry=registry
        )
        self.calls = Counter(
            "lcspec_tool_calls", "Tool calls by whether they follow the schema.", ["arguments"], registry=registry
        )
        registry.register(self)

    def first_token(self, seconds: float) -> None:
        """A request has its first text."""
        self.first.observe(seconds)

    def ended(self, event: Event, seconds: float) -> None:
        """A request's last event."""
        self.total.observe(seconds)
        if isinstance(event, Finished) and event.stats.tokens_per_second:
            self.rate.observe(event.stats.tokens_per_second)

    def called(self, outcome: str) -> None:
        """A tool call of a finished answer."""
        self.calls.labels(outcome).inc()

    def collect(self) -> Iterator[Metric]:
        """The engine's totals; called by the registry."""
        t = self.totals
        yield _counter("requests_done", "Texts by how they ended.", "reason", t.done.items())
        yield CounterMetricFamily("lcspec_prompt_tokens", "Prompt tokens evaluated.", t.prompt_evaluated)
        yield CounterMetricFamily(
            "lcspec_prompt_tokens_reused", "Prompt tokens that were in the cache already.", t.prompt_reused
        )
        yield CounterMetricFamily("lcspec_generated_tokens", "Tokens generated.", t.decode_tokens)
        by_drafter = sorted(t.by_drafter.items())
        for what in ("drafted", "accepted"):
            of_drafter = [(name, tally[what]) for name, tally in by_drafter]
            depths = enumerate(getattr(t, f"{what}_by_depth"), 1)
            yield _counter(f"{what}_tokens", f"Draft tokens {what}, by drafter.", "drafter", of_drafter)
            yield _counter(f"{what}_tokens_by_depth", f"Draft tokens {what}, by depth in the tree.", "depth", depths)
        yield _counter("decode_steps", "Steps by width in tokens.", "width", sorted(t.steps.items()))
        yield CounterMetricFamily("lcspec_mixed_steps", "Steps that (also) read a prompt.", t.mixed_steps)
        yield CounterMetricFamily("lcspec_decode_seconds", "Target time of decode steps.", t.decode_seconds)
        yield CounterMetricFamily("lcspec_mixed_seconds", "Target time of steps that read a prompt.", t.mixed_seconds)
        life = self._life()
        for name, text, n in (
            ("engine_restarts", "Times that the engine's process had to be started again.", life.restarts),
            ("requests_resumed", "Requests that went on in a new process.", life.resumed),
            ("requests_refused_twice_dead", "Requests that were running twice when the process died.", life.refused),
        ):
            yield CounterMetricFamily(f"lcspec_{name}", text, n)
        gauges: list[tuple[str, str, float | None]] = [
            ("engine_up", "1 while the engine can answer, 0 while it is started again.", int(life.away is None)),
            ("slots", "Slots.", self.capacity.slots),
            ("requests_running", "Requests in slots.", self.capacity.running),
            ("requests_waiting", "Requests without a slot.", self.capacity.waiting),
            ("plain_step_seconds", "A decode of one token, by the cost curve.", t.plain_seconds),
            ("planned_speedup", "Recent rate over that of plain decoding, by the cost curve.", t.speedup),
            ("planned_rate", "Tokens a second of a lone stream, by the cost curve.", t.rate),
        ]
        for name, text, value in gauges:
            if value is not None:
                yield GaugeMetricFamily(f"lcspec_{name}", text, value)


def _counter(name: str, text: str, label: str, values: Iterable[tuple[object, float]]) -> Metric:
    family = CounterMetricFamily(f"lcspec_{name}", text, labels=[label])
    for key, value in values:
        family.add_metric([str(key)], value)
    return family
