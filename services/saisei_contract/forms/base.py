"""What every Form has: validation, equality, references, immutability and private inputs (F-01 … F-07)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from saisei_contract import shapes
from saisei_contract.errors import SaiseiError
from saisei_contract.grammar import is_uid
from saisei_contract.json_reader import JsonObject, JsonValue, shown
from saisei_contract.strict_json import as_integer, equals

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Reference:
    """One `{"resourceUid"}` of a spec (F-02).

    `path` is where it stands, `role` what it is for (`worker`, `kvBindings`, …).
    """

    path: str
    target_form_url: str
    uid: str
    role: str


class Form(ABC, Generic[S]):
    """The rules of one Form that need nothing but the spec. S is its validated spec, a frozen dataclass.

    `hosted`: this Host can create it as a preview. `supported`: the whole Form holds, runtime behaviour included
    (H-053).
    """

    url: ClassVar[str]
    hosted: ClassVar[bool] = True
    supported: ClassVar[bool] = False
    # Support's `privateInputs`: the Form can take secrets at all (F-07, H-151).
    takes_private_inputs: ClassVar[bool] = False
    # Top-level keys of the spec that an update may change; all others are immutable (F-06).
    mutable: ClassVar[frozenset[str]] = frozenset()

    @property
    def name(self) -> str:
        """As the URL spells it: `WorkerVersion`."""
        return self.url.split("/")[-3]

    @property
    def version(self) -> str:
        return self.url.split("/")[-2]

    @abstractmethod
    def validate(self, spec: JsonObject) -> S:
        """The spec as a value; SaiseiError invalid_spec names the field and the rule (F-01)."""

    @abstractmethod
    def references(self, spec: JsonObject) -> tuple[Reference, ...]:
        """Every reference of a valid spec, in the order of the Form's keys (F-02)."""

    def normalise(self, spec: JsonObject) -> JsonObject:
        """A valid spec with defaults expanded and sets in order: what equality compares (F-06, WV-06)."""
        return spec

    def equal(self, left: JsonObject, right: JsonObject) -> bool:
        """Whether two valid specs are the same spec (F-06)."""
        return equals(self.normalise(left), self.normalise(right))

    def immutable(self, old: JsonObject, new: JsonObject) -> None:
        """SaiseiError invalid_spec when an update from `old` to `new` (both valid) changes an immutable field (F-05,
        F-06).
        """
        before, after = self.normalise(old), self.normalise(new)
        for key in sorted(before.keys() | after.keys()):
            if key in self.mutable:
                continue
            if (key in before) != (key in after) or (key in before and not equals(before[key], after[key])):
                raise invalid(f"spec.{key}", f"cannot be changed on a {self.name}; create a new Resource instead")

    def private_input_names(self, spec: JsonObject) -> frozenset[str]:
        """The names that the Form takes for this valid spec (F-07)."""
        return frozenset()

    def check_private_inputs(self, spec: JsonObject, inputs: Mapping[str, str] | None, *, creating: bool) -> None:
        """SaiseiError invalid_spec unless the given map fits the Form (F-07, H-152, WV-07). Values are never quoted.

        On create every name is needed; an update may omit the map and keep what is stored. Whether given values equal
        the stored ones is for the vault to say.
        """
        names = self.private_input_names(spec)
        if inputs is None:
            if creating and names:
                raise invalid("privateInputs", f"must give a value for {_listed(names)}")
            return
        if unknown := inputs.keys() - names:
            raise invalid("privateInputs", f"has names that the spec does not require: {_listed(unknown)}")
        if missing := names - inputs.keys():
            raise invalid("privateInputs", f"lacks a value for {_listed(missing)}")
        if empty := {name for name, value in inputs.items() if not value}:
            raise invalid("privateInputs", f"must not be empty for {_listed(empty)}")

    def unhosted_features(self, spec: JsonObject) -> list[str]:
        """Keys of a valid spec whose meaning this Host does not carry yet, in the Form's order."""
        return []


def invalid(path: str, rule: str) -> SaiseiError:
    """The refusal of a spec, naming the field and the rule."""
    return SaiseiError("invalid_spec", f"{path} {rule}.")


def closed(value: JsonValue, path: str, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> JsonObject:
    """An object with exactly the known keys, none of them null (F-01)."""
    return shapes.closed(value, path, required, optional, invalid)


def reference(value: JsonValue, path: str) -> str:
    """The UID of exactly `{"resourceUid": string}` (F-02)."""
    uid = closed(value, path, ("resourceUid",))["resourceUid"]
    return matching(uid, f"{path}.resourceUid", is_uid, "a UID: 1 to 128 characters of A-Z a-z 0-9 . _ -")


def array(value: JsonValue, path: str, least: int, most: int) -> list[JsonValue]:
    if not isinstance(value, list):
        raise invalid(path, "must be an array")
    if not least <= len(value) <= most:
        raise invalid(path, f"must have {least} to {most} entries, not {len(value)}")
    return value


def integer(value: JsonValue, path: str, least: int, most: int) -> int:
    """Any JSON spelling of an integer in range; booleans, strings and fractions are refused (F-01)."""
    number = as_integer(value)
    if number is None or not least <= number <= most:
        raise invalid(path, f"must be an integer from {least} to {most}")
    return number


def matching(value: JsonValue, path: str, grammar: Callable[[str], bool], rule: str) -> str:
    """A string that `grammar` accepts; `rule` completes "must be …"."""
    return shapes.text(value, path, grammar, rule, invalid)


def boolean(value: JsonValue, path: str) -> bool:
    if not isinstance(value, bool):
        raise invalid(path, "must be true or false")
    return value


def _listed(names: set[str] | frozenset[str]) -> str:
    return ", ".join(shown(name) for name in sorted(names)[:5]) + (", …" if len(names) > 5 else "")
