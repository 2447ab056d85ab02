"""What users of comparable systems report, and what must not happen here, through every service of a Host."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.support.dev_host import DevHost, eventually

from saisei_cli.client import HostError
from saisei_cli.deploy.apply import Deployed

APPS = Path(__file__).parent / "apps"
TEXTS = {
    "nul": "a\0b",
    "escapes": "back\\slash \"quote\" 'single' \\u0000 %00 %2F ;,&=?#",
    "controls": "\x01\x1f\x7f\u0085\u2028\u2029\ufeff",
    "emoji": "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1ef\U0001f1f5\U0001f44d\U0001f3fd",
    "right to left": "\u05e9\u05dc\u05d5\u05dd \u202e\u0639\u0631\u0628\u064a\u202c abc",
    "longest": "😀" * 255,
    "markup": "</script><b>$(rm -rf) ${x} {{y}} ' OR 1=1 --",
    "dots": "..",
    "combining": "e\u0301\u0327 \u1112\u1161\u11ab",
    "last of the planes": "\U0010fffd\U000e0061\ufffe",
}
FULL = 1_048_576


@pytest.fixture(scope="module")
def texts(host: DevHost) -> Deployed:
    return host.deploy(APPS / "texts")


@pytest.mark.parametrize("kind", TEXTS)
def test_any_text_is_stored_as_it_is(host: DevHost, texts: Deployed, kind: str) -> None:
    """W-020, W-091, W-013, S-22, Issue 5: as id, step name, event type, key, value, message and log line alike."""
    client, uid, text = host.client, texts.workflows["texts"], TEXTS[kind]
    assert client.create_instance(uid, text, {"text": text})["id"] == text
    client.send_event(uid, text, text, {"text": text})
    events = list(client.events(uid, text))
    instance = client.instance(uid, text)
    assert instance == {"id": text, "status": "errored", "error": {"reason": "run_threw", "message": text}}
    steps = {step["name"]: step for step in client.steps(uid, text)}
    assert set(steps) == {text, f"{text}?", "told"}
    done = {event["stepName"]: event["output"] for event in events if event["type"] == "step_completed"}
    told = done["told"]
    assert told == {"same": True, "refusals": ["TypeError"] * 8}
    assert {event["instanceId"] for event in events} == {text}
    assert next(event["eventType"] for event in events if event["type"] == "wait_started") == text
    assert events[-1]["error"] == {"name": "run_threw", "message": text}
    assert text in [item["id"] for item in client.instances(uid)]


def test_a_lone_surrogate_is_refused_and_nothing_is_made(host: DevHost, texts: Deployed) -> None:
    """W-020, W-045, W-091, Issue 5: in an id, a type, params and a payload, as an escape of JSON."""
    client, uid = host.client, texts.workflows["texts"]
    before = len(list(client.instances(uid)))
    url = f"{host.ready['origin']}/apis/saisei/v1/workflows/{uid}/instances"
    headers = {"content-type": "application/json"}

    def refused(path: str, body: str) -> str:
        with pytest.raises(HostError) as caught:
            client._send("POST", url + path, content=body, headers=headers)
        return str(caught.value.code)

    assert refused("", r'{"id": "\ud800"}') in ("invalid_request", "invalid_params")
    assert refused("", r'{"id": "x", "params": {"a": "\udc00"}}') in ("invalid_request", "invalid_params")
    assert len(list(client.instances(uid))) == before
    instance_id = uuid.uuid4().hex
    client.create_instance(uid, instance_id, {"text": "plain"})
    assert refused(f"/{instance_id}/events", r'{"type": "\ud800"}') == "invalid_request"
    assert refused(f"/{instance_id}/events", r'{"type": "t", "payload": {"\ud800": 1}}') in (
        "invalid_request",
        "invalid_params",
    )
    client.terminate(uid, instance_id)


def test_the_largest_documents_pass_every_hop(host: DevHost, texts: Deployed) -> None:
    """W-041, W-063, Issue 5: params, result, payload and output of exactly 1,048,576 bytes; one more is refused."""
    client, uid, instance_id = host.client, texts.workflows["large"], uuid.uuid4().hex
    largest = {"text": "é" * ((FULL - len('{"text":""}')) // 2) + "x"}
    assert len('{"text":""}') + len(largest["text"].encode()) == FULL
    too_large = {"text": largest["text"] + "x"}
    with pytest.raises(HostError) as refused:
        client.create_instance(uid, instance_id, too_large)
    assert (refused.value.status, refused.value.code) == (413, "document_too_large")
    client.create_instance(uid, instance_id, largest)
    eventually(lambda: client.instance(uid, instance_id)["status"] == "waiting")
    with pytest.raises(HostError) as refused:
        client.send_event(uid, instance_id, "large", too_large)
    assert refused.value.code == "document_too_large"
    # As large as the rule allows: only a wait that is parked can take it.
    client.send_event(uid, instance_id, "large", largest)
    events: list[Any] = list(client.events(uid, instance_id))
    assert client.instance(uid, instance_id)["output"] == largest
    assert events[-1]["output"] == largest
    assert next(event["params"] for event in events if event["type"] == "workflow_started") == largest
    assert next(event["output"] for event in events if event["type"] == "step_completed") == largest
    assert {step["name"] for step in client.steps(uid, instance_id)} == {"made", "sent"}


KEEPER = """
export class Report { async run(event, step) { return { by: event.params.by, had: Object.keys(this.env ?? {}) }; } }
export default {};
"""
VISITOR = """
export default { async fetch(request, env) {
  const id = new URL(request.url).searchParams.get("id");
  if (env.REPORTS === undefined) return Response.json({ bound: false });
  const instance = await env.REPORTS.create({ id, params: { by: "visitor" } });
  const { status } = await instance.status();
  return Response.json({ id: instance.id, step: typeof instance.step, status });
} };
"""


def test_a_handle_works_from_any_worker_that_holds_a_binding(host: DevHost, tmp_path: Path) -> None:
    """W-030, F-02, DW-10: another Worker's Binding creates and reads; the own Worker needs none; nobody gets `step`."""
    client = host.client
    (tmp_path / "keeper").mkdir()
    (tmp_path / "visitor").mkdir()
    (tmp_path / "keeper" / "main.mjs").write_text(KEEPER)
    (tmp_path / "keeper" / "saisei.toml").write_text(
        'space = "tests"\nname = "keeper"\nmain = "main.mjs"\n[[workflows]]\nname = "kept"\nclass = "Report"\n'
    )
    (tmp_path / "visitor" / "main.mjs").write_text(VISITOR)
    (tmp_path / "visitor" / "saisei.toml").write_text(
        'space = "tests"\nname = "visitor"\nmain = "main.mjs"\nendpoint = true\n'
    )
    kept = host.deploy(tmp_path / "keeper").workflows["kept"]
    visitor = host.deploy(tmp_path / "visitor")
    assert visitor.hostname is not None
    assert client.fetch(visitor.hostname, "/?id=none").body == b'{"bound":false}'
    version = client.resource(visitor.version_uid)
    spec = {**version["spec"], "workflowBindings": [{"name": "REPORTS", "resource": {"resourceUid": kept}}]}
    made = client.wait_operation(client.create_resource(version["form"], "tests", "visitor.bound", spec))
    assert made["status"] == "succeeded", made
    deployment = client.resource(visitor.deployment_uid)
    versions = [{"workerVersion": {"resourceUid": made["resourceUid"]}, "weight": 10_000}]
    switch = client.update_resource(
        visitor.deployment_uid, deployment["generation"], {**deployment["spec"], "versions": versions}
    )
    assert client.wait_operation(switch)["status"] == "succeeded"
    instance_id = uuid.uuid4().hex
    answer = client.fetch(visitor.hostname, f"/?id={instance_id}")
    assert answer.status == 200, answer.body
    assert client.wait_instance(kept, instance_id)["output"] == {"by": "visitor", "had": []}
