"""Counts of the gateway for Prometheus. Labels never hold what a client sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = CONTENT_TYPE_LATEST

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Metrics:
    """Requests by route, method and status; seconds until the response began, by route; streams that are open now."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "saisei_gateway_requests", "Answered requests.", ("route", "method", "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "saisei_gateway_response_seconds", "Time until the response began.", ("route",), registry=self._registry
        )
        self._open = Gauge(
            "saisei_gateway_open_streams", "Streams that are open now.", ("kind",), registry=self._registry
        )
        self._counts: dict[str, int] = {}
        # Few, since labels come from routes: looking a child up costs more than counting with it.
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        key = (route, method if method in _METHODS else "other", status)
        children = self._children.get(key)
        if children is None:
            children = self._requests.labels(route, key[1], str(status)), self._seconds.labels(route)
            self._children[key] = children
        requests, histogram = children
        requests.inc()
        histogram.observe(seconds)

    @contextmanager
    def stream(self, kind: str) -> Iterator[None]:
        self.opened(kind)
        try:
            yield
        finally:
            self.closed(kind)

    def opened(self, kind: str) -> None:
        self._count(kind, 1)

    def closed(self, kind: str) -> None:
        self._count(kind, -1)

    def open_streams(self, kind: str) -> int:
        return self._counts.get(kind, 0)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def _count(self, kind: str, change: int) -> None:
        self._counts[kind] = self.open_streams(kind) + change
        self._open.labels(kind).set(self._counts[kind])
