"""`saisei.runtime.v1.RuntimeAdminService`: what the control service asks for. Internal."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from saisei.runtime.v1 import admin_pb2 as pb
from saisei.runtime.v1 import admin_pb2_grpc as rpc
from saisei_contract.errors import SaiseiError
from saisei_runtime.code import WorkerCode
from saisei_runtime.cron.scheduler import CronScheduler
from saisei_runtime.hosting.code_store import CodeStore
from saisei_runtime.hosting.state import HostedFile, HostedState
from saisei_runtime.hosting.use import VersionUse
from saisei_runtime.isolates.port import ContextPool
from saisei_runtime.workflow.engine import WorkflowEngine
from saisei_runtime.workflow.replay_check import NAMED, Replayable, ReplayCheck, Why
from saisei_service.clock import Clock, VirtualClock
from saisei_service.credentials import require_service

Context = grpc.aio.ServicerContext[Any, Any]

_DOUBTS = {
    Why.NEW_STEP: pb.REPLAY_DOUBT_REASON_NEW_STEP,
    Why.ENDED: pb.REPLAY_DOUBT_REASON_ENDED,
    Why.ASKED_OUTSIDE: pb.REPLAY_DOUBT_REASON_ASKED_OUTSIDE,
    Why.TIME: pb.REPLAY_DOUBT_REASON_TIME,
    Why.NOT_RUN: pb.REPLAY_DOUBT_REASON_NOT_RUN,
    Why.NOT_SAMPLED: pb.REPLAY_DOUBT_REASON_NOT_SAMPLED,
}


class RuntimeAdminServicer(rpc.RuntimeAdminServiceServicer):
    def __init__(
        self,
        engine: WorkflowEngine,
        state: HostedState,
        code: CodeStore,
        pool: ContextPool,
        use: VersionUse,
        replays: ReplayCheck,
        crons: CronScheduler,
        clock: Clock,
        credential: str,
    ) -> None:
        self._engine = engine
        self._state = state
        self._code = code
        self._pool = pool
        self._use = use
        self._replays = replays
        self._crons = crons
        self._clock = clock
        self._credential = credential

    async def InspectVersion(self, request: pb.InspectVersionRequest, context: Context) -> pb.InspectVersionResponse:
        require_service(context, self._credential)
        files = [HostedFile(file.path, file.sha256, file.media_type) for file in request.files]
        code = WorkerCode(
            version_uid=request.version_uid,
            worker_uid=request.worker_uid,
            entrypoint=request.entrypoint,
            modules=await self._code.modules(request.version_uid, files),
            handlers=frozenset(request.handlers),
        )
        found = await self._pool.inspect(code)
        return pb.InspectVersionResponse(
            loads=found.loads,
            handlers=sorted(found.handlers),
            workflow_classes=sorted(found.workflow_classes),
            problems=[
                pb.CodeProblem(
                    code=problem.code,
                    message=problem.message,
                    module=problem.module,
                    line=problem.line,
                    column=problem.column,
                )
                for problem in found.problems
            ],
        )

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:
        require_service(context, self._credential)
        stopped = await self._use.end(request.worker_uid, request.version_uid or None)
        return pb.DrainResponse(stopped_contexts=stopped)

    async def ObserveVersion(self, request: pb.ObserveVersionRequest, context: Context) -> pb.ObserveVersionResponse:
        require_service(context, self._credential)
        use = self._use.of(request.worker_uid, request.version_uid)
        return pb.ObserveVersionResponse(contexts=use.contexts, invocations=use.invocations)

    async def CheckReplay(self, request: pb.CheckReplayRequest, context: Context) -> pb.CheckReplayResponse:
        require_service(context, self._credential)
        names = {found.uid: found.name for found in self._state.workflows_of(request.worker_uid)}
        workflows = [Replayable(found.uid, found.class_name) for found in self._state.workflows_of(request.worker_uid)]
        found = await self._replays.check(workflows, request.version_uids)
        return pb.CheckReplayResponse(
            mismatches=[
                pb.ReplayMismatch(
                    version_uid=one.version_uid,
                    workflow_uid=one.workflow_uid,
                    workflow_name=names[one.workflow_uid],
                    instance_id=one.instance_id,
                    step_name=one.step_name,
                    begun_with=one.begun_with,
                    called_with=one.called_with,
                )
                for one in found.mismatches
            ],
            fitting=found.fitting,
            unknown=len(found.doubts),
            doubts=[
                pb.ReplayDoubt(
                    reason=_DOUBTS[why],
                    instances=found.not_sampled if why is Why.NOT_SAMPLED else len(doubts),
                    examples=[
                        pb.ReplayDoubtExample(
                            workflow_name=names[one.workflow_uid],
                            instance_id=one.instance_id,
                            step_name=one.step_name,
                            new_step=one.new_step,
                        )
                        for one in doubts[:NAMED]
                    ],
                )
                for why, doubts in found.unconfirmed().items()
            ],
        )

    async def Purge(self, request: pb.PurgeRequest, context: Context) -> pb.PurgeResponse:
        require_service(context, self._credential)
        if self._state.hosted_workflow(request.workflow_uid) is not None:
            # Admission closes with the removal of the assignment; purging before it would race with new instances.
            raise SaiseiError("backend_unavailable", "the DurableWorkflow is still assigned to this runtime")
        return pb.PurgeResponse(purged_instances=await self._engine.purge(request.workflow_uid))

    async def Observe(self, request: pb.ObserveRequest, context: Context) -> pb.ObserveResponse:
        require_service(context, self._credential)
        workflow = self._state.hosted_workflow(request.workflow_uid)
        ready = workflow is not None and self._state.allocation(workflow.worker_uid) is not None
        return pb.ObserveResponse(
            ready=ready,
            instance_counts=await self._engine.counts(request.workflow_uid),
            open_subscriptions=self._engine.open_subscriptions(request.workflow_uid),
        )

    async def AdvanceClock(self, request: pb.AdvanceClockRequest, context: Context) -> pb.AdvanceClockResponse:
        require_service(context, self._credential)
        if not isinstance(self._clock, VirtualClock):
            raise SaiseiError("capability_unavailable", "this Host does not run on a virtual clock")
        try:
            now = self._clock.advance(request.seconds)
        except ValueError as error:
            raise SaiseiError("invalid_request", f"seconds: {error}") from error
        contexts, runs = await asyncio.gather(self._engine.settle_due(), self._crons.settle_due())
        return pb.AdvanceClockResponse(now_ms=now, started=contexts + runs)
