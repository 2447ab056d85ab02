"""Paths to handlers, on the percent-encoded path: an instance id may hold a `/` of its own (as %2F)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from starlette.responses import Response

from saisei_gateway.access import Permission
from saisei_gateway.calls import Call

Handler = Callable[[Call], Awaitable[Response]]

_VARIABLE = re.compile(r"\{([a-z]+)\}")


class Area(Enum):
    """Whose vocabulary of errors a route speaks."""

    HOST_API = "host_api"
    EXTENSION = "extension"


class Capability(Enum):
    """Optional parts of the Host API; their routes exist only when discovery advertises them (H-032)."""

    OFFERINGS = "offerings"
    PREVIEWS = "previews"
    PRIVATE_INPUTS = "private_inputs"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of a route. `public`: it asks for no credential."""

    handle: Handler
    permission: Permission = Permission.NONE
    public: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """`path` names its variable parts: `/workflows/{uid}/instances/{id}:terminate`. A variable never spans a `/`."""

    path: str
    methods: Mapping[str, Endpoint]
    area: Area = Area.EXTENSION
    capability: Capability | None = None


class RouteTable:
    """Earlier routes win. Matching takes time linear in the path and compares static parts byte by byte."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = [(route, _pattern(route.path)) for route in routes]

    def find(self, raw_path: str) -> tuple[Route, dict[str, str]] | None:
        for route, pattern in self._routes:
            match = pattern.match(raw_path)
            if match is not None:
                return route, match.groupdict()
        return None


def _pattern(path: str) -> re.Pattern[str]:
    """A literal colon ends a variable, so that `{id}:terminate` and `{id}` differ; clients escape the colons of ids."""
    parts = _VARIABLE.split(path)
    pattern = "".join(re.escape(part) if index % 2 == 0 else f"(?P<{part}>[^/]+?)" for index, part in enumerate(parts))
    return re.compile(pattern + r"\Z", re.ASCII)
