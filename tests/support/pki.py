"""Certificates for listeners on 127.0.0.1, under the name files.test too."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Pki:
    """Files of an authority, of a certificate for 127.0.0.1 by it, and of another authority with its certificate."""

    ca: Path
    cert: Path
    key: Path
    other_cert: Path
    other_key: Path


def make_pki(folder: Path) -> Pki:
    now = datetime.datetime.now(datetime.UTC)

    def certificate(
        name: str, issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None
    ) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        built = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if issuer is None else issuer[0].subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName(
                    [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("files.test")]
                ),
                critical=False,
            )
            .sign(key if issuer is None else issuer[1], hashes.SHA256())
        )
        (folder / f"{name}.pem").write_bytes(built.public_bytes(serialization.Encoding.PEM))
        (folder / f"{name}.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return built, key

    authority, other = certificate("ca", None), certificate("other-ca", None)
    certificate("service", authority)
    certificate("other", other)
    files = [folder / name for name in ("ca.pem", "service.pem", "service.key", "other.pem", "other.key")]
    return Pki(*files)
