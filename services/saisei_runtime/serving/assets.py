"""Static assets of a WorkerVersion: which one a request is for, and the response that it is (WV-20 … WV-25)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager

from saisei_contract.asset_keys import INDEX, asset_key
from saisei_contract.asset_responses import Asset, asset_response
from saisei_contract.errors import SaiseiError
from saisei_runtime.hosting.asset_store import AssetStore, Variant
from saisei_runtime.hosting.state import HostedAsset, HostedState, HostedVersion
from saisei_runtime.isolates.port import FetchHead, FetchResult, StaticAsset

METHODS = frozenset({"GET", "HEAD"})


def find(version: HostedVersion, method: str, url: str) -> HostedAsset | None:
    """The asset that answers, the fallback to index.html included; None for a miss (WV-20 … WV-22, WV-25)."""
    assets = version.assets
    if assets is None or method not in METHODS:
        return None
    key = asset_key(url)
    if key is None:
        return None
    found = assets.files.get(key)
    return assets.files.get(INDEX) if found is None and assets.single_page_application else found


class _Reader:
    """One response that is being read."""

    cut = False


class Assets:
    """Responses made of assets, and the readers of their bytes, which end with their Version."""

    def __init__(self, state: HostedState, store: AssetStore) -> None:
        self._state = state
        self._store = store
        # By (Worker, Version).
        self._readers: dict[tuple[str, str], set[_Reader]] = {}

    def ready(self, version_uid: str, file: HostedAsset) -> StaticAsset | None:
        """As a value for whoever serves it; None while its bytes are not here yet."""
        variant = self._store.ready(file)
        return None if variant is None else _shown(version_uid, file, variant)

    async def result(self, version_uid: str, file: HostedAsset, request: FetchHead) -> FetchResult:
        """The whole response; SaiseiError backend_unavailable when the bytes cannot be had now."""
        shown = _shown(version_uid, file, await self._store.prepare(version_uid, file))
        # A Worker reads the bytes as they are: what its caller's browser could expand is nothing to it.
        dropped = "" if request.lineage is None else "accept-encoding"
        headers = [(name.lower(), value) for name, value in request.headers if name.lower() != dropped]
        response = asset_response(shown.asset, request.method, headers)
        body = self._body(file, response.gzip, response.offset, response.length if request.method == "GET" else 0)
        return FetchResult(response.status, response.headers, body, shown)

    async def read(
        self, version_uid: str, sha256: str, *, gzipped: bool, offset: int, length: int
    ) -> AsyncGenerator[bytes, None]:
        """Bytes of an asset that the hosted Version names. SaiseiError not_found, invalid_request, backend_unavailable.

        The last one also in the middle, when the Version is stopped.
        """
        version, file = self._named(version_uid, sha256)
        variant = await self._store.prepare(version_uid, file)
        size = variant.size_bytes if gzipped else file.size_bytes
        if offset < 0 or length < 1 or offset + length > size:
            raise SaiseiError("invalid_request", "the asset has no such range of bytes")
        with self._reading((version.worker_uid, version_uid)) as reader:
            async with aclosing(self._body(file, gzipped, offset, length)) as chunks:
                async for chunk in chunks:
                    if reader.cut:
                        raise SaiseiError("backend_unavailable", "the WorkerVersion was stopped")
                    yield chunk

    def end(self, worker_uid: str, version_uid: str | None) -> None:
        """Cuts the responses of a Version, or of the whole Worker, that are still being read (WD-08, WD-09).

        No further byte is read for them from here on. One whose client does not read either learns it later.
        """
        for worker, version in list(self._readers):
            if worker == worker_uid and version_uid in (None, version):
                for reader in self._readers.pop((worker, version)):
                    reader.cut = True

    def readers_of(self, version_uid: str) -> int:
        return sum(len(readers) for (_, version), readers in self._readers.items() if version == version_uid)

    async def tidy(self) -> None:
        """Removes the bytes that no hosted Version names any more (WV-13)."""
        await self._store.tidy(self._state.asset_digests)

    def _named(self, version_uid: str, sha256: str) -> tuple[HostedVersion, HostedAsset]:
        version = self._state.version(version_uid)
        if version is not None and version.assets is not None and sha256 in version.assets.by_digest:
            return version, version.assets.by_digest[sha256]
        raise self._state.missing(SaiseiError("not_found", "the WorkerVersion has no such asset"))

    def _body(self, file: HostedAsset, gzipped: bool, offset: int, length: int) -> AsyncGenerator[bytes, None]:
        return self._store.read(file, gzipped=gzipped, offset=offset, length=length)

    @contextmanager
    def _reading(self, key: tuple[str, str]) -> Iterator[_Reader]:
        reader = _Reader()
        readers = self._readers.setdefault(key, set())
        readers.add(reader)
        try:
            yield reader
        finally:
            readers.discard(reader)
            if not readers and self._readers.get(key) is readers:
                del self._readers[key]


def _shown(version_uid: str, file: HostedAsset, variant: Variant) -> StaticAsset:
    asset = Asset(file.sha256, file.media_type, file.size_bytes, variant.sha256, variant.size_bytes)
    return StaticAsset(version_uid, asset)
