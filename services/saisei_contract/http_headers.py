"""Names of HTTP headers that more than one service has to know."""

from __future__ import annotations

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""They concern one connection and are never passed on (RFC 9110 7.6.1, MW-42)."""
