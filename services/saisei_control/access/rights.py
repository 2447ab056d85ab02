"""The caller of a request and what it may do, a Space at a time (H-044 … H-046)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from saisei_contract.errors import SaiseiError

EVERY_SPACE = "*"


@dataclass(frozen=True, slots=True)
class SpaceRights:
    """`use`: Resources of the Space may be named as reference targets.

    `admin`: its audit log may be read and its Operations settled by hand (H-118).
    """

    read: bool = False
    write: bool = False
    use: bool = False
    admin: bool = False

    def __or__(self, other: SpaceRights) -> SpaceRights:
        return SpaceRights(
            self.read or other.read, self.write or other.write, self.use or other.use, self.admin or other.admin
        )


_NONE = SpaceRights()


@dataclass(frozen=True, slots=True)
class Caller:
    """A stable identity (H-047) with its rights; the key "*" of `rights` stands for each Space."""

    principal: str
    rights: Mapping[str, SpaceRights] = field(default_factory=dict)

    def in_space(self, space: str) -> SpaceRights:
        return self.rights.get(space, _NONE) | self.rights.get(EVERY_SPACE, _NONE)

    def readable_spaces(self) -> set[str] | None:
        """Names of the Spaces that may be read; None means each Space."""
        if self.in_space(EVERY_SPACE).read:
            return None
        return {space for space, rights in self.rights.items() if rights.read}

    def require_any_write(self) -> None:
        """The permission class of a mutation, before anything of it is looked at (H-035)."""
        if not any(rights.write for rights in self.rights.values()):
            raise SaiseiError("forbidden", "the token may not write in any Space")

    def require_any_read(self) -> None:
        if not any(rights.read for rights in self.rights.values()):
            raise SaiseiError("forbidden", "the token may not read in any Space")

    def require_write(self, space: str) -> None:
        """H-046: a Space that the caller may not use."""
        if not self.in_space(space).write:
            raise SaiseiError("forbidden", f"the token may not write in the Space {space}")

    def require_admin(self, space: str) -> None:
        if not self.in_space(space).admin:
            raise SaiseiError("forbidden", f"the token has no right to administer the Space {space}")


def dump_rights(rights: Mapping[str, SpaceRights]) -> str:
    return json.dumps(
        {space: [value.read, value.write, value.use, value.admin] for space, value in rights.items()}, sort_keys=True
    )


def load_rights(text: str) -> dict[str, SpaceRights]:
    return {space: SpaceRights(*flags) for space, flags in json.loads(text).items()}


def merge_rights(entries: Iterable[tuple[str, SpaceRights]]) -> dict[str, SpaceRights]:
    """Several entries of one Space add up; `write` includes use (design 6)."""
    merged: dict[str, SpaceRights] = {}
    for space, rights in entries:
        merged[space] = merged.get(space, _NONE) | replace(rights, use=rights.use or rights.write)
    return merged
