"""What runs of a Worker's Versions in this process, contexts and invocations: counted, and stopped with proof."""

from __future__ import annotations

from dataclasses import dataclass

from saisei_runtime.hosting.state import HostedState
from saisei_runtime.isolates.port import ContextPool
from saisei_runtime.serving.assets import Assets
from saisei_runtime.serving.invoke import Serving
from saisei_runtime.workflow.engine import WorkflowEngine


@dataclass(frozen=True, slots=True)
class Use:
    contexts: int
    invocations: int


class VersionUse:
    def __init__(
        self, engine: WorkflowEngine, serving: Serving, pool: ContextPool, assets: Assets, state: HostedState
    ) -> None:
        self._engine = engine
        self._serving = serving
        self._pool = pool
        self._assets = assets
        self._state = state

    def of(self, worker_uid: str, version_uid: str) -> Use:
        """WV-13. What a thread does after the response, for `waitUntil`, is under way too.

        The pool counts contexts and invocations, most of which the other two know as well: the larger number counts.
        """
        contexts = self._engine.contexts_of(worker_uid, version_uid)
        running = self._pool.running(worker_uid, version_uid) - contexts
        return Use(contexts, max(running, self._serving.invocations_of(version_uid)))

    async def end(self, worker_uid: str, version_uid: str | None) -> int:
        """Ends everything of a Version, or of the whole Worker, and returns how much there was (WD-08, WD-09).

        SaiseiError backend_unavailable while a stop is unproven. What is no longer selected does not begin meanwhile.
        """
        contexts = await self._engine.drain(worker_uid, version_uid)
        contexts += await self._pool.drain(worker_uid, version_uid)
        self._assets.end(worker_uid, version_uid)
        if version_uid is not None and self._state.version(version_uid) is None:
            # WV-13: with the Version its copies go, too.
            await self._assets.tidy()
        return contexts
