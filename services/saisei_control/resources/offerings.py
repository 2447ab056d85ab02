"""The operator's Offerings: what a create must choose from, when there are any (H-060 … H-063)."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from saisei_contract.errors import SaiseiError
from saisei_contract.grammar import is_form_url, is_https_url, is_name, is_uid
from saisei_contract.records import Offering


class OfferingDescription(BaseModel):
    """One entry of the file. `spaces` None: offered in each Space."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    id: str
    revision: Annotated[str, Field(min_length=1, max_length=128)]
    form: str
    label: Annotated[str, Field(min_length=1, max_length=256)]
    description: Annotated[str, Field(max_length=4096)]
    terms_url: Annotated[str | None, Field(alias="termsUrl")] = None
    spaces: list[str] | None = None

    @field_validator("id")
    @classmethod
    def _id(cls, value: str) -> str:
        return _checked(value, is_uid(value), "has 1 to 128 characters of A-Z a-z 0-9 . _ -")

    @field_validator("form")
    @classmethod
    def _form(cls, value: str) -> str:
        return _checked(value, is_form_url(value), "is an exact Form URL")

    @field_validator("terms_url")
    @classmethod
    def _terms(cls, value: str | None) -> str | None:
        return None if value is None else _checked(value, is_https_url(value), "is an absolute https URL")

    @field_validator("spaces")
    @classmethod
    def _spaces(cls, value: list[str] | None) -> list[str] | None:
        for space in value or ():
            _checked(space, is_name(space), "is the name of a Space")
        return value

    def is_for(self, form: str, space: str) -> bool:
        return self.form == form and (self.spaces is None or space in self.spaces)


def _checked(value: str, good: bool, rule: str) -> str:
    if not good:
        raise ValueError(f"{value!r} is wrong: it {rule}")
    return value


_FILE = TypeAdapter(list[OfferingDescription])


@dataclass(frozen=True, slots=True)
class Offerings:
    """`items` None: Offerings are not advertised. An empty list is advertised, and nothing can be created then."""

    items: tuple[OfferingDescription, ...] | None = None

    @classmethod
    def of(cls, items: Iterable[OfferingDescription]) -> Offerings:
        """ValueError when an id comes twice."""
        ordered = tuple(sorted(items, key=lambda item: item.id))
        if len({item.id for item in ordered}) != len(ordered):
            raise ValueError("each Offering has an id of its own")
        return cls(ordered)

    @classmethod
    def load(cls, path: Path) -> Offerings:
        """Reads `offerings` of a .toml or .json file; ValueError that names file and entry, or OSError."""
        text = path.read_text()
        try:
            document = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
            if not isinstance(document, dict) or set(document) != {"offerings"}:
                raise ValueError("the file holds one list, `offerings`")
            return cls.of(_FILE.validate_python(document["offerings"]))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise ValueError(f"{path}: offerings.{place}: {first['msg']}") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @property
    def advertised(self) -> bool:
        return self.items is not None

    def choose(self, form: str, space: str, chosen: Offering | None) -> None:
        """SaiseiError capability_required (H-060), invalid_request or offering_changed (H-061)."""
        if self.items is None:
            if chosen is not None:
                raise SaiseiError("capability_required", "this Host has no Offerings; leave the field offering out")
            return
        if chosen is None:
            raise SaiseiError(
                "invalid_request", "The field offering is missing: this Host lists Offerings to choose from."
            )
        if not any(
            item.id == chosen.id and item.revision == chosen.revision and item.is_for(form, space)
            for item in self.items
        ):
            raise SaiseiError(
                "offering_changed",
                f"the Offering {chosen.id} is not offered so for this Form and Space; read the list again",
            )

    def listed(self, form: str, space: str, after: str, limit: int) -> list[OfferingDescription]:
        """At most `limit`, ascending by id, above the id `after`. SaiseiError capability_unavailable."""
        if self.items is None:
            raise SaiseiError("capability_unavailable", "this Host has no Offerings")
        return [item for item in self.items if item.is_for(form, space) and item.id > after][:limit]
