"""What the Host says of itself."""

from __future__ import annotations

from tests.control.kit import Client, Kit, refused

from saisei.control.v1 import resources_pb2 as pb
from saisei.control.v1 import resources_pb2_grpc
from saisei_contract.forms import urls


async def test_discovery_needs_no_credential(kit: Kit) -> None:
    """H-040, H-043: the limits are positive and public."""
    answer = await resources_pb2_grpc.SupportServiceStub(kit.channel).GetDiscovery(pb.GetDiscoveryRequest())
    assert (answer.offerings, answer.previews, answer.private_inputs) == (False, True, True)
    assert (answer.max_request_bytes, answer.max_page_size, answer.replay_window_seconds) == (4_194_304, 100, 86_400)


async def test_support_is_by_exact_url(client: Client) -> None:
    """H-050, H-051, H-052: an unsupported Form is an answer, a malformed URL is invalid_request."""
    for form in (urls.MODULE_WORKER, urls.MODULE_WORKER[:-1], "https://example.com/forms/None/1/"):
        answer = await client.call(client.support.GetSupport, pb.GetSupportRequest(form=form))
        assert (answer.form, answer.supported, answer.private_inputs) == (form, False, False)
        assert list(answer.operations) == []
        assert answer.preview == (form == urls.MODULE_WORKER)
    answer = await client.call(client.support.GetSupport, pb.GetSupportRequest(form=urls.STATIC_ASSET_BUNDLE))
    assert (answer.supported, answer.private_inputs, answer.preview) == (True, False, False)
    assert sorted(answer.operations) == ["create", "delete", "read", "update"]
    for form in ("", "http://example.com/", "https://example.com/?x", "https://exämple.com/"):
        refusal = await refused(client.call(client.support.GetSupport, pb.GetSupportRequest(form=form)))
        assert refusal.reason == "invalid_request"


async def test_without_previews_nothing_is_created(kit: Kit) -> None:
    """H-053, H-083: a Form that does not hold as a whole is unsupported_form unless the operator asked for previews."""
    await kit.stop()
    kit.settings = kit.settings.model_copy(update={"preview_forms": False})
    await kit.start()
    client = await kit.client()
    for form in (urls.MODULE_WORKER, urls.DURABLE_WORKFLOW, urls.EDGE_KV_NAMESPACE):
        assert (await refused(client.create(form, "one", {}))).reason == "unsupported_form"
    assert (await refused(client.create(urls.STATIC_ASSET_BUNDLE, "one", {}))).reason == "invalid_spec"
