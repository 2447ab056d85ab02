"""A certificate authority for one data folder, and the gateway's certificate under it. Both are kept over restarts."""

from __future__ import annotations

import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = datetime.timedelta(days=1)
_AUTHORITY_DAYS = 3650
# Longer-lived server certificates are refused by some TLS clients.
_SERVER_DAYS = 365
_RENEW_BEFORE_DAYS = 30


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files: what clients trust, and what the gateway shows."""

    ca_file: Path
    certificate_file: Path
    key_file: Path


def ensure_certificates(folder: Path, names: tuple[str, ...]) -> Certificates:
    """Reads the certificates in `folder` or makes them. `names` are DNS names (a wildcard too) and IP addresses.

    The authority is made once: clients hold a copy of its file. The server's certificate is made anew when it has other
    names or ends within 30 days.
    """
    files = Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    authority_key_file = folder / "ca.key"
    if not (files.ca_file.exists() and authority_key_file.exists()):
        _make_authority(files.ca_file, authority_key_file)
        files.certificate_file.unlink(missing_ok=True)
    if not _still_good(files, names):
        _make_server(files, authority_key_file, names)
    return files


def _alternatives(names: tuple[str, ...]) -> list[x509.GeneralName]:
    entries: list[x509.GeneralName] = []
    for name in names:
        try:
            entries.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            entries.append(x509.DNSName(name))
    return entries


def _still_good(files: Certificates, names: tuple[str, ...]) -> bool:
    if not (files.certificate_file.exists() and files.key_file.exists()):
        return False
    certificate = x509.load_pem_x509_certificate(files.certificate_file.read_bytes())
    if certificate.not_valid_after_utc - _now() < _RENEW_BEFORE_DAYS * _DAY:
        return False
    extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return list(extension.value) == _alternatives(names)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # A client's clock may be a little behind.
        .not_valid_before(_now() - _DAY)
        .not_valid_after(_now() + days * _DAY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _make_authority(certificate_file: Path, key_file: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    serial = os.urandom(4).hex()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Saisei dev authority {serial}")])
    certificate = (
        _builder(name, name, key.public_key(), _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write_key(key_file, key)
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _make_server(files: Certificates, authority_key_file: Path, names: tuple[str, ...]) -> None:
    authority = x509.load_pem_x509_certificate(files.ca_file.read_bytes())
    authority_key = serialization.load_pem_private_key(authority_key_file.read_bytes(), password=None)
    if not isinstance(authority_key, ec.EllipticCurvePrivateKey):
        raise ValueError(
            f"{authority_key_file} is not the key that saisei dev made; remove the tls folder to start afresh"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    certificate = (
        _builder(subject, authority.subject, key.public_key(), _SERVER_DAYS)
        .add_extension(x509.SubjectAlternativeName(_alternatives(names)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
                authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
            ),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    _write_key(files.key_file, key)
    files.certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
