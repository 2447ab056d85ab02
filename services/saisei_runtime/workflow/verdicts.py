"""What an app's author is told of an end that the Host decided: the code has thrown nothing that would be logged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from saisei_runtime.isolates.contexts import log_worker_line
from saisei_runtime.workflow.allocations import Allocations
from saisei_runtime.workflow.outcome import LIFETIME, MISMATCH, STEP_LIMIT
from saisei_runtime.workflow.workspace import Change

_OF_THE_HOST: Final = frozenset((MISMATCH, STEP_LIMIT, LIFETIME))


def tell_verdicts(changes: Sequence[Change], allocations: Allocations) -> None:
    """A line where the Worker's own lines are for each instance that these changes ended so. In the event loop."""
    for change in changes:
        instance = change.after
        # No terminal row changes any more, so this is the change that ended it.
        if instance.error_reason not in _OF_THE_HOST:
            continue
        worker_uid, class_name, _ = allocations.workflow(instance.workflow_uid) or ("", "", "")
        about = {
            "version": instance.version_uid or "",
            "workflow": instance.workflow_uid,
            "class": class_name,
            "instance": instance.instance_id,
        }
        text = f"the instance ended as errored with {instance.error_reason}"
        if instance.error_message:
            text += f": {instance.error_message}"
        log_worker_line(worker_uid, f"{instance.incarnation}-{instance.epoch}", "error", text, about)
