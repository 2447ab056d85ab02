"""Every Form that this Host knows, by its exact URL (H-008, H-050 … H-053)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from saisei_contract.errors import SaiseiError
from saisei_contract.forms import (
    durable_workflow,
    module_worker,
    static_asset_bundle,
    urls,
    worker_bundle,
    worker_cron_trigger,
    worker_deployment,
    worker_endpoint,
    worker_version,
)
from saisei_contract.forms.base import Form

AnyForm = Form[Any]

FORMS: Mapping[str, AnyForm] = MappingProxyType(
    {
        module.FORM.url: module.FORM
        for module in (
            module_worker,
            worker_bundle,
            static_asset_bundle,
            worker_version,
            worker_deployment,
            durable_workflow,
            worker_endpoint,
            worker_cron_trigger,
        )
    }
)
"""The Forms whose rules are written, by URL."""

UNHOSTED_FORMS = urls.ALL_FORMS - FORMS.keys()
"""Known as targets of references, without rules here: a Resource of them cannot exist on this Host."""


def form(url: str) -> AnyForm:
    """The Form of that exact URL; SaiseiError unsupported_form otherwise, without a fetch (H-055, H-083)."""
    found = FORMS.get(url)
    if found is None:
        raise SaiseiError(
            "unsupported_form", "This Host does not support the Form of that URL; the URL is compared exactly."
        )
    return found
