"""TLS between the services where they talk over a network; unix sockets need none."""

from __future__ import annotations

from pathlib import Path

import grpc


def listener_credentials(
    cert_file: Path | None, key_file: Path | None, client_ca_file: Path | None
) -> grpc.ServerCredentials | None:
    """Of PEM files; None without a certificate. With `client_ca_file` each client must show a certificate of that
    authority (mTLS). OSError when a file cannot be read.
    """
    if cert_file is None or key_file is None:
        return None
    return grpc.ssl_server_credentials(
        [(key_file.read_bytes(), cert_file.read_bytes())],
        root_certificates=None if client_ca_file is None else client_ca_file.read_bytes(),
        require_client_auth=client_ca_file is not None,
    )


def channel_credentials(
    ca_file: Path | None, cert_file: Path | None, key_file: Path | None
) -> grpc.ChannelCredentials | None:
    """None without an authority: then network channels are plain. The certificate is shown to listeners that ask."""
    if ca_file is None:
        return None
    both = cert_file is not None and key_file is not None
    return grpc.ssl_channel_credentials(
        ca_file.read_bytes(),
        private_key=key_file.read_bytes() if both and key_file is not None else None,
        certificate_chain=cert_file.read_bytes() if both and cert_file is not None else None,
    )
