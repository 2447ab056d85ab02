"""Brings a Host's Resources to what a project says, in the order of DW-10, and only what differs.

Bundles and Versions never change: each new content gets a Resource of its own, named by its digest. So a repeated
deploy finds what it made before, and one that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets as random
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saisei_cli.client import HostClient, HostError, Json
from saisei_cli.deploy.crons import WORKER_CRON_TRIGGER, obsolete_triggers, triggers
from saisei_cli.deploy.project import Project, WorkflowEntry
from saisei_cli.deploy.services import service_bindings
from saisei_cli.failures import CommandFailure

_FORMS = "https://edge.forms.takoform.com/forms/"
MODULE_WORKER = f"{_FORMS}ModuleWorker/0.3.0/"
WORKER_BUNDLE = f"{_FORMS}WorkerBundle/0.2.0/"
STATIC_ASSET_BUNDLE = f"{_FORMS}StaticAssetBundle/0.2.0/"
WORKER_VERSION = f"{_FORMS}WorkerVersion/0.5.0/"
WORKER_DEPLOYMENT = f"{_FORMS}WorkerDeployment/0.4.0/"
WORKER_ENDPOINT = f"{_FORMS}WorkerEndpoint/0.3.0/"
DURABLE_WORKFLOW = f"{_FORMS}DurableWorkflow/0.3.0/"
ALL_WEIGHT = 10000
_DIGEST_CHARACTERS = 16
# Made anew with each change of an app's files.
_CODE = ("WorkerBundle", "StaticAssetBundle", "WorkerVersion")
# Path, digest, media type, content.
_File = tuple[str, str, str, bytes | Path]


@dataclass(frozen=True, slots=True)
class Change:
    """One line of progress: what became of one Resource."""

    form: str
    name: str
    verb: str


@dataclass(slots=True)
class Deployed:
    """What a deploy left: UIDs by role, the Endpoint's address, and what it had to do."""

    worker_uid: str = ""
    version_uid: str = ""
    deployment_uid: str = ""
    workflows: dict[str, str] = field(default_factory=dict)
    hostname: str | None = None
    url: str | None = None
    changes: list[Change] = field(default_factory=list)
    # What the Host could not establish, such as that parked instances fit the new code (WD-10), in its words.
    warnings: list[str] = field(default_factory=list)

    def as_json(self) -> Json:
        return {
            "workerUid": self.worker_uid,
            "versionUid": self.version_uid,
            "deploymentUid": self.deployment_uid,
            "workflows": self.workflows,
            "hostname": self.hostname,
            "url": self.url,
            "changes": [{"form": each.form, "name": each.name, "verb": each.verb} for each in self.changes],
            "warnings": self.warnings,
        }


def deploy(
    client: HostClient,
    project: Project,
    secrets: Mapping[str, str],
    say: Callable[[Change], None],
    *,
    prune: bool = False,
    warn: Callable[[str], None] = lambda _: None,
) -> Deployed:
    """Returns once every Operation has succeeded; CommandFailure with code and message of the one that did not.

    `say` gets each change when it is done, `warn` each warning when it is known; `secrets` has a value for each name of
    the project's `secrets`. `prune` then deletes the Worker's Versions and Bundles that its Deployment no longer uses.
    """
    steps = _Deploy(client, project, secrets, say, warn)
    try:
        deployed = steps.apply()
        if prune:
            steps.prune()
    except CommandFailure as failure:
        # Another try of the same files would end the same way, unless it was the Host that could not go on.
        is_final = bool(failure.code) and not isinstance(failure, HostError)
        kept = steps.take_back() if is_final else None
        made = [
            f"{each.form} {each.name}"
            for each in steps.result.changes
            if each.verb in ("created", "updated", "failed")
            and (kept is None or f"{each.form} {each.name}" in kept or each.form not in _CODE)
        ]
        if made:
            folder = shlex.quote(str(project.folder))
            left = (
                f"left so far: {', '.join(made)}\n"
                f"go on with: {client.connection.command('deploy ' + folder)}; "
                f"remove everything with: {client.connection.command('destroy ' + folder)}"
            )
            failure.hint = f"{failure.hint}\n{left}" if failure.hint else left
        raise
    return deployed


class _Deploy:
    """One deploy of one project."""

    def __init__(
        self,
        client: HostClient,
        project: Project,
        secrets: Mapping[str, str],
        say: Callable[[Change], None],
        warn: Callable[[str], None],
    ) -> None:
        self._client = client
        self._project = project
        self._secrets = dict(secrets)
        self._say = say
        self._tell = warn
        self.result = Deployed()

    def apply(self) -> Deployed:
        result = self.result
        file = self._project.file
        self._look_elsewhere()
        result.worker_uid = self._ensure(MODULE_WORKER, file.name, {})["uid"]
        bundles = self._bundles()
        if "scheduled" not in file.declared_handlers:
            # A Version without the handler is only taken while no schedule needs it.
            self._drop_crons()
        missing = self._workflows_that_exist_or_are_made()
        if missing:
            # A class that the current allocation lacks: give it to the Worker first, then make the Workflow (DW-10).
            self._activate(self._version(bundles))
            for entry in missing:
                result.workflows[entry.name] = self._workflow_of_class(entry)
        result.version_uid = self._version(bundles)
        self._activate(result.version_uid)
        self._drop_crons()
        for name, cron in triggers(file).items():
            self._ensure(WORKER_CRON_TRIGGER, name, self._of_worker() | {"cron": cron})
        if file.endpoint:
            endpoint = self._ensure(WORKER_ENDPOINT, f"{file.name}.endpoint", self._of_worker())
            result.hostname = endpoint["output"]["hostname"]
            result.url = endpoint["output"]["url"]
        return result

    def _drop_crons(self) -> None:
        for trigger in obsolete_triggers(self._client, self._project.file, self.result.worker_uid):
            operation = self._client.delete_resource(trigger["uid"], trigger["generation"])
            self._settle(WORKER_CRON_TRIGGER, trigger["name"], operation)
            self._note(WORKER_CRON_TRIGGER, trigger["name"], "deleted")

    def _look_elsewhere(self) -> None:
        """A mistyped `space` makes a second app, which is no error of its own: so it is said."""
        file = self._project.file
        workers = list(self._client.resources(form=MODULE_WORKER, name=file.name))
        others = sorted(worker["space"] for worker in workers)
        if others and file.space not in others:
            destroy = self._client.connection.command("destroy " + shlex.quote(str(self._project.folder)))
            self._warn(
                f"the Worker {file.name!r} is new in the Space {file.space!r}, and there is one of that name in "
                f"{', '.join(others)}: this is another app beside it. If saisei.toml names the wrong Space, "
                f"{destroy} takes the new one away"
            )

    def take_back(self) -> list[str]:
        """Deletes the Bundles and Versions that this deploy made in vain; returns what it could not."""
        left = []
        for change in reversed(self.result.changes):
            if change.verb not in ("created", "failed") or change.form not in _CODE:
                continue
            try:
                made = self._client.find_resource(self._project.file.space, change.name)
                if made is not None:
                    self._client.wait_operation(self._client.delete_resource(made["uid"], made["generation"]))
                    self._say(Change(change.form, change.name, "taken back"))
            except CommandFailure:
                left.append(f"{change.form} {change.name}")
        return left

    def prune(self) -> None:
        """What is still held, by a context that has not ended yet for example, stays for the next time."""
        prefix = self._project.file.name
        current = self.result.version_uid
        spec = self._client.resource(current)["spec"]
        kept = [current]
        kept += [part["bundle"]["resourceUid"] for part in (spec, spec.get("assets", {})) if "bundle" in part]
        for form, part in (
            (WORKER_VERSION, ".version."),
            (WORKER_BUNDLE, ".bundle."),
            (STATIC_ASSET_BUNDLE, ".assets."),
        ):
            for resource in list(self._client.resources(space=self._project.file.space, form=form)):
                if resource["name"].startswith(prefix + part) and resource["uid"] not in kept:
                    try:
                        operation = self._client.delete_resource(resource["uid"], resource["generation"])
                    except HostError as error:
                        if error.code not in ("dependency_conflict", "resource_busy", "not_found", "gone"):
                            raise
                        self._note(form, resource["name"], "kept: still in use")
                        continue
                    self._settle(form, resource["name"], operation)
                    self._note(form, resource["name"], "deleted")

    def _of_worker(self) -> Json:
        return {"worker": {"resourceUid": self.result.worker_uid}}

    def _bundles(self) -> Json:
        """What the Version refers to: its code, its assets, or both."""
        project, references = self._project, Json()
        if project.file.main is not None:
            files = [
                (file.path, hashlib.sha256(file.content).hexdigest(), file.media_type, file.content)
                for file in project.files
            ]
            references["bundle"] = self._bundle(WORKER_BUNDLE, "bundle", {"entrypoint": project.file.main}, files)
        if project.file.assets is not None:
            assets = [(file.path, file.sha256, file.media_type, file.source) for file in project.assets]
            references["assets"] = {
                "bundle": self._bundle(STATIC_ASSET_BUNDLE, "assets", {}, assets),
                "runWorkerFirst": project.file.assets.run_worker_first,
                "notFoundHandling": (
                    "single_page_application" if project.file.assets.single_page_application else "none"
                ),
            }
        return references

    def _bundle(
        self, form: str, part: str, manifest: Json, files: Sequence[tuple[str, str, str, bytes | Path]]
    ) -> Json:
        """A reference to the bundle with exactly these files (path, digest, media type, content)."""
        content = [[path, sha256, media_type] for path, sha256, media_type, _ in files]
        name = f"{self._project.file.name}.{part}.{_digest([manifest.get('entrypoint'), content])}"
        existing = self._client.find_resource(self._project.file.space, name)
        if existing is not None and existing["phase"] == "idle":
            return {"resourceUid": existing["uid"]}
        for path, sha256, _, data in files:
            sent, _ = self._client.put_artifact(data if isinstance(data, bytes) else data.read_bytes())
            if sent != sha256:
                raise CommandFailure(f"{path} changed while it was being deployed", "deploy again")
        described = [
            {"path": path, "url": self._client.artifact_url(sha256), "sha256": sha256, "mediaType": media_type}
            for path, sha256, media_type in content
        ]
        sha256, _ = self._client.put_artifact(_canonical(manifest | {"files": described}))
        spec = {"artifact": {"url": self._client.artifact_url(sha256), "sha256": sha256}}
        return {"resourceUid": self._ensure(form, name, spec)["uid"]}

    def _workflows_that_exist_or_are_made(self) -> list[WorkflowEntry]:
        missing = []
        for entry in self._project.file.workflows:
            try:
                self.result.workflows[entry.name] = self._workflow(entry)
            except HostError as error:
                if error.code != "dependency_conflict":
                    raise
                missing.append(entry)
        return missing

    def _workflow_of_class(self, entry: WorkflowEntry) -> str:
        """As `_workflow`, for code that is active by now: what is missing then is the class."""
        try:
            return self._workflow(entry)
        except HostError as error:
            raise self._class_failure(error.message) or error from error

    def _workflow(self, entry: WorkflowEntry) -> str:
        existing = self._client.find_resource(self._project.file.space, entry.name)
        if existing is not None and existing["form"] == DURABLE_WORKFLOW and existing["phase"] != "deleting":
            self._refuse_other(entry, existing)
        spec = self._of_worker() | {"className": entry.class_name}
        return str(self._ensure(DURABLE_WORKFLOW, entry.name, spec)["uid"])

    def _refuse_other(self, entry: WorkflowEntry, existing: Json) -> None:
        """Worker and class of a Workflow never change (DW-06)."""
        name, spec = entry.name, existing["spec"]
        uid = spec.get("worker", {}).get("resourceUid")
        command = self._client.connection.command
        remove = command(f"resources delete {name} --space {self._project.file.space}")
        if uid != self.result.worker_uid:
            owner = next(
                (item["name"] for item in self._client.resources(form=MODULE_WORKER) if item["uid"] == uid), uid
            )
            raise CommandFailure(
                f"the workflow name {name!r} in Space {self._project.file.space!r} belongs to the Worker {owner!r}",
                f"give the workflow another name in saisei.toml, or delete that one with its instances: {remove}",
                "name_conflict",
            )
        if spec.get("className") != entry.class_name:
            prune = command(f"deploy {shlex.quote(str(self._project.folder))} --prune")
            raise CommandFailure(
                f"the workflow {name!r} is made of the class {spec.get('className')!r}, which cannot change"
                f" to {entry.class_name!r}",
                f"keep the class's name, or add another [[workflows]] with another name for the new class.\n"
                f"To give up the old one with its instances: take its [[workflows]] out of saisei.toml and keep its "
                f"class, then {prune} (a Version that binds a workflow keeps it), then {remove}; after that the "
                "name is free for the new class",
                "invalid_spec",
            )

    def _version(self, bundles: Json) -> str:
        """A Version with Bindings to the Workflows that exist by now."""
        file = self._project.file
        spec: Json = self._of_worker() | bundles | {"handlers": file.declared_handlers}
        if file.vars:
            spec["vars"] = file.vars
        if file.secrets:
            spec["requiredSensitiveVars"] = sorted(file.secrets)
        bindings = [
            {"name": entry.binding, "resource": {"resourceUid": self.result.workflows[entry.name]}}
            for entry in file.workflows
            if entry.binding and entry.name in self.result.workflows
        ]
        if bindings:
            spec["workflowBindings"] = bindings
        if file.services:
            spec["serviceBindings"] = service_bindings(self._client, file, MODULE_WORKER, self.result.worker_uid)
        # Secrets cannot be compared with what the Host holds, and a name must tell nothing of them: always a new one.
        salt = random.token_hex(8) if file.secrets else ""
        name = f"{file.name}.version.{_digest([spec, salt])}"
        return str(self._ensure(WORKER_VERSION, name, spec, self._secrets if file.secrets else None)["uid"])

    def _activate(self, version_uid: str) -> None:
        versions = [{"workerVersion": {"resourceUid": version_uid}, "weight": ALL_WEIGHT}]
        spec = self._of_worker() | {"versions": versions}
        name = f"{self._project.file.name}.deployment"
        try:
            self.result.deployment_uid = self._ensure(WORKER_DEPLOYMENT, name, spec)["uid"]
        except CommandFailure as failure:
            raise self._class_failure(failure.message) or failure from failure

    def _ensure(
        self,
        form: str,
        name: str,
        spec: Json,
        private_inputs: dict[str, str] | None = None,
    ) -> Json:
        """Creates the Resource, or updates it when its spec differs or its last Operation failed; returns it."""
        space = self._project.file.space
        existing = self._client.find_resource(space, name)
        if existing is not None and existing["phase"] in ("pending", "deleting"):
            self._client.wait_operation(self._client.operation(existing["lastOperation"]))
            existing = self._client.find_resource(space, name)
        if existing is None:
            operation = self._client.create_resource(form, space, name, spec, private_inputs)
            verb = "created"
        elif existing["form"] != form:
            raise CommandFailure(
                f"the name {name!r} in Space {space!r} belongs to a {_kind(existing['form'])}",
                f"a {_kind(form)} is to have it: rename one of them",
            )
        elif existing["phase"] == "idle" and existing["spec"] == spec:
            self._note(form, name, "unchanged")
            return existing
        else:
            operation = self._client.update_resource(existing["uid"], existing["generation"], spec, private_inputs)
            verb = "updated"
        self._settle(form, name, operation)
        self._note(form, name, verb)
        return self._client.resource(operation["resourceUid"])

    def _settle(self, form: str, name: str, operation: Json) -> None:
        settled = self._client.wait_operation(operation)
        for warning in settled.get("warnings", []):
            self._warn(warning["message"])
        if settled["status"] == "failed":
            error: dict[str, Any] = settled.get("error", {})
            what = f"{_kind(form)} {name}: the {settled['action']} failed"
            details = self._client.connection.command(f"operations show {settled['id']}")
            hint = self._hint(str(error.get("code")), str(error.get("message")))
            if settled["action"] == "create":
                self.result.changes.append(Change(_kind(form), name, "failed"))
            raise CommandFailure(
                f"{what} with {error.get('code')}: {error.get('message')}",
                f"{hint}\ndetails: {details}" if hint else f"details: {details}",
                str(error.get("code")),
            )

    def _class_failure(self, message: str) -> CommandFailure | None:
        """When the Host misses a workflow class: which entry wants it, and what the main module has instead."""
        found = re.search(r"no workflow class '([^']+)'", message)
        if found is None:
            return None
        for entry in self._project.file.workflows:
            if entry.class_name == found[1]:
                what = f"[[workflows]] {entry.name!r} with class = {entry.class_name!r}: {message}"
                return CommandFailure(what, class_hint(self._project, entry.class_name), "dependency_conflict")
        # An entry that saisei.toml has no more: its workflow goes on until it is deleted.
        remove = self._client.connection.command("resources delete NAME")
        hint = f"keep the class, or delete the workflow that is made of it: {remove}"
        return CommandFailure(message, hint, "dependency_conflict")

    def _hint(self, code: str, message: str) -> str:
        """What in saisei.toml or in the code mends a failure of that code."""
        if code == "handlers_mismatch":
            declared = json.dumps(self._project.file.declared_handlers)
            return (
                f"saisei.toml declares the handlers {declared} (endpoint = true declares fetch, handlers = [...] any); "
                f"the default export of {self._project.file.main} must have exactly these methods"
            )
        if code == "default_export_invalid":
            what = "export default {} or export default { fetch(request, env, ctx) { … } }"
            return f"end {self._project.file.main} with: {what}"
        return ""

    def _warn(self, text: str) -> None:
        self.result.warnings.append(text)
        self._tell(text)

    def _note(self, form: str, name: str, verb: str) -> None:
        change = Change(_kind(form), name, verb)
        self.result.changes.append(change)
        self._say(change)


def class_hint(project: Project, class_name: str) -> str:
    """Whether the main module seems not to export the class, or to export one without `run`."""
    main = next(file for file in project.files if file.path == project.file.main)
    text = main.content.decode(errors="replace")
    name = re.escape(class_name)
    exported = rf"export\s+(?:class|const|let|var|function)\s+{name}\b|export\s*\{{[^}}]*\b{name}\b[^}}]*\}}"
    if re.search(exported, text):
        return f"{main.path} exports {class_name}: it must be a class with a method run(event, step)"
    return f"{main.path} does not export it: write `export class {class_name} {{ async run(event, step) {{ … }} }}`"


def _kind(form: str) -> str:
    """The Form's plain name, out of its URL."""
    return form.removeprefix(_FORMS).split("/")[0]


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _digest(value: Any) -> str:
    return hashlib.sha256(_canonical(value)).hexdigest()[:_DIGEST_CHARACTERS]
