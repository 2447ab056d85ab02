"""The vault and its rings of keys, without a Host around them."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from saisei_control.secrets.keys import FileKeyRing
from saisei_control.secrets.vault import Vault
from saisei_control.settings import ControlSettings


class Kms:
    """A provider of keys as an operator may write one."""

    def __init__(self) -> None:
        self.keys = [bytes(32)]
        self.away = False

    def load(self) -> list[bytes]:
        if self.away:
            raise OSError("the KMS is away")
        return list(self.keys)

    def save(self, keys: Sequence[bytes]) -> None:
        if self.away:
            raise OSError("the KMS is away")
        self.keys = list(keys)


def test_macs_are_equal_under_one_key_only() -> None:
    """H-141, H-155: equal for equal maps in any order; each older key still compares; a lost key compares nothing."""
    ring = Kms()
    vault = Vault(ring)
    old = vault.mac({"a": "1", "b": "2"})
    assert vault.mac({"b": "2", "a": "1"}) == old
    assert vault.mac({"a": "1", "b": "3"}).current != old.current
    vault.add_key()
    new = vault.mac({"a": "1", "b": "2"})
    assert new.current != old.current
    assert new.under_key_of(old.current) == old.current
    ring.keys = ring.keys[:1]
    assert vault.mac({"a": "1", "b": "2"}).under_key_of(old.current) is None


def test_a_rotation_keeps_what_is_needed() -> None:
    """H-148: keys go once nothing needs them; the one before the current stays for other replicas."""
    ring = Kms()
    vault = Vault(ring)
    first = vault.mac({}).current.partition(":")[0]
    for _ in range(3):
        vault.add_key()
    assert vault.drop_keys({first}, 0).keys == 3
    assert bytes(32) in ring.keys
    assert vault.drop_keys(set(), 0).keys == 2
    assert bytes(32) not in ring.keys


def test_a_ring_that_is_away_stops_nothing() -> None:
    """H-155: known keys go on; only a change needs the provider."""
    ring = Kms()
    vault = Vault(ring)
    before = vault.mac({"a": "1"})
    ring.away = True
    assert vault.mac({"a": "1"}) == before
    with pytest.raises(OSError, match="away"):
        vault.add_key()
    with pytest.raises(OSError, match="away"):
        Vault(ring)


def test_nothing_secret_is_shown() -> None:
    """H-153: neither keys nor MACs of all keys are in a repr."""
    ring = Kms()
    vault = Vault(ring)
    macs = vault.mac({"a": "1"})
    assert "by_key" not in repr(macs)
    assert all(bytes(32).hex() not in repr(key) and "AESGCM" not in repr(key) for key in vault._keys.values())


def test_the_key_file_is_private(tmp_path: Path) -> None:
    """H-153: made once, for its owner only, replaced in one step."""
    file = tmp_path / "keys" / "seal.key"
    ring = FileKeyRing(file)
    (key,) = ring.load()
    assert len(key) == 32
    assert FileKeyRing(file).load() == [key]
    ring.save([bytes(32), key])
    assert ring.load() == [bytes(32), key]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [entry.name for entry in file.parent.iterdir()] == ["seal.key"]


def test_a_provider_is_named_in_the_settings(tmp_path: Path) -> None:
    """Issue 3: `package.module:callable` makes the ring."""
    settings = ControlSettings(data_dir=tmp_path, sealing_key_ring=f"{__name__}:Kms")
    made = settings.key_ring()
    assert made.load() == [bytes(32)]
    assert isinstance(ControlSettings(data_dir=tmp_path).key_ring(), FileKeyRing)
