"""Signatures of S3's clients (AWS Signature Version 4), in the header Authorization or in a presigned URL.

A signature is an HMAC of the request as the client sent it: method, path and query on the wire, and the headers that it lists. So a proxy
must keep the path, and either keep Host or send ``X-Forwarded-Host``.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from time import gmtime, strftime
from urllib.parse import quote

from starlette.requests import Request

from reshard_server.errors.s3_xml import refusal

LONGEST = 7 * 24 * 3600
"""Seconds for which a presigned URL may be good, as in S3."""

SKEW = 15 * 60
"""Seconds for which a signature is good before and after its time, as in S3."""

Asked = Mapping[str, str]
"""The decoded parameters of a request."""

_UNSIGNED, _EMPTY = "UNSIGNED-PAYLOAD", hashlib.sha256().hexdigest()
_FIELDS = ("Algorithm", "Credential", "Date", "SignedHeaders", "Content-Sha256", "Expires", "Signature")  # fmt: skip
_FORM = re.compile(
    r"(?a)AWS4-HMAC-SHA256 (?P<key>[^/ ]+)/(?P<scope>(?P<day>\d{8})/[^/ ]+/s3/aws4_request) (?P<moment>(?P=day)T\d{6}Z) (?P<headers>\S+) "
    rf"(?P<payload>{_UNSIGNED}|{_EMPTY}) (?P<seconds>\d{{1,6}}) (?P<signature>[0-9a-f]{{64}})"
)
_EXPECTED = "AWS4-HMAC-SHA256, KEY/DAY/REGION/s3/aws4_request, a time of that day, host among the signed headers, no body, and at most 7 days"


def signature_of(request: Request, asked: Asked, now: float) -> re.Match[str]:
    """The groups of a request's signature, which may be wrong: ``key`` is the access key.

    Args:
        now: seconds since the epoch.

    Raises ProblemError for none, two, a malformed one, and one that is too old or too new.
    """
    sent, is_url = request.headers, "X-Amz-Algorithm" in asked
    given = sent.getlist("authorization")
    if len(given) + is_url != 1:
        text = f"one signature was expected, in the header Authorization or in the URL, found {len(given) + is_url}"
        raise refusal("access-denied", 403, f"{text}; set a key, and signature version 4")
    if is_url:
        fields = {name: asked.get(f"X-Amz-{name}", "") for name in _FIELDS}
        fields["Content-Sha256"] = fields["Content-Sha256"] or _UNSIGNED
    else:
        form, *parts = re.split("[ ,]+", given[0])
        fields = dict(part.partition("=")[::2] for part in parts)
        fields |= {"Algorithm": form, "Date": sent.get("x-amz-date", ""), "Expires": str(SKEW)}
        fields["Content-Sha256"] = sent.get("x-amz-content-sha256", _EMPTY)
    text = " ".join(fields.get(name, "") for name in _FIELDS)
    found = _FORM.fullmatch(text)
    seconds = int(found["seconds"]) if found else 0
    if not found or "host" not in found["headers"].split(";") or seconds > LONGEST:
        raise refusal("invalid-request", 400, f"expected {_EXPECTED}; found {text[:300]!r}")
    # Times in this form have the order of their texts.
    moments = (gmtime(now + more) for more in (-seconds, 0, SKEW))
    first, here, last = (strftime("%Y%m%dT%H%M%SZ", moment) for moment in moments)
    if not first <= found["moment"] <= last:
        slug = "access-denied" if is_url and found["moment"] < first else "request-time-too-skewed"
        text = f"it was signed at {found['moment']} for {seconds} seconds, and here it is {here}"
        raise refusal(slug, 403, f"{text}; sign it anew, or set the client's clock")
    return found


def check_signature(signed: re.Match[str], secret: str, request: Request, asked: Asked) -> None:
    """Raises ProblemError unless the request was signed with this secret."""
    headers = ""
    for name in signed["headers"].split(";"):
        values = (" ".join(value.split()) for value in request.headers.getlist(name))
        headers += f"{name}:{','.join(values)}\n"
    pairs = [(name, value) for name, value in asked.items() if name != "X-Amz-Signature"]
    query = sorted((quote(name, safe="~"), quote(value, safe="~")) for name, value in pairs)
    path = request.scope["raw_path"].decode("ascii")
    canonical = [request.method, path, "&".join(map("=".join, query)), headers]
    canonical += signed.group("headers", "payload")
    digest = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
    text = "\n".join(["AWS4-HMAC-SHA256", *signed.group("moment", "scope"), digest])
    key = f"AWS4{secret}".encode()
    for part in (*signed["scope"].split("/"), text):
        key = hmac.digest(key, part.encode(), "sha256")
    if not hmac.compare_digest(key.hex(), signed["signature"]):
        text = f"the signature is not that of {request.method} {path} for {request.headers.get('host')!r} with the secret of {signed['key']!r}"
        remedy = "check the secret, and that no proxy changes the path or the host"
        raise refusal("signature-does-not-match", 403, f"{text}; {remedy}")
