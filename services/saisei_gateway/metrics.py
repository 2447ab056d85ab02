"""Counts of the gateway in the Prometheus text format. Labels never hold what a client sent."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Metrics:
    """Requests by route, method and status; seconds until the response began, by route; streams that are open now."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._buckets: Counter[tuple[str, float]] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._open: Counter[str] = Counter()

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        self._requests[route, method if method in _METHODS else "other", status] += 1
        self._seconds[route] += seconds
        self._buckets[route, next((bound for bound in BUCKETS if seconds <= bound), float("inf"))] += 1

    @contextmanager
    def stream(self, kind: str) -> Iterator[None]:
        self._open[kind] += 1
        try:
            yield
        finally:
            self._open[kind] -= 1

    def open_streams(self, kind: str) -> int:
        return self._open[kind]

    def text(self) -> str:
        lines = [
            "# HELP saisei_gateway_requests_total Answered requests.",
            "# TYPE saisei_gateway_requests_total counter",
        ]
        for (route, method, status), count in sorted(self._requests.items()):
            labels = f'route="{route}",method="{method}",status="{status}"'
            lines.append(f"saisei_gateway_requests_total{{{labels}}} {count}")
        lines += [
            "# HELP saisei_gateway_response_seconds Time until the response began.",
            "# TYPE saisei_gateway_response_seconds histogram",
        ]
        for route in sorted(self._seconds):
            total = 0
            for bound in (*BUCKETS, float("inf")):
                total += self._buckets[route, bound]
                edge = "+Inf" if bound == float("inf") else str(bound)
                lines.append(f'saisei_gateway_response_seconds_bucket{{route="{route}",le="{edge}"}} {total}')
            lines.append(f'saisei_gateway_response_seconds_sum{{route="{route}"}} {self._seconds[route]:.6f}')
            lines.append(f'saisei_gateway_response_seconds_count{{route="{route}"}} {total}')
        lines += [
            "# HELP saisei_gateway_open_streams Streams that are open now.",
            "# TYPE saisei_gateway_open_streams gauge",
        ]
        lines += [f'saisei_gateway_open_streams{{kind="{kind}"}} {count}' for kind, count in sorted(self._open.items())]
        return "\n".join(lines) + "\n"
