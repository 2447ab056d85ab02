"""The assigned Resources as the hot paths see them."""

from __future__ import annotations

import random
from collections import Counter

from saisei.control.v1 import assignments_pb2 as pb
from saisei_contract.errors import SaiseiError
from saisei_runtime.code import BindingKind
from saisei_runtime.hosting.state import HostedState


def deployment(revision: int, uid: str, worker: str, **weights: int) -> pb.Assignment:
    versions = [pb.WeightedVersion(version_uid=version, weight=weight) for version, weight in weights.items()]
    body = pb.DeploymentAssignment(worker_uid=worker, versions=versions)
    return pb.Assignment(revision=revision, resource_uid=uid, deployment=body)


def test_no_deployment_selects_nothing() -> None:
    """WD-04: without an active Deployment no Version is chosen, and none is guessed."""
    assert HostedState().pick("worker") is None


def test_choice_follows_the_weights() -> None:
    """WD-04: weights are ratios; over many choices each Version gets its share."""
    seed = random.randrange(2**32)
    print("seed", seed)
    state = HostedState(random.Random(seed).randrange)
    state.apply(deployment(1, "d", "worker", blue=9000, green=1000))
    counted = Counter(state.pick("worker") for _ in range(10_000))
    assert set(counted) == {"blue", "green"}
    assert abs(counted["green"] - 1000) < 150


def test_replaced_allocation_is_effective_at_once_and_whole() -> None:
    """WD-08: an update replaces the whole list; no choice after it sees a dropped Version."""
    state = HostedState()
    state.apply(deployment(1, "d", "worker", old=10_000))
    assert state.apply(deployment(2, "d", "worker", new=10_000)) == "worker"
    assert {state.pick("worker") for _ in range(100)} == {"new"}
    assert state.revision == 2


def test_removed_deployment_closes_selection() -> None:
    """WD-09: deleting the Deployment closes selection and names the Worker whose contexts must stop."""
    state = HostedState()
    state.apply(deployment(1, "d", "worker", v=10_000))
    assert state.apply(pb.Assignment(revision=2, resource_uid="d", removed=True)) == "worker"
    assert state.pick("worker") is None
    assert state.allocation("worker") is None


def test_workflow_is_found_by_uid_only() -> None:
    """F-02: a DurableWorkflow is looked up by UID; a removed one is nowhere, also under an old name."""
    state = HostedState()
    body = pb.WorkflowAssignment(worker_uid="worker", class_name="Report")
    state.apply(pb.Assignment(revision=1, resource_uid="u1", space="s", name="report", workflow=body))
    assert state.workflow("u1") == ("worker", "Report", "s")
    assert state.workflow("report") is None
    state.apply(pb.Assignment(revision=2, resource_uid="u1", removed=True))
    assert state.workflow("u1") is None


def test_hostname_moves_with_its_endpoint() -> None:
    """EP-03: a hostname leads to its Worker as long as its Endpoint is assigned, and no longer."""
    state = HostedState()
    body = pb.EndpointAssignment(worker_uid="worker", hostname="a.workers.localhost")
    state.apply(pb.Assignment(revision=1, resource_uid="e", endpoint=body))
    found = state.endpoint("a.workers.localhost")
    assert found is not None
    assert found.worker_uid == "worker"
    state.apply(pb.Assignment(revision=2, resource_uid="e", removed=True))
    assert state.endpoint("a.workers.localhost") is None


def test_version_carries_bindings_pinned_by_uid() -> None:
    """F-02: Bindings of a Version are kept as name, kind and UID."""
    state = HostedState()
    binding = pb.BindingAssignment(name="REPORTS", kind=pb.BINDING_KIND_WORKFLOW, resource_uid="u1")
    body = pb.VersionAssignment(worker_uid="worker", entrypoint="main.mjs", vars_json="{}", bindings=[binding])
    state.apply(pb.Assignment(revision=1, resource_uid="v", version=body))
    version = state.version("v")
    assert version is not None
    assert [(b.name, b.kind, b.resource_uid) for b in version.bindings] == [("REPORTS", BindingKind.WORKFLOW, "u1")]


def test_keep_alive_changes_nothing() -> None:
    """Design 1: a keep-alive of the assignment stream only moves the revision on."""
    state = HostedState()
    assert state.apply(pb.Assignment(revision=7, caught_up=True)) is None
    assert state.revision == 7


def test_nothing_is_denied_before_the_history_was_heard() -> None:
    """W-155: a starting runtime says "try again" of what it has not heard of yet, never "there is no such thing"."""
    state, unknown = HostedState(), SaiseiError("not_found", "no such workflow")
    assert state.missing(unknown).reason == "backend_unavailable"
    state.apply(pb.Assignment(revision=1, caught_up=True))
    assert state.missing(unknown) is unknown
