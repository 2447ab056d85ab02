"""Bytes by digest: custody of what was uploaded, and taking a bundle in."""
