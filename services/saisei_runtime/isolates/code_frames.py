"""A Version as the frame that gives it to a thread, and which Versions a thread holds."""

from __future__ import annotations

from saisei_contract.errors import SaiseiError
from saisei_runtime.code import BindingKind, WorkerCode
from saisei_runtime.isolates.process import NodeThread
from saisei_runtime.isolates.protocol import Code, Forget, ModuleHead

SUPPORTED_BINDINGS = frozenset({BindingKind.SERVICE, BindingKind.WORKFLOW})
# A thread holds this many Versions at most.
HELD_VERSIONS = 4


def require_supported(code: WorkerCode) -> None:
    """SaiseiError backend_unavailable when the Version has a Binding that this Host cannot serve."""
    for binding in code.bindings:
        if binding.kind not in SUPPORTED_BINDINGS:
            raise SaiseiError("backend_unavailable", f"this Host does not serve {binding.kind.value} Bindings yet")


def code_frame(code: WorkerCode, *, with_environment: bool = True) -> tuple[Code, bytes]:
    """`with_environment=False` leaves out variables, secrets and Bindings (W-080)."""
    modules = [ModuleHead(path, module.media_type, len(module.data)) for path, module in code.modules.items()]
    head = Code(
        code.version_uid,
        code.entrypoint,
        modules,
        code.vars_json.decode() if with_environment else "{}",
        list(code.secrets.items()) if with_environment else [],
        [(binding.name, binding.kind.value) for binding in code.bindings] if with_environment else [],
    )
    return head, b"".join(module.data for module in code.modules.values())


def give_code(thread: NodeThread, code: WorkerCode) -> None:
    """Sends the Version unless the thread holds it; an old one is forgotten."""
    if code.version_uid in thread.versions:
        thread.versions[code.version_uid] = thread.versions.pop(code.version_uid)
        return
    while len(thread.versions) >= HELD_VERSIONS:
        oldest = next(iter(thread.versions))
        del thread.versions[oldest]
        thread.send(Forget(oldest))
    thread.versions[code.version_uid] = None
    thread.send(*code_frame(code))
