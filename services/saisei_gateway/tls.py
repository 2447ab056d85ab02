"""The TLS server context (H-001)."""

from __future__ import annotations

import ssl
from pathlib import Path


def server_context(cert_file: Path, key_file: Path) -> ssl.SSLContext:
    """TLS 1.2 or later with the chain and key of two PEM files; OSError or ssl.SSLError when they cannot be used."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(cert_file, key_file)
    return context
