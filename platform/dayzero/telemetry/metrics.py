"""A gateway's metrics on one Prometheus registry.

- What is recorded is what `catalogue` lists; a label's value outside its set becomes `other`, so nothing a client
  sends can make a series.
- A metric has no sample before it has data.
- The in-flight gauge is moved by guards that leave once, whatever ends the request.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from dayzero.telemetry import catalogue as c
from dayzero.telemetry.export import DropCause


class InFlightGuard:
    """One request in the gauge. `leave` may be called more than once."""

    __slots__ = ("_gauge",)

    def __init__(self, gauge: Gauge) -> None:
        self._gauge: Gauge | None = gauge
        gauge.inc()

    def leave(self) -> None:
        gauge, self._gauge = self._gauge, None
        if gauge is not None:
            gauge.dec()


@dataclass(frozen=True, slots=True)
class FeedFigures:
    """What a gateway knows of its region's feed. `lag_s` None: nothing came yet. `blocks`: by model."""

    connected: bool
    lag_s: float | None
    exact_replicas: int
    void_replicas: int
    blocks: Mapping[str, int]


class GatewayMetrics:
    """`models`, `pools` and `regions`: the names the fleet file gives; `oddities`: those that decoders give an answer's.

    Any other is `other`.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        models: Iterable[str],
        pools: Iterable[str],
        regions: Iterable[str] = (),
        oddities: Iterable[str] = (),
    ) -> None:
        named = {
            "model": frozenset(models) | {c.NONE},
            "pool": frozenset(pools),
            "region": frozenset(regions),
            "oddity": frozenset(oddities),
        }
        self._allowed = {
            label: named[label] if values is None else frozenset(values) | {c.NONE}
            for label, values in c.LABELS.items()
        }
        self._counters = {
            m: Counter(m.name, m.what, m.labels, registry=registry) for m in _of(c.Kind.COUNTER)
        }
        self._gauges = {m: Gauge(m.name, m.what, m.labels, registry=registry) for m in _of(c.Kind.GAUGE)}
        self._histograms = {
            m: Histogram(m.name, m.what, m.labels, buckets=m.buckets, registry=registry)
            for m in _of(c.Kind.HISTOGRAM)
        }

    def request(
        self, route: c.Route, *, model: str | None, status: int, finish: str | None, seconds: float
    ) -> None:
        """A request ended. `model`: the served model's own name; `finish`: as in the event stream."""
        labels = (route, model, f"{status // 100}xx", finish)
        self._counter(c.REQUESTS, *labels).inc()
        self._histogram(c.REQUEST_SECONDS, route, model).observe(seconds)

    def first_token(self, model: str, seconds: float) -> None:
        self._histogram(c.FIRST_TOKEN_SECONDS, model).observe(seconds)

    def inter_token(self, model: str, seconds: float, tokens: int) -> None:
        """`seconds` since the chunk before, for a chunk of `tokens` (1 or more)."""
        self._histogram(c.INTER_TOKEN_SECONDS, model).observe(seconds / tokens)

    def tokens(self, model: str, *, prompt: int, completion: int, cached: int) -> None:
        """What an engine reported for one request."""
        self._counter(c.PROMPT_TOKENS, model).inc(prompt)
        self._counter(c.COMPLETION_TOKENS, model).inc(completion)
        self._counter(c.CACHED_TOKENS, model).inc(cached)

    def prediction(self, model: str, *, predicted: int, cached: int) -> None:
        """Cached prompt tokens of one request, as the router predicted them and as the engine reported."""
        self._counter(c.PREDICTED_CACHED_TOKENS, model).inc(predicted)
        self._counter(c.PHANTOM_CACHED_TOKENS, model).inc(max(predicted - cached, 0))
        self._counter(c.MISSED_CACHED_TOKENS, model).inc(max(cached - predicted, 0))

    def degraded(self, model: str, oddity: str) -> None:
        """An answer with an oddity that was mended."""
        self._counter(c.DEGRADED, model, oddity).inc()

    def enter(self, model: str | None) -> InFlightGuard:
        """A request was admitted; its guard leaves when it is settled."""
        return InFlightGuard(self._gauge(c.IN_FLIGHT, model))

    def retried(self, cause: c.RetryCause) -> None:
        self._counter(c.RETRIES, cause).inc()

    def truncated(self, cause: c.TruncationCause) -> None:
        self._counter(c.TRUNCATED, cause).inc()

    def aborted(self, cause: c.AbortCause) -> None:
        self._counter(c.ABORTED, cause).inc()

    def rejected(self, cause: c.RejectionCause) -> None:
        self._counter(c.REJECTED, cause).inc()

    def canary(self, pool: str, outcome: c.CanaryOutcome) -> None:
        self._counter(c.CANARIES, pool, outcome).inc()

    def replicas(self, pool: str, counts: dict[c.ReplicaState, int]) -> None:
        """How many replicas of a pool are in each state; a state left out has none."""
        for state in c.ReplicaState:
            if state in counts or state is not c.ReplicaState.OTHER:
                self._gauge(c.REPLICAS, pool, state).set(counts.get(state, 0))

    def without_affinity(self, pool: str, replicas: int) -> None:
        self._gauge(c.REPLICAS_WITHOUT_AFFINITY, pool).set(replicas)

    def feed(self, region: str, figures: FeedFigures) -> None:
        self._gauge(c.FEED_CONNECTED, region).set(int(figures.connected))
        if figures.lag_s is not None:
            self._gauge(c.FEED_LAG, region).set(figures.lag_s)
        self._gauge(c.FOLLOWED_REPLICAS, region, c.Knowledge.EXACT).set(figures.exact_replicas)
        self._gauge(c.FOLLOWED_REPLICAS, region, c.Knowledge.VOID).set(figures.void_replicas)
        for model, blocks in figures.blocks.items():
            self._gauge(c.INDEXED_BLOCKS, model).set(blocks)

    def frontend_cache(self, model: str, *, held_bytes: int, bound_bytes: int) -> None:
        self._gauge(c.FRONTEND_CACHE, model).set(held_bytes)
        self._gauge(c.FRONTEND_CACHE_BOUND, model).set(bound_bytes)

    def region_chosen(self, region: str, why: c.RegionWhy) -> None:
        self._counter(c.REGION_CHOICES, region, why).inc()

    def forwarded(self, region: str, outcome: c.ForwardOutcome) -> None:
        self._counter(c.FORWARDED, region, outcome).inc()

    def peer(self, region: str, *, up: bool, round_trip_s: float | None) -> None:
        """A round trip that was never measured stays absent."""
        self._gauge(c.PEER_UP, region).set(int(up))
        if round_trip_s is not None:
            self._gauge(c.PEER_ROUND_TRIP, region).set(round_trip_s)

    def spans_dropped(self, cause: DropCause, spans: int) -> None:
        """Hand it to `tracing.setup` as `on_drop`."""
        self._counter(c.DROPPED_SPANS, cause).inc(spans)

    def _counter(self, metric: c.Metric, *values: str | None) -> Counter:
        return self._counters[metric].labels(*self._labels(metric, values))

    def _gauge(self, metric: c.Metric, *values: str | None) -> Gauge:
        return self._gauges[metric].labels(*self._labels(metric, values))

    def _histogram(self, metric: c.Metric, *values: str | None) -> Histogram:
        return self._histograms[metric].labels(*self._labels(metric, values))

    def _labels(self, metric: c.Metric, values: tuple[str | None, ...]) -> list[str]:
        named = zip(metric.labels, values, strict=True)
        return [self._label(label, c.NONE if value is None else value) for label, value in named]

    def _label(self, label: str, value: str) -> str:
        return value if value in self._allowed[label] else c.OTHER


def _of(kind: c.Kind) -> list[c.Metric]:
    return [metric for metric in c.METRICS if metric.kind is kind]
