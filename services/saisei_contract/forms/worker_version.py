"""WorkerVersion 0.5.0: one immutable snapshot of code, variables, secrets' names, Bindings and assets (WV-01 …
WV-07).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal

from saisei_contract.canonical import canonical
from saisei_contract.forms import urls
from saisei_contract.forms.base import Form, Reference, array, boolean, closed, invalid, matching, reference
from saisei_contract.grammar import is_binding_name, is_secret_name, is_vars_key
from saisei_contract.json_reader import JsonObject, JsonValue, shown

HANDLERS = ("fetch", "scheduled", "queue")
SINGLE_PAGE_APPLICATION = "single_page_application"
NOT_FOUND_HANDLING = ("none", SINGLE_PAGE_APPLICATION)
BINDING_TARGETS: dict[str, str] = {
    "kvBindings": urls.EDGE_KV_NAMESPACE,
    "sqliteBindings": urls.SQLITE_DATABASE,
    "bucketBindings": urls.OBJECT_BUCKET,
    "queueProducerBindings": urls.AT_LEAST_ONCE_QUEUE,
    "serviceBindings": urls.MODULE_WORKER,
    "actorBindings": urls.ACTOR_NAMESPACE,
    "workflowBindings": urls.DURABLE_WORKFLOW,
}
HOSTED_BINDINGS = frozenset({"serviceBindings", "workflowBindings"})

MAX_VARS = 64
MAX_SECRETS = 64
MAX_BINDINGS = 64
MAX_VAR_STRING_SCALARS = 8192
MAX_VAR_ITEMS = 64
MAX_VAR_DEPTH = 8

_VARS_KEY_RULE = "a letter, then at most 63 letters, digits, '.', '_' or '-'"
_OPTIONAL = ("bundle", "vars", "requiredSensitiveVars", *BINDING_TARGETS, "assets")


@dataclass(frozen=True, slots=True)
class BindingSpec:
    """`kind` is the spec's key, such as `workflowBindings`."""

    kind: str
    name: str
    resource_uid: str


@dataclass(frozen=True, slots=True)
class AssetsSpec:
    bundle_uid: str
    run_worker_first: bool
    not_found_handling: str


@dataclass(frozen=True, slots=True)
class WorkerVersionSpec:
    """Defaults are expanded.

    `vars_json` is the canonical object of the variables; Bindings stand in the Form's order of kinds.
    """

    worker_uid: str
    bundle_uid: str | None
    handlers: frozenset[str]
    vars_json: bytes = field(default=b"{}", repr=False)
    required_sensitive_vars: frozenset[str] = frozenset()
    bindings: tuple[BindingSpec, ...] = ()
    assets: AssetsSpec | None = None

    @property
    def services(self) -> frozenset[str]:
        """UIDs of the Workers that it calls through service Bindings."""
        return frozenset(item.resource_uid for item in self.bindings if item.kind == "serviceBindings")

    @property
    def answers_http(self) -> bool:
        """Has `fetch` or assets (EP-01, WD-05)."""
        return "fetch" in self.handlers or self.assets is not None


class WorkerVersion(Form[WorkerVersionSpec]):
    url = urls.WORKER_VERSION
    takes_private_inputs = True

    def validate(self, spec: JsonObject) -> WorkerVersionSpec:
        closed(spec, "spec", ("worker", "handlers"), _OPTIONAL)
        variables = _vars(spec.get("vars", {}))
        secrets = _names(spec.get("requiredSensitiveVars", []))
        bindings = tuple(item for kind in BINDING_TARGETS for item in _bindings(spec.get(kind, []), kind))
        _refuse_shared_names(variables, secrets, bindings)
        valid = WorkerVersionSpec(
            worker_uid=reference(spec["worker"], "spec.worker"),
            bundle_uid=reference(spec["bundle"], "spec.bundle") if "bundle" in spec else None,
            handlers=_handlers(spec["handlers"]),
            vars_json=canonical(variables),
            required_sensitive_vars=frozenset(secrets),
            bindings=bindings,
            assets=_assets(spec["assets"]) if "assets" in spec else None,
        )
        _check_combination(valid, bool(variables))
        return valid

    def references(self, spec: JsonObject) -> tuple[Reference, ...]:
        valid = self.validate(spec)
        found = [Reference("spec.worker", urls.MODULE_WORKER, valid.worker_uid, "worker")]
        if valid.bundle_uid is not None:
            found.append(Reference("spec.bundle", urls.WORKER_BUNDLE, valid.bundle_uid, "bundle"))
        counts = dict.fromkeys(BINDING_TARGETS, 0)
        for item in valid.bindings:
            path = f"spec.{item.kind}[{counts[item.kind]}].resource"
            counts[item.kind] += 1
            found.append(Reference(path, BINDING_TARGETS[item.kind], item.resource_uid, item.kind))
        if valid.assets is not None:
            found.append(Reference("spec.assets.bundle", urls.STATIC_ASSET_BUNDLE, valid.assets.bundle_uid, "assets"))
        return tuple(found)

    def normalise(self, spec: JsonObject) -> JsonObject:
        """WV-06: defaults expanded; handlers, secret names and each Binding array sorted; assets stay absent when
        absent.
        """
        valid = self.validate(spec)
        normal: JsonObject = {key: spec[key] for key in ("worker", "bundle", "assets") if key in spec}
        normal["handlers"] = [*sorted(valid.handlers)]
        normal["vars"] = spec.get("vars", {})
        normal["requiredSensitiveVars"] = [*sorted(valid.required_sensitive_vars)]
        for kind in BINDING_TARGETS:
            normal[kind] = [
                {"name": item.name, "resource": {"resourceUid": item.resource_uid}}
                for item in sorted(valid.bindings, key=lambda item: item.name)
                if item.kind == kind
            ]
        return normal

    def private_input_names(self, spec: JsonObject) -> frozenset[str]:
        """WV-07."""
        return self.validate(spec).required_sensitive_vars

    def unhosted_features(self, spec: JsonObject) -> list[str]:
        valid = self.validate(spec)
        used = {item.kind for item in valid.bindings} - HOSTED_BINDINGS
        return [kind for kind in BINDING_TARGETS if kind in used]


def _handlers(value: JsonValue) -> frozenset[str]:
    items = array(value, "spec.handlers", 0, len(HANDLERS))
    names = [
        matching(item, f"spec.handlers[{index}]", HANDLERS.__contains__, f"one of {', '.join(HANDLERS)}")
        for index, item in enumerate(items)
    ]
    if len(set(names)) != len(names):
        raise invalid("spec.handlers", "must not list a handler twice")
    return frozenset(names)


def _names(value: JsonValue) -> list[str]:
    items = array(value, "spec.requiredSensitiveVars", 0, MAX_SECRETS)
    rule = "a capital letter, then at most 63 capital letters, digits or _"
    return [
        matching(item, f"spec.requiredSensitiveVars[{index}]", is_secret_name, rule) for index, item in enumerate(items)
    ]


def _bindings(value: JsonValue, kind: str) -> list[BindingSpec]:
    found: list[BindingSpec] = []
    for index, entry in enumerate(array(value, f"spec.{kind}", 0, MAX_BINDINGS)):
        path = f"spec.{kind}[{index}]"
        item = closed(entry, path, ("name", "resource"))
        rule = "a letter, _ or $, then at most 63 letters, digits, _ or $"
        name = matching(item["name"], f"{path}.name", is_binding_name, rule)
        found.append(BindingSpec(kind, name, reference(item["resource"], f"{path}.resource")))
    return found


def _assets(value: JsonValue) -> AssetsSpec:
    assets = closed(value, "spec.assets", ("bundle", "runWorkerFirst", "notFoundHandling"))
    return AssetsSpec(
        bundle_uid=reference(assets["bundle"], "spec.assets.bundle"),
        run_worker_first=boolean(assets["runWorkerFirst"], "spec.assets.runWorkerFirst"),
        not_found_handling=matching(
            assets["notFoundHandling"],
            "spec.assets.notFoundHandling",
            NOT_FOUND_HANDLING.__contains__,
            f"one of {', '.join(NOT_FOUND_HANDLING)}",
        ),
    )


def _vars(value: JsonValue) -> JsonObject:
    if not isinstance(value, dict):
        raise invalid("spec.vars", "must be an object")
    if len(value) > MAX_VARS:
        raise invalid("spec.vars", f"must have at most {MAX_VARS} keys, not {len(value)}")
    for key, member in value.items():
        if not is_vars_key(key):
            raise invalid("spec.vars", f"has the key {shown(key)}; a key is {_VARS_KEY_RULE}")
        _check_var(member, f"spec.vars.{key}", 1)
    return value


def _check_var(value: JsonValue, path: str, level: int) -> None:
    """WV-03.

    `level` is that of a container standing here; the variable's own value is level 1. Recursion ends at level 9.
    """
    match value:
        case str():
            if len(value) > MAX_VAR_STRING_SCALARS:
                raise invalid(path, f"must have at most {MAX_VAR_STRING_SCALARS:,} Unicode scalars")
        case list() | dict():
            if level > MAX_VAR_DEPTH:
                raise invalid(path, f"nests deeper than {MAX_VAR_DEPTH} levels of arrays and objects")
            if len(value) > MAX_VAR_ITEMS:
                raise invalid(path, f"must have at most {MAX_VAR_ITEMS} entries, not {len(value)}")
            if isinstance(value, list):
                for index, item in enumerate(value):
                    _check_var(item, f"{path}[{index}]", level + 1)
                return
            for key, member in value.items():
                if not is_vars_key(key):
                    raise invalid(path, f"has the key {shown(key)}; a key is {_VARS_KEY_RULE}")
                _check_var(member, f"{path}.{key}", level + 1)
        case None | bool() | int() | float() | Decimal():
            pass


def _refuse_shared_names(variables: JsonObject, secrets: list[str], bindings: tuple[BindingSpec, ...]) -> None:
    """WV-02: one `env` namespace."""
    owners = [*((name, "vars") for name in variables), *((name, "requiredSensitiveVars") for name in secrets)]
    owners += [(item.name, item.kind) for item in bindings]
    seen: dict[str, str] = {}
    for name, kind in owners:
        if name in seen:
            where = f"twice in {kind}" if seen[name] == kind else f"in {seen[name]} and in {kind}"
            raise invalid("spec", f"declares the env name {shown(name)} {where}")
        seen[name] = kind


def _check_combination(spec: WorkerVersionSpec, has_vars: bool) -> None:
    """WV-04, WV-05."""
    first = spec.assets is not None and spec.assets.run_worker_first
    if spec.bundle_uid is None:
        if spec.assets is None:
            raise invalid("spec", "must have a bundle, or assets for a static-only Version")
        forbidden = {
            "handlers": bool(spec.handlers),
            "assets.runWorkerFirst": first,
            "vars": has_vars,
            "requiredSensitiveVars": bool(spec.required_sensitive_vars),
        } | {item.kind: True for item in spec.bindings}
        for key, present in forbidden.items():
            if present:
                raise invalid(f"spec.{key}", "needs a bundle; a static-only Version runs no code")
    if first and "fetch" not in spec.handlers:
        raise invalid("spec.assets.runWorkerFirst", "must be false while the handler fetch is not declared")


FORM = WorkerVersion()
