"""What all Forms share, and the small Forms."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saisei_contract import strict_json
from saisei_contract.errors import SaiseiError
from saisei_contract.forms import urls
from saisei_contract.forms.artifact import ArtifactSpec
from saisei_contract.forms.base import Reference
from saisei_contract.forms.durable_workflow import DurableWorkflowSpec
from saisei_contract.forms.registry import FORMS, UNHOSTED_FORMS, form
from saisei_contract.forms.worker_deployment import WeightedVersion, WorkerDeploymentSpec
from saisei_contract.forms.worker_endpoint import WorkerEndpointSpec, endpoint_output

WORKER = {"resourceUid": "w"}
DIGEST = "a" * 64
GOOD: dict[str, dict[str, Any]] = {
    urls.MODULE_WORKER: {},
    urls.WORKER_BUNDLE: {"artifact": {"url": "https://h/m.json", "sha256": DIGEST}},
    urls.STATIC_ASSET_BUNDLE: {"artifact": {"url": "https://h/m.json", "sha256": DIGEST}},
    urls.WORKER_VERSION: {"worker": WORKER, "bundle": {"resourceUid": "b"}, "handlers": ["fetch"]},
    urls.WORKER_DEPLOYMENT: {
        "worker": WORKER,
        "versions": [{"workerVersion": {"resourceUid": "v"}, "weight": 10000}],
    },
    urls.DURABLE_WORKFLOW: {"worker": WORKER, "className": "Order"},
    urls.WORKER_ENDPOINT: {"worker": WORKER},
    urls.WORKER_CRON_TRIGGER: {"worker": WORKER, "cron": "*/5 * * * *"},
}


def refused(url: str, spec: Any) -> str:
    """The detail of an invalid_spec refusal."""
    with pytest.raises(SaiseiError) as caught:
        FORMS[url].validate(spec)
    assert caught.value.reason == "invalid_spec"
    return caught.value.detail


def deployment(*weights: tuple[str, Any]) -> dict[str, Any]:
    return {
        "worker": WORKER,
        "versions": [{"workerVersion": {"resourceUid": uid}, "weight": weight} for uid, weight in weights],
    }


def test_the_registry() -> None:
    """H-008, H-053: eight Forms have rules and can be hosted, one holds as a whole; the other 9 URLs are known."""
    assert set(FORMS) == set(GOOD)
    assert len(UNHOSTED_FORMS) == 9
    assert len(urls.ALL_FORMS) == 17
    for url, known in FORMS.items():
        assert url == known.url == f"https://edge.forms.takoform.com/forms/{known.name}/{known.version}/"
        assert known.hosted
        assert known.supported == (url == urls.STATIC_ASSET_BUNDLE)
    assert [known.name for known in FORMS.values() if known.takes_private_inputs] == ["WorkerVersion"]


@pytest.mark.parametrize(
    "url", [urls.MODULE_WORKER[:-1], urls.MODULE_WORKER.upper(), urls.MODULE_WORKER + "x", urls.OBJECT_BUCKET]
)
def test_identity_is_exact(url: str) -> None:
    """H-008, H-083: a URL that differs in one character, or a Form without rules here, is unsupported_form."""
    assert form(urls.MODULE_WORKER).name == "ModuleWorker"
    with pytest.raises(SaiseiError, match="unsupported_form"):
        form(url)


@pytest.mark.parametrize("url", list(GOOD))
def test_good_specs(url: str) -> None:
    """F-01: each Form takes its smallest spec, and any spelling of it is the same spec."""
    known = FORMS[url]
    known.validate(GOOD[url])
    assert known.equal(GOOD[url], GOOD[url])
    known.immutable(GOOD[url], GOOD[url])
    assert known.unhosted_features(GOOD[url]) == []


def mutations(value: Any, path: tuple[Any, ...] = ()) -> Any:
    """Each object of a spec with an unknown key, each member as null, as a wrong type, and left out."""
    if isinstance(value, dict):
        yield path, "unknown", value | {"zzz": 1}
        for key, member in value.items():
            yield path, "null", value | {key: None}
            yield path, "wrong type", value | {key: 7.5}
            yield path, "missing", {name: other for name, other in value.items() if name != key}
            yield from mutations(member, (*path, key))
    if isinstance(value, list):
        for index, member in enumerate(value):
            yield from mutations(member, (*path, index))


def planted(spec: Any, path: tuple[Any, ...], replacement: Any) -> Any:
    if not path:
        return replacement
    copy = dict(spec) if isinstance(spec, dict) else list(spec)
    copy[path[0]] = planted(copy[path[0]], path[1:], replacement)
    return copy


@pytest.mark.parametrize("url", list(GOOD))
def test_specs_are_closed_everywhere(url: str) -> None:
    """F-01, H-010: at every level an unknown key, null, a wrong type and a missing field are invalid_spec."""
    for path, _what, replacement in mutations(GOOD[url]):
        assert refused(url, planted(GOOD[url], path, replacement)).startswith("spec")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 10001) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "worker",
                    "versions",
                    "workerVersion",
                    "weight",
                    "resourceUid",
                    "className",
                    "artifact",
                    "url",
                    "sha256",
                    "bundle",
                    "handlers",
                    "vars",
                    "assets",
                    "kvBindings",
                    "name",
                    "resource",
                    "requiredSensitiveVars",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(
    st.sampled_from(sorted(GOOD)),
    st.dictionaries(st.sampled_from(["worker", "handlers", "bundle", "vars", "versions", "className"]), json_values),
)
def test_any_object_is_a_spec_or_refused(url: str, spec: dict[str, Any]) -> None:
    """F-01: no input ends in anything but a valid spec or invalid_spec naming a place."""
    try:
        FORMS[url].validate(spec)
    except SaiseiError as error:
        assert error.reason == "invalid_spec"
        assert error.detail.startswith("spec")
    else:
        assert FORMS[url].equal(spec, spec)
        FORMS[url].references(spec)


@pytest.mark.parametrize(
    "reference",
    [
        "w",
        [],
        {},
        {"resourceUid": 1},
        {"resourceUid": ""},
        {"resourceUid": "a/b"},
        {"resourceUid": "w\n"},
        {"resourceUid": "w", "name": "x"},
        {"name": "w"},
    ],
)
def test_malformed_references(reference: Any) -> None:
    """F-02, F-03: a reference is exactly one resourceUid of the UID grammar."""
    assert "spec.worker" in refused(urls.WORKER_ENDPOINT, {"worker": reference})


def test_references_name_their_targets() -> None:
    """F-02: each reference comes with its place, the exact Form URL of its target, and its role."""
    assert FORMS[urls.MODULE_WORKER].references({}) == ()
    assert FORMS[urls.WORKER_BUNDLE].references(GOOD[urls.WORKER_BUNDLE]) == ()
    owner = Reference("spec.worker", urls.MODULE_WORKER, "w", "worker")
    assert FORMS[urls.DURABLE_WORKFLOW].references(GOOD[urls.DURABLE_WORKFLOW]) == (owner,)
    assert FORMS[urls.WORKER_ENDPOINT].references(GOOD[urls.WORKER_ENDPOINT]) == (owner,)
    assert FORMS[urls.WORKER_DEPLOYMENT].references(deployment(("b", 1), ("a", 9999))) == (
        owner,
        Reference("spec.versions[0].workerVersion", urls.WORKER_VERSION, "b", "versions"),
        Reference("spec.versions[1].workerVersion", urls.WORKER_VERSION, "a", "versions"),
    )


def test_module_worker_takes_nothing() -> None:
    """MW-01, MW-02: the spec is exactly {}."""
    assert 'unknown field "name"' in refused(urls.MODULE_WORKER, {"name": "x"})


def test_bundle() -> None:
    """AR-01: a URL and a digest."""
    valid = FORMS[urls.WORKER_BUNDLE].validate(GOOD[urls.WORKER_BUNDLE])
    assert valid == ArtifactSpec("https://h/m.json", DIGEST)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"url": "http://h/m"}, "spec.artifact.url"),
        ({"url": "https://u@h/m"}, "spec.artifact.url"),
        ({"url": "https://h/m?x"}, "spec.artifact.url"),
        ({"url": "https://h/m#x"}, "spec.artifact.url"),
        ({"url": "https://h/" + "a" * 8183}, "spec.artifact.url"),
        ({"url": "https://h/é"}, "spec.artifact.url"),
        ({"sha256": "A" * 64}, "spec.artifact.sha256"),
        ({"sha256": "sha256:" + DIGEST}, "spec.artifact.sha256"),
        ({"sha256": "a" * 63}, "spec.artifact.sha256"),
    ],
)
def test_bad_bundles(change: dict[str, str], field: str) -> None:
    """AR-01: the refusal names the field."""
    assert field in refused(urls.WORKER_BUNDLE, {"artifact": GOOD[urls.WORKER_BUNDLE]["artifact"] | change})


def test_bundle_is_immutable() -> None:
    """AR-09: the same url and digest strings only; key order is nothing."""
    known, old = FORMS[urls.WORKER_BUNDLE], GOOD[urls.WORKER_BUNDLE]
    known.immutable(old, {"artifact": {"sha256": DIGEST, "url": "https://h/m.json"}})
    for change in ({"url": "https://h/M.json"}, {"sha256": "b" * 64}):
        with pytest.raises(SaiseiError, match=r"invalid_spec: spec\.artifact cannot be changed on a WorkerBundle"):
            known.immutable(old, {"artifact": old["artifact"] | change})


def test_deployment() -> None:
    """WD-01: 1 to 8 Versions whose weights add up to 10000, in no order."""
    known = FORMS[urls.WORKER_DEPLOYMENT]
    assert known.validate(deployment(("b", 1), ("a", 9999))) == WorkerDeploymentSpec(
        "w", (WeightedVersion("a", 9999), WeightedVersion("b", 1))
    )
    known.validate(deployment(*((f"v{index}", 1250) for index in range(8))))


@pytest.mark.parametrize(
    ("weights", "word"),
    [
        ([], "spec.versions must have 1 to 8 entries, not 0"),
        ([(f"v{i}", 1000) for i in range(10)], "spec.versions must have 1 to 8 entries, not 10"),
        ([("a", 9999)], "add up to 10000, not 9999"),
        ([("a", 10000), ("b", 1)], "add up to 10000, not 10001"),
        ([("a", 5000), ("a", 5000)], "spec.versions[1].workerVersion names a WorkerVersion that is listed already"),
        ([("a", 0), ("b", 10000)], "spec.versions[0].weight must be an integer from 1 to 10000"),
        ([("a", 10001)], "spec.versions[0].weight"),
        ([("a", -1)], "spec.versions[0].weight"),
        ([("a", "10000")], "spec.versions[0].weight"),
        ([("a", True)], "spec.versions[0].weight"),
        ([("a", 9999.5), ("b", 0.5)], "spec.versions[0].weight"),
    ],
)
def test_bad_deployments(weights: list[tuple[str, Any]], word: str) -> None:
    """WD-01, F-01: counts, sum, duplicates, and integers that are not coerced."""
    assert word in refused(urls.WORKER_DEPLOYMENT, deployment(*weights))


def test_integers_of_any_spelling() -> None:
    """F-01, H-140: 10000.0 and 1e4 are the weight 10000, and the same spec."""
    known = FORMS[urls.WORKER_DEPLOYMENT]
    specs = [
        strict_json.parse_text(
            f'{{"versions":[{{"weight":{weight},"workerVersion":{{"resourceUid":"v"}}}}],"worker":{{"resourceUid":"w"}}}}'
        )
        for weight in ("10000", "10000.0", "1e4", "100e+2")
    ]
    for spec in specs:
        assert isinstance(spec, dict)
        assert known.validate(spec).versions == (WeightedVersion("v", 10000),)
        assert known.equal(spec, GOOD[urls.WORKER_DEPLOYMENT])


def test_deployment_equality_and_update() -> None:
    """WD-01, WD-08: order does not count, weights do; versions may change, the Worker may not."""
    known = FORMS[urls.WORKER_DEPLOYMENT]
    old = deployment(("a", 4000), ("b", 6000))
    assert known.equal(old, deployment(("b", 6000), ("a", 4000)))
    assert not known.equal(old, deployment(("a", 6000), ("b", 4000)))
    known.immutable(old, deployment(("c", 10000)))
    with pytest.raises(SaiseiError, match=r"spec\.worker cannot be changed"):
        known.immutable(old, old | {"worker": {"resourceUid": "other"}})


def test_workflow() -> None:
    """DW-01: a Worker and a class name."""
    valid = FORMS[urls.DURABLE_WORKFLOW].validate({"worker": WORKER, "className": "$Order_1"})
    assert valid == DurableWorkflowSpec("w", "$Order_1")


@pytest.mark.parametrize("name", ["", "1a", "a-b", "é", "a\n", "x" * 65, 7, ["A"], "a.b"])
def test_bad_class_names(name: Any) -> None:
    """DW-01: the identifier grammar, whole-string and ASCII."""
    assert "spec.className" in refused(urls.DURABLE_WORKFLOW, {"worker": WORKER, "className": name})


def test_workflow_is_immutable() -> None:
    """DW-06: only the same worker and className."""
    known, old = FORMS[urls.DURABLE_WORKFLOW], GOOD[urls.DURABLE_WORKFLOW]
    for change, field in (({"className": "order"}, "className"), ({"worker": {"resourceUid": "x"}}, "worker")):
        with pytest.raises(SaiseiError, match=rf"spec\.{field} cannot be changed on a DurableWorkflow"):
            known.immutable(old, old | change)


def test_endpoint() -> None:
    """EP-01, EP-03: the Worker only, immutable; the output is the hostname and exactly its https URL."""
    known = FORMS[urls.WORKER_ENDPOINT]
    assert known.validate({"worker": WORKER}) == WorkerEndpointSpec("w")
    with pytest.raises(SaiseiError, match=r"spec\.worker cannot be changed"):
        known.immutable({"worker": WORKER}, {"worker": {"resourceUid": "x"}})
    assert endpoint_output("a.workers.localhost") == {
        "hostname": "a.workers.localhost",
        "url": "https://a.workers.localhost/",
    }
    for bad in ("A.b", "a.", ""):
        with pytest.raises(ValueError, match="DNS name"):
            endpoint_output(bad)


@pytest.mark.parametrize("url", [url for url in GOOD if url != urls.WORKER_VERSION])
def test_other_forms_take_no_secrets(url: str) -> None:
    """F-07: none or an empty map is fine, a name is refused, on create and on update."""
    known = FORMS[url]
    for creating in (True, False):
        known.check_private_inputs(GOOD[url], None, creating=creating)
        known.check_private_inputs(GOOD[url], {}, creating=creating)
        with pytest.raises(SaiseiError, match=r'invalid_spec.*"A"') as caught:
            known.check_private_inputs(GOOD[url], {"A": "hunter2"}, creating=creating)
        assert "hunter2" not in str(caught.value)
