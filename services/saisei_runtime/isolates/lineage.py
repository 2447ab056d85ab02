"""How far a chain of service calls has come, so that Workers that call each other in circles end (MW-40)."""

from __future__ import annotations

from dataclasses import dataclass, field

# Service calls one below the other, from one request, scheduled run, batch or workflow context.
MAX_DEPTH = 16
# Service calls under way at once below one of these, at any depth.
MAX_UNDER_WAY = 256


@dataclass(eq=False, slots=True)
class Tree:
    """What is under way below one beginning."""

    under_way: int = 0


@dataclass(frozen=True, slots=True)
class Lineage:
    """`depth` service calls lie between the beginning and the context or invocation that this is of."""

    depth: int = 0
    tree: Tree = field(default_factory=Tree)

    def refusal(self) -> str | None:
        """Why no further call may begin here, or None."""
        if self.depth >= MAX_DEPTH:
            return f"Workers call each other {MAX_DEPTH} levels deep; no service call begins below that"
        if self.tree.under_way >= MAX_UNDER_WAY:
            return f"{MAX_UNDER_WAY} service calls are under way below one request; no further one begins"
        return None

    def below(self) -> Lineage:
        return Lineage(self.depth + 1, self.tree)
