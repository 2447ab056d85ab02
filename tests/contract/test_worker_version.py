"""WorkerVersion 0.5.0, rule by rule."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saisei_contract import strict_json
from saisei_contract.errors import SaiseiError
from saisei_contract.forms import urls
from saisei_contract.forms.base import Reference
from saisei_contract.forms.worker_version import BINDING_TARGETS, FORM, AssetsSpec, BindingSpec, WorkerVersionSpec

BASE: dict[str, Any] = {"worker": {"resourceUid": "w"}, "bundle": {"resourceUid": "b"}, "handlers": ["fetch"]}
ASSETS: dict[str, Any] = {"bundle": {"resourceUid": "s"}, "runWorkerFirst": False, "notFoundHandling": "none"}
STATIC: dict[str, Any] = {"worker": {"resourceUid": "w"}, "handlers": [], "assets": ASSETS}


def binding(name: str, uid: str = "r") -> dict[str, Any]:
    return {"name": name, "resource": {"resourceUid": uid}}


def refused(**change: Any) -> str:
    with pytest.raises(SaiseiError) as caught:
        FORM.validate(BASE | change)
    assert caught.value.reason == "invalid_spec"
    return caught.value.detail


def accepted(**change: Any) -> WorkerVersionSpec:
    return FORM.validate(BASE | change)


def nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def test_defaults() -> None:
    """WV-06: vars is {}, names and Bindings are empty, assets are absent."""
    assert accepted() == WorkerVersionSpec("w", "b", frozenset({"fetch"}), b"{}", frozenset(), (), None)


def test_everything_at_once() -> None:
    """WV-01, WV-02: every kind of member in one spec."""
    kinds = {kind: [binding(f"B{index}", f"r{index}")] for index, kind in enumerate(BINDING_TARGETS)}
    valid = accepted(
        handlers=["queue", "fetch", "scheduled"],
        vars={"b": 1.0, "a": [None, True, "x", {"k": 1e-7}]},
        requiredSensitiveVars=["TOKEN", "A1_"],
        assets=ASSETS | {"runWorkerFirst": True, "notFoundHandling": "single_page_application"},
        **kinds,
    )
    assert valid.handlers == {"fetch", "scheduled", "queue"}
    assert valid.vars_json == b'{"a":[null,true,"x",{"k":1e-7}],"b":1}'
    assert valid.required_sensitive_vars == {"TOKEN", "A1_"}
    assert valid.bindings == tuple(BindingSpec(kind, f"B{i}", f"r{i}") for i, kind in enumerate(BINDING_TARGETS))
    assert valid.assets == AssetsSpec("s", True, "single_page_application")


@pytest.mark.parametrize(
    ("handlers", "word"),
    [
        (["fetch", "fetch"], "must not list a handler twice"),
        (["alarm"], "spec.handlers[0] must be one of fetch, scheduled, queue"),
        (["Fetch"], "spec.handlers[0]"),
        ([["fetch"]], "spec.handlers[0]"),
        ([1], "spec.handlers[0]"),
        (["fetch", "scheduled", "queue", "fetch"], "0 to 3 entries"),
        ({}, "must be an array"),
        ("fetch", "must be an array"),
    ],
)
def test_bad_handlers(handlers: Any, word: str) -> None:
    """F-01, WV-04: at most the three handlers, each once."""
    assert word in refused(handlers=handlers)


@pytest.mark.parametrize("name", ["a", "Z9._-", "x" * 64])
def test_good_vars_keys(name: str) -> None:
    """WV-01: a letter, then up to 63 letters, digits, dots, underscores, hyphens."""
    assert accepted(vars={name: 1})
    assert accepted(vars={"v": {name: 1}})


@pytest.mark.parametrize("name", ["", "1a", "_a", "$a", "a b", "a$", "é", "a\n", "x" * 65, "__proto__"])
def test_bad_vars_keys(name: str) -> None:
    """WV-01, WV-03: also for the keys of objects inside a variable."""
    assert "spec.vars has the key" in refused(vars={name: 1})
    assert "spec.vars.v has the key" in refused(vars={"v": {name: 1}})


@pytest.mark.parametrize("name", ["a", "_", "$", "A1_$", "x" * 64])
def test_good_binding_names(name: str) -> None:
    """WV-01: an identifier."""
    assert accepted(kvBindings=[binding(name)])


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a.b", "é", "a\n", "x" * 65, 7])
def test_bad_binding_names(name: Any) -> None:
    """WV-01: nothing else."""
    assert "spec.kvBindings[0].name" in refused(kvBindings=[binding(name)])


@pytest.mark.parametrize("name", ["", "a", "Aa", "_A", "1A", "A-B", "A\n", "X" * 65, 7])
def test_bad_secret_names(name: Any) -> None:
    """WV-01: capitals, digits and underscores after a capital."""
    assert "spec.requiredSensitiveVars[0]" in refused(requiredSensitiveVars=[name])


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"vars": {"A": 1}, "requiredSensitiveVars": ["A"]}, '"A" in vars and in requiredSensitiveVars'),
        ({"vars": {"A": 1}, "kvBindings": [binding("A")]}, '"A" in vars and in kvBindings'),
        ({"requiredSensitiveVars": ["A", "A"]}, '"A" twice in requiredSensitiveVars'),
        (
            {"requiredSensitiveVars": ["A"], "actorBindings": [binding("A")]},
            "requiredSensitiveVars and in actorBindings",
        ),
        ({"kvBindings": [binding("A"), binding("A", "other")]}, '"A" twice in kvBindings'),
        ({"kvBindings": [binding("A")], "workflowBindings": [binding("A")]}, "kvBindings and in workflowBindings"),
    ],
)
def test_one_namespace(change: dict[str, Any], word: str) -> None:
    """WV-02: a name stands for one thing in env, across kinds and inside one."""
    assert word in refused(**change)


def test_names_are_compared_exactly() -> None:
    """WV-02: letter case makes another name, and one Resource may be bound twice."""
    assert accepted(vars={"a": 1, "A": 2}, kvBindings=[binding("b", "r"), binding("B", "r")])


@pytest.mark.parametrize("value", [None, True, 0, -1.5, "", "x" * 8192, "😀" * 8192, [], {}, [0] * 64, nested(8)])
def test_good_variables(value: Any) -> None:
    """WV-03: scalars, null, strings of 8,192 scalars, 64 entries, 8 levels."""
    assert accepted(vars={"v": value})


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("x" * 8193, "spec.vars.v must have at most 8,192 Unicode scalars"),
        ("😀" * 8193, "at most 8,192 Unicode scalars"),
        ([0] * 65, "spec.vars.v must have at most 64 entries, not 65"),
        ({f"k{i}": 0 for i in range(65)}, "spec.vars.v must have at most 64 entries"),
        (nested(9), "nests deeper than 8 levels"),
        (["a", ["x" * 8193]], "spec.vars.v[1][0]"),
        ({"k": [0] * 65}, "spec.vars.v.k"),
    ],
)
def test_bad_variables(value: Any, word: str) -> None:
    """WV-03: one over each limit, with its place."""
    assert word in refused(vars={"v": value})


def test_very_deep_variables_are_refused_and_do_not_crash() -> None:
    """WV-03: nesting is bounded before it is walked."""
    assert "nests deeper" in refused(vars={"v": nested(50_000)})


def test_counts() -> None:
    """WV-01: 64 variables, secrets and Bindings of a kind; not 65."""
    names = [f"N{index}" for index in range(65)]
    assert accepted(vars=dict.fromkeys(names[:64], 1))
    assert "at most 64 keys, not 65" in refused(vars=dict.fromkeys(names, 1))
    assert accepted(requiredSensitiveVars=names[:64])
    assert "0 to 64 entries, not 65" in refused(requiredSensitiveVars=names)
    for kind in BINDING_TARGETS:
        assert accepted(**{kind: [binding(name) for name in names[:64]]})
        assert f"spec.{kind} must have 0 to 64 entries" in refused(**{kind: [binding(name) for name in names]})


@pytest.mark.parametrize("kind", list(BINDING_TARGETS))
def test_bindings_are_closed(kind: str) -> None:
    """F-01, F-02: name and resource, nothing more, nothing less."""
    for entry in ({}, {"name": "A"}, binding("A") | {"x": 1}, {"name": "A", "resource": "r"}, None, "A"):
        assert f"spec.{kind}[0]" in refused(**{kind: [entry]})
    for value in ({}, None, "A"):
        assert f"spec.{kind}" in refused(**{kind: value})


@pytest.mark.parametrize(
    ("assets", "field"),
    [
        ({}, "spec.assets.bundle is missing"),
        ({"bundle": {"resourceUid": "s"}}, "spec.assets.runWorkerFirst is missing"),
        (ASSETS | {"runWorkerFirst": 0}, "spec.assets.runWorkerFirst must be true or false"),
        (ASSETS | {"runWorkerFirst": "false"}, "spec.assets.runWorkerFirst"),
        (
            ASSETS | {"notFoundHandling": "404"},
            "spec.assets.notFoundHandling must be one of none, single_page_application",
        ),
        (ASSETS | {"notFoundHandling": None}, "spec.assets.notFoundHandling must not be null"),
        (ASSETS | {"x": 1}, "spec.assets has the unknown field"),
        (None, "spec.assets must not be null"),
    ],
)
def test_bad_assets(assets: Any, field: str) -> None:
    """F-01: assets need all three keys and only those."""
    assert field in refused(assets=assets)


def test_static_only() -> None:
    """WV-04: assets without a bundle; explicit defaults are no difference."""
    valid = FORM.validate(STATIC)
    assert valid.bundle_uid is None
    assert valid.answers_http
    assert FORM.equal(STATIC, STATIC | {"vars": {}, "requiredSensitiveVars": [], "serviceBindings": []})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"handlers": ["fetch"]}, "spec.handlers"),
        ({"assets": ASSETS | {"runWorkerFirst": True}}, "spec.assets.runWorkerFirst"),
        ({"vars": {"a": 1}}, "spec.vars"),
        ({"requiredSensitiveVars": ["A"]}, "spec.requiredSensitiveVars"),
        *(({kind: [binding("A")]}, f"spec.{kind}") for kind in BINDING_TARGETS),
    ],
)
def test_static_only_runs_no_code(change: dict[str, Any], field: str) -> None:
    """WV-04: a Version without a bundle has no handlers, variables, secrets or Bindings."""
    with pytest.raises(SaiseiError) as caught:
        FORM.validate(STATIC | change)
    assert caught.value.detail == f"{field} needs a bundle; a static-only Version runs no code."


def test_neither_bundle_nor_assets() -> None:
    """WV-04: refused; with a bundle, an empty list of handlers is fine."""
    with pytest.raises(SaiseiError, match="must have a bundle, or assets"):
        FORM.validate({"worker": {"resourceUid": "w"}, "handlers": []})
    assert not accepted(handlers=[]).answers_http


def test_worker_first_needs_fetch() -> None:
    """WV-05: runWorkerFirst without fetch is refused."""
    first = ASSETS | {"runWorkerFirst": True}
    assert "spec.assets.runWorkerFirst must be false" in refused(handlers=["queue"], assets=first)
    assert accepted(assets=first).answers_http


def test_equality_of_sets_and_defaults() -> None:
    """WV-06: handlers, secret names and Bindings are sets, defaults are expanded, key order and number spelling are
    nothing.
    """
    left = BASE | {
        "handlers": ["fetch", "queue"],
        "vars": {"a": 1, "b": {"x": 1, "y": [1, 2]}},
        "requiredSensitiveVars": ["B", "A"],
        "kvBindings": [binding("y"), binding("x", "r2")],
    }
    right = strict_json.parse_text(
        '{"kvBindings":[{"resource":{"resourceUid":"r2"},"name":"x"},{"name":"y","resource":{"resourceUid":"r"}}],'
        '"requiredSensitiveVars":["A","B"],"vars":{"b":{"y":[1e0,2.0],"x":1.00},"a":10e-1},"handlers":["queue","fetch"],'
        '"bundle":{"resourceUid":"b"},"worker":{"resourceUid":"w"},"sqliteBindings":[],"workflowBindings":[]}'
    )
    assert isinstance(right, dict)
    assert FORM.equal(left, right)
    FORM.immutable(left, right)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"worker": {"resourceUid": "w2"}}, "worker"),
        ({"bundle": {"resourceUid": "b2"}}, "bundle"),
        ({"handlers": []}, "handlers"),
        ({"vars": {"a": [2, 1]}}, "vars"),
        ({"vars": {"a": [1, 2.5]}}, "vars"),
        ({"vars": {"a": [1, "2"]}}, "vars"),
        ({"vars": {"a": [True, 2]}}, "vars"),
        ({"vars": {}}, "vars"),
        ({"requiredSensitiveVars": ["T"]}, "requiredSensitiveVars"),
        ({"workflowBindings": [binding("F", "other")]}, "workflowBindings"),
        ({"workflowBindings": [binding("G", "r")]}, "workflowBindings"),
        ({"workflowBindings": []}, "workflowBindings"),
        ({"assets": ASSETS}, "assets"),
    ],
)
def test_every_change_is_refused(change: dict[str, Any], field: str) -> None:
    """WV-06, F-06: a Version is immutable; arrays inside vars keep their order; absent assets are not present ones."""
    old = BASE | {"vars": {"a": [1, 2]}, "workflowBindings": [binding("F", "r")]}
    assert not FORM.equal(old, old | change)
    with pytest.raises(SaiseiError, match=rf"spec\.{field} cannot be changed on a WorkerVersion"):
        FORM.immutable(old, old | change)


def test_strings_are_not_normalised() -> None:
    """WV-06: composed and decomposed letters are different scalars."""
    assert not FORM.equal(BASE | {"vars": {"a": "\u00e9"}}, BASE | {"vars": {"a": "e\u0301"}})


@given(
    st.permutations(["fetch", "scheduled", "queue"]), st.permutations(["A", "B", "C"]), st.permutations(["x", "y", "z"])
)
def test_order_of_sets_never_counts(handlers: list[str], secrets: list[str], names: list[str]) -> None:
    """WV-06: whatever the order, it is the same spec."""
    spec = BASE | {
        "handlers": handlers,
        "requiredSensitiveVars": secrets,
        "workflowBindings": [binding(name, f"r{name}") for name in names],
    }
    sorted_spec = BASE | {
        "handlers": sorted(handlers),
        "requiredSensitiveVars": sorted(secrets),
        "workflowBindings": [binding(name, f"r{name}") for name in sorted(names)],
    }
    assert FORM.equal(spec, sorted_spec)


SECRETIVE = BASE | {"requiredSensitiveVars": ["A", "B"]}


@pytest.mark.parametrize("creating", [True, False])
def test_good_secrets(creating: bool) -> None:
    """WV-07: every name with a value that is not empty."""
    assert FORM.private_input_names(SECRETIVE) == {"A", "B"}
    FORM.check_private_inputs(SECRETIVE, {"A": "x", "B": " "}, creating=creating)


@pytest.mark.parametrize("creating", [True, False])
@pytest.mark.parametrize(
    ("inputs", "word"),
    [
        ({"A": "hunter2"}, 'lacks a value for "B"'),
        ({}, 'lacks a value for "A", "B"'),
        ({"A": "hunter2", "B": "x", "C": "y"}, 'does not require: "C"'),
        ({"A": "hunter2", "B": ""}, 'must not be empty for "B"'),
    ],
)
def test_bad_secrets(inputs: dict[str, str], word: str, creating: bool) -> None:
    """WV-07, H-152, H-153: missing, extra and empty ones are refused by name; no value is quoted."""
    with pytest.raises(SaiseiError) as caught:
        FORM.check_private_inputs(SECRETIVE, inputs, creating=creating)
    assert caught.value.reason == "invalid_spec"
    assert word in caught.value.detail.replace("names that the spec ", "")
    assert "hunter2" not in caught.value.detail


def test_omitted_secrets() -> None:
    """WV-07: an update may omit the map and keep what is stored, a create may not; without names it is fine, as {}
    is.
    """
    FORM.check_private_inputs(SECRETIVE, None, creating=False)
    with pytest.raises(SaiseiError, match='must give a value for "A", "B"'):
        FORM.check_private_inputs(SECRETIVE, None, creating=True)
    for inputs in (None, {}):
        FORM.check_private_inputs(BASE, inputs, creating=True)


def test_references() -> None:
    """F-02, WV-14: worker, bundle, every Binding target and the asset bundle, each with its exact Form URL."""
    spec = (
        BASE
        | {"assets": ASSETS}
        | {kind: [binding(f"{kind}1", "x"), binding(f"{kind}2", "y")] for kind in BINDING_TARGETS}
    )
    found = FORM.references(spec)
    assert found[:2] == (
        Reference("spec.worker", urls.MODULE_WORKER, "w", "worker"),
        Reference("spec.bundle", urls.WORKER_BUNDLE, "b", "bundle"),
    )
    assert found[-1] == Reference("spec.assets.bundle", urls.STATIC_ASSET_BUNDLE, "s", "assets")
    bound = [
        Reference(f"spec.{kind}[{index}].resource", target, uid, kind)
        for kind, target in BINDING_TARGETS.items()
        for index, uid in enumerate(("x", "y"))
    ]
    assert list(found[2:-1]) == bound
    assert {target.split("/")[-3] for target in BINDING_TARGETS.values()} == {
        "EdgeKVNamespace", "SQLiteDatabase", "ObjectBucket", "AtLeastOnceQueue", "ModuleWorker", "ActorNamespace",
        "DurableWorkflow",
    }  # fmt: skip


def test_unhosted_features() -> None:
    """H-053: valid specs whose meaning this Host does not carry yet are named, key by key."""
    assert FORM.unhosted_features(BASE | {"workflowBindings": [binding("F")], "vars": {"a": 1}}) == []
    assert FORM.unhosted_features(
        BASE | {"assets": ASSETS, "kvBindings": [binding("K")], "actorBindings": [binding("A")]}
    ) == [
        "kvBindings",
        "actorBindings",
    ]
    assert FORM.unhosted_features(BASE | {"kvBindings": []}) == []
