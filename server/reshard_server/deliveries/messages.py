"""The message of a delivery: a CloudEvent in JSON, signed as Standard Webhooks says.

The signature covers the id, the time of the try and the body, so that a receiver can refuse what was changed, and what is old. Each secret
makes one: while secrets are exchanged, receivers with the old and with the new one accept it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Sequence
from pathlib import Path

import sqlalchemy as sa

from reshard.errors import ReshardError
from reshard_server.db.conversions import conversions
from reshard_server.db.deliveries import Due
from reshard_server.settings import Settings

PREFIX = "whsec_"
LEAST_BYTES, MOST_BYTES = 24, 64
"""Of a secret, by Standard Webhooks."""

TYPE = "dev.reshard.conversion"


def read_secrets(file: Path) -> tuple[bytes, ...]:
    """The secrets in a file, one a line. Raises ReshardError for a file without any, which quotes nothing of it."""
    try:
        lines = file.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ReshardError(
            f"the file of secrets {str(file)!r} (notify_secrets_file) cannot be read: {error}; mount it where this user may read it"
        ) from error
    if not lines:
        raise ReshardError(
            f"the file of secrets {str(file)!r} (notify_secrets_file) is empty; write a secret, such as whsec_$(openssl rand -base64 32)"
        )
    return tuple(_secret(line, number, file) for number, line in enumerate(lines, 1))


def _secret(line: str, number: int, file: Path) -> bytes:
    try:
        secret = base64.b64decode(line.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        secret = b""
    if not line.startswith(PREFIX) or not LEAST_BYTES <= len(secret) <= MOST_BYTES:
        raise ReshardError(
            f"secret {number} in {str(file)!r} (notify_secrets_file) is no secret of Standard Webhooks; expected whsec_ and the base64 of "
            f"{LEAST_BYTES} to {MOST_BYTES} bytes, such as whsec_$(openssl rand -base64 32)"
        )
    return secret


def signed_headers(
    secrets: Sequence[bytes], event: str, seconds: int, body: bytes
) -> dict[str, str]:
    """The headers with the id, the time (seconds since 1970) and a signature by each secret."""
    text = b"%b.%d.%b" % (event.encode(), seconds, body)
    made = (base64.b64encode(hmac.digest(secret, text, hashlib.sha256)) for secret in secrets)
    return {
        "webhook-id": event,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(f"v1,{one.decode()}" for one in made),
    }


def body_of(db: sa.Engine, settings: Settings, due: Due) -> bytes | None:
    """The event; None if the conversion was deleted meanwhile."""
    conversion = conversions.get(db, due.conversion, with_result=False)
    if conversion is None:
        return None
    # A conversion that was queued again has another state by now; the event tells the end that it is about.
    document = {**conversion.model_dump(mode="json"), **due.ended}
    event = {
        "specversion": "1.0",
        "id": due.event,
        "source": f"{settings.public_url or ''}/v1/conversions",
        "type": f"{TYPE}.{due.ended['state']}",
        "subject": due.conversion,
        "time": due.ended["ended_at"],
        "datacontenttype": "application/json",
        "data": document,
    }
    return json.dumps(event).encode()
