"""What can be judged of a spec without looking at other Resources (H-151, H-152, F-01, F-06)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from saisei_contract.errors import SaiseiError
from saisei_contract.forms import registry, urls
from saisei_contract.forms.base import Reference
from saisei_contract.forms.registry import AnyForm
from saisei_contract.strict_json import JsonObject

T = TypeVar("T")

# Reading and comparing a larger text takes long enough to keep other calls waiting.
_SHORT_CHARACTERS = 65_536


@dataclass(frozen=True, slots=True)
class CheckedSpec:
    """A valid spec as its Form's value, with the references in it."""

    value: object
    references: tuple[Reference, ...]


async def off_loop(text: str, work: Callable[[], T]) -> T:
    """Runs pure work over `text` here when it is short, beside the event loop when it is long."""
    return work() if len(text) <= _SHORT_CHARACTERS else await asyncio.to_thread(work)


def supported_form(url: str, *, previews: bool) -> AnyForm:
    """H-083. `previews`: Forms that are hosted but do not hold as a whole yet are taken too (H-053)."""
    form = registry.form(url)
    if not (form.supported or (form.hosted and previews)):
        raise SaiseiError("unsupported_form", f"this Host does not support the Form {form.name} {form.version} yet")
    return form


def takes_private_inputs(form: AnyForm) -> bool:
    """F-07: WorkerVersion alone."""
    return form.url == urls.WORKER_VERSION


def check_create(form: AnyForm, spec: JsonObject, private_inputs: Mapping[str, str] | None) -> CheckedSpec:
    """Capability, then the spec, then the private inputs."""
    return _check(form, spec, private_inputs, creating=True)


def check_update(
    form: AnyForm, old: JsonObject, new: JsonObject, private_inputs: Mapping[str, str] | None
) -> CheckedSpec:
    """As on create, and nothing immutable changes. `old` is a valid spec of the Form."""
    checked = _check(form, new, private_inputs, creating=False)
    form.immutable(old, new)
    return checked


def _check(form: AnyForm, spec: JsonObject, private_inputs: Mapping[str, str] | None, *, creating: bool) -> CheckedSpec:
    if private_inputs is not None and not takes_private_inputs(form):
        raise SaiseiError("capability_required", f"the Form {form.name} takes no privateInputs on this Host")
    value = form.validate(spec)
    features = form.unhosted_features(spec)
    if features:
        raise SaiseiError("capability_required", f"this Host does not offer yet: spec.{', spec.'.join(features)}")
    form.check_private_inputs(spec, private_inputs, creating=creating)
    return CheckedSpec(value, form.references(spec))
