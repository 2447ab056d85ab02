"""What an attempt at an Operation's effect came to: a closed union that the executor settles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import Connection

from saisei_contract.records import Effect


@dataclass(frozen=True, slots=True)
class Done:
    """The effect is complete and confirmed. `observed` None keeps the former observation; `facts` None too.

    `also` runs in the transaction that settles the Operation.
    """

    observed: Mapping[str, Any] | None = None
    facts: Mapping[str, Any] | None = None
    also: Callable[[Connection], None] | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """It ended, and what remains of it is known: `effect` is none or partial (H-112).

    `also` runs in the transaction that settles the Operation.
    """

    code: str
    message: str
    effect: Effect = Effect.NONE
    also: Callable[[Connection], None] | None = None


@dataclass(frozen=True, slots=True)
class Again:
    """Not finished: a part of the Host does not answer. It is tried again after a back-off.

    `dispatched`: an effect may have begun, so that the Operation shows as reconciling with this error (H-112);
    otherwise it stays running.
    """

    code: str
    message: str
    dispatched: bool


Outcome: TypeAlias = Done | Failed | Again
