"""WorkerEndpoint: the Host-assigned name answers for the Worker's active allocation (EP-01 … EP-05)."""

from __future__ import annotations

import json

from sqlalchemy import Connection

from saisei.control.v1 import assignments_pb2
from saisei_contract.forms.worker_endpoint import FORM, WorkerEndpointSpec
from saisei_control.operations.outcome import Done, Failed, Outcome
from saisei_control.operations.work import Work
from saisei_control.resources import allocation
from saisei_control.resources.allocation import Requirement
from saisei_control.store.rows import exact_spec


class WorkerEndpointEffect:
    async def apply(self, work: Work) -> Outcome:
        spec = FORM.validate(exact_spec(work.resource))
        other = await work.put_into_effect(lambda connection: _attach(connection, work, spec))
        if other is not None:
            return other
        # The gateway's certificate covers every name under the workers' domain: an effective route is reachable.
        return Done(observed={"tlsReady": True, "activeDeploymentRouteReady": True})

    async def remove(self, work: Work) -> Outcome:
        revision = await work.unpublish()
        if revision is not None:
            waiting = await work.until_effective(revision)
            if waiting is not None:
                return waiting
        return Done()


def _attach(connection: Connection, work: Work, spec: WorkerEndpointSpec) -> int | Failed:
    deployment = allocation.active_deployment(connection, spec.worker_uid)
    if deployment is None:
        return Failed("dependency_conflict", "The Worker has no active WorkerDeployment any more.")
    found = allocation.fit(connection, allocation.active_versions(deployment), Requirement(http=True))
    if found.conflict is not None:
        return Failed("dependency_conflict", f"The active allocation does not fit: {found.conflict}.")
    hostname = json.loads(work.resource.record.output_json)["hostname"]
    body = assignments_pb2.EndpointAssignment(worker_uid=spec.worker_uid, hostname=hostname)
    return work.publish_in(connection, assignments_pb2.Assignment(endpoint=body))
