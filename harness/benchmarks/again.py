"""What an earlier run's manifest says of a benchmark's settings."""

from __future__ import annotations

from collections.abc import Mapping

from harness.config import RETRIES_MOST
from harness.errors import BadInput
from harness.model import JSON

KINDS: Mapping[type, str] = {str: "text", int: "a whole number", bool: "true or false"}


def checked(identity: JSON, needed: Mapping[str, type], known: Mapping[str, type]) -> JSON:
    """The settings, those `needed` all there, and each of the type that it must have. Raises `BadInput` naming one."""
    for name, kind in {**needed, **known}.items():
        value = identity.get(name)
        if type(value) is not kind and not (value is None and name in known and name not in identity):
            raise BadInput(f"the run's manifest: field identity.settings.{name}: expected {KINDS[kind]}")
    if not 0 <= identity.get("parse_retries", 0) <= RETRIES_MOST:  # each is a request that is paid for
        raise BadInput(
            f"the run's manifest: field identity.settings.parse_retries: expected a number from 0 to {RETRIES_MOST}"
        )
    return identity
