"""Failures of buckets as StorageErrors: the action, the URL, the reason, the remedy, the store's own words.

A reason is known by the store's code, by its words, or by the HTTP status.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from msgspec import Struct

from reshard.errors import (
    Fault,
    ForbiddenError,
    MissingError,
    ReshardError,
    SourceChangedError,
    StorageError,
    TargetExistsError,
)

T = TypeVar("T")


_MESSAGE = re.compile(r"<(?:Message|Details)>([^<]*)</")
_SECRET = re.compile(
    r"(?i)((?:[?&; {,'\"]|^)(?:sig|signature|x-amz-signature|x-amz-credential|x-amz-security-token|x-goog-signature|"
    r"x-goog-credential|awsaccesskeyid|googleaccessid|access_token|client_secret|assertion|accountkey)[\"']?[=:]\s*\"?)[^&\s\"';,<]+"
)
_BEARER = re.compile(r"(?i)\b(bearer|sharedkey|aws4-hmac-sha256) [^\s\"']+")
_LISTINGS = 3
"""Number of attempts of a listing."""

_WORDS = 300
"""Number of characters of the store's own words that are shown."""


def bucket_error(action: str, url: str, error: Exception, what: str = "") -> StorageError:
    """``error`` of obstore as a StorageError that names the action, the URL, the reason and the remedy.

    It contains no secrets: of the store's answer it shows the code and the message, with signatures removed.
    """
    found = reason_of(action, error)
    begin = f"{what}: " if what else ""
    who = "store" if status_of(error) else "client"
    finding = f"{begin}cannot {action} {url}: {found.reason}"
    made = found.kind(f"{finding}; {found.remedy} (the {who} says: {_own_words(str(error))})")
    if found.fault:
        made.fault, made.finding = found.fault, finding
    return made


def damaged_upload(url: str) -> StorageError:
    """The error, to be raised, for an object with other bytes than were sent."""
    return DamagedUploadError(f"cannot write {url}: {CHECKSUM.reason}; {CHECKSUM.remedy}")


@contextmanager
def bucket_errors(action: str, url: str, what: str = "") -> Iterator[None]:
    """Turns an error of obstore in the block into a StorageError about ``url``."""
    try:
        yield
    except ReshardError:  # some are OSErrors, and their messages are complete
        raise
    except client_errors() as error:
        raise bucket_error(action, url, error, what) from None  # its text may contain secrets


def whole_listing(listed: Callable[[], T]) -> T:
    """The result of a listing, tried again if the answer breaks off or is invalid: obstore does not do that."""
    for _ in range(_LISTINGS - 1):
        try:
            return listed()
        except client_errors() as error:
            if "list response" not in str(error):
                raise
    return listed()


def client_errors() -> tuple[type[Exception], ...]:
    """The kinds of error that calls of obstore raise."""
    from obstore.exceptions import BaseError

    return BaseError, OSError, ValueError


def without_secrets(text: str) -> str:
    """A text with the values of signatures, keys and tokens removed."""
    return _BEARER.sub(r"\1 …", _SECRET.sub(r"\1…", text))


def _own_words(text: str) -> str:
    """The store's code and message, or the first line of the error, on one line and without secrets."""
    plain = text.partition("\n\nDebug source:")[0]
    code, message = CODE.search(text), _MESSAGE.search(text)
    shown = plain if code is None else f"{code[1]}: {message[1]}" if message else code[1]
    shown = " ".join(without_secrets(shown).split())
    return shown if len(shown) <= _WORDS else f"{shown[:_WORDS]}…"


class NoConditionsError(StorageError):
    """The store refuses a condition on a put."""


class DamagedUploadError(StorageError):
    """The store received other bytes than were sent."""


_STATUS = re.compile(r"(?:non-2xx status code|HTTP status|status): (\d{3})")
CODE = re.compile(r"<Code>([^<]*)</Code>")
_METADATA_SERVER = re.compile(
    r"169\.254\.|metadata\.google\.internal|/latest/(?:api|meta-data)|/metadata/identity|InstanceMetadata|"
    r"No (?:credentials|access key)|credentials? (?:are|were)? ?not (?:found|provided)|Account must be specified|"
    r"MissingAccountKey|Error getting credentials",
    re.IGNORECASE,
)
_KEY = re.compile(r"<Code>KMS\.|\bkms:\w+|\bcloudkms\.|Cloud KMS", re.IGNORECASE)


class Reason(Struct, frozen=True):
    """The reason of a failed request, and the remedy. ``kind`` is the class of the error, and ``fault`` its attribute."""

    reason: str
    remedy: str
    kind: type[StorageError] = StorageError
    fault: Fault = ""


_CLOCK = Reason(
    "the store refuses the time of this machine's clock",
    "set the clock (NTP) and run again",
    fault="refused",
)
_EXPIRED = Reason(
    "the credentials have expired", "renew them and run the same command again", fault="refused"
)
_REFUSED = Reason(
    "the store does not accept the credentials",
    "check them, and that they belong to this cloud",
    fault="refused",
)
_REGION = Reason(
    "the bucket is in another region",
    "set AWS_REGION to the region of the bucket",
    fault="refused",
)
_SLOW = Reason(
    "the store asks for fewer requests, and still did after all retries",
    "wait, use fewer workers, and run again",
    fault="unavailable",
)
_LOCKED = Reason(
    "a retention policy or a legal hold protects the object",
    "choose another target, or wait until the retention ends",
)
_CUSTOMER_KEY = Reason(
    "the object is encrypted with a key of the customer, which was not sent",
    "give the key (AWS_SERVER_SIDE_ENCRYPTION=sse-c and AWS_SSE_CUSTOMER_KEY_BASE64; for az:// AZURE_ENCRYPTION_KEY; "
    "gs:// has no setting for it)",
)
_KEY_REFUSED = Reason(
    "the key with which the bucket encrypts may not be used",
    "enable it, and grant its use (kms:GenerateDataKey and kms:Decrypt, or roles/cloudkms.cryptoKeyEncrypterDecrypter)",
    fault="refused",
)
_ARCHIVED = Reason(
    "the object is archived", "restore it to a storage class that can be read, and run again"
)
CHECKSUM = Reason(
    "the store received other bytes than were sent",
    "check memory and network, and run again",
    DamagedUploadError,
)
_NO_CONDITIONS = Reason(
    "the store takes no conditions on writing",
    "write elsewhere, or see that nobody else writes there and say so (unsafe_commit)",
    NoConditionsError,
)
_NO_BUCKET = Reason(
    "there is no such bucket",
    "check its name, and that the endpoint is the right one",
    MissingError,
    "refused",
)

_ALLOW = "set HF_TOKEN to a token of an account that may read it, or log in (hf auth login)"

OF_HUB = {
    "GatedRepo": Reason("its owner grants access to this repository", f"accept its terms on that page, and {_ALLOW}", ForbiddenError, "forbidden"),
    "RepoNotFound": Reason("there is no such repository, or it is private", f"check the name; for a private one {_ALLOW}", MissingError, "refused"),
    "RevisionNotFound": Reason("the repository has no such revision", "name one of its branches, tags or commits after @", MissingError),
    "EntryNotFound": Reason("the commit has no such file", "check the path; large and small letters differ", MissingError),
    "ForbiddenByHub": Reason("the token gives no permission", _ALLOW, ForbiddenError, "forbidden"),
}  # fmt: skip
"""Codes of the hub (``storage.hub``), whose message names a page; the last is our own."""

_BY_CODE = OF_HUB | {
    "NoSuchBucket": _NO_BUCKET,
    "ContainerNotFound": _NO_BUCKET,
    "ExpiredToken": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "RequestTimeTooSkewed": _CLOCK,
    "RequestExpired": _CLOCK,
    "InvalidAccessKeyId": _REFUSED,
    "SignatureDoesNotMatch": _REFUSED,
    "InvalidToken": _REFUSED,
    "InvalidSecurity": _REFUSED,
    "InvalidAuthenticationInfo": _REFUSED,
    "AuthenticationFailed": _REFUSED,
    "NoAuthenticationInformation": _REFUSED,
    "PermanentRedirect": _REGION,
    "TemporaryRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "SlowDown": _SLOW,
    "ServerBusy": _SLOW,
    "TooManyRequests": _SLOW,
    "RetentionPolicyNotMet": _LOCKED,
    "ObjectUnderActiveHold": _LOCKED,
    "BlobImmutableDueToPolicy": _LOCKED,
    "BlobImmutableDueToLegalHold": _LOCKED,
    "ObjectLockConfigurationNotFoundError": _LOCKED,
    "ResourceIsEncryptedWithCustomerEncryptionKey": _CUSTOMER_KEY,
    "BlobUsesCustomerSpecifiedEncryption": _CUSTOMER_KEY,
    "InvalidObjectState": _ARCHIVED,
    "BlobArchived": _ARCHIVED,
    "BadDigest": CHECKSUM,
    "XAmzContentChecksumMismatch": CHECKSUM,
    "Md5Mismatch": CHECKSUM,
    "NotImplemented": _NO_CONDITIONS,
}

_PERMISSIONS = {
    "list": "s3:ListBucket, storage.objects.list, or Storage Blob Data Reader",
    "read": "s3:GetObject, storage.objects.get, or Storage Blob Data Reader",
    "look at": "s3:GetObject and s3:ListBucket, storage.objects.get and .list, or Storage Blob Data Reader",
    "write": "s3:PutObject, storage.objects.create, or Storage Blob Data Contributor",
    "delete": "s3:DeleteObject, storage.objects.delete, or Storage Blob Data Contributor",
}

_ODD_NAME = Reason(
    "the bucket has an object below it whose name has an empty part, '.', '..' or a control character",
    "rename or delete that object",
)

_BY_WORDS = (
    (
        _METADATA_SERVER,
        Reason(
            "no credentials were found",
            "set the variables of the cloud, log in with its command line, or run on a machine that has a role "
            "(see how-to/buckets)",
            fault="refused",
        ),
    ),
    (re.compile("(?i)worm protected|object lock"), _LOCKED),
    (
        re.compile(r"(?is)\A(?=.*server side encryption)(?=.*correct parameters)"),
        _CUSTOMER_KEY,
    ),
    (_KEY, _KEY_REFUSED),
    (re.compile("(?i)redirect without location|wrong region"), _REGION),
    (re.compile("(?i)invalid path"), _ODD_NAME),
    (re.compile(r"(?is)\A(?=.*expired)(?=.*(?:token|credential))"), _EXPIRED),
    (re.compile("(?i)invalid_grant|invalid_client"), _REFUSED),
)
"""Reasons known by the words only; the first that fits counts. An invalid name is a reason only if names are listed."""

_NOTHING_THERE = Reason(
    "nothing is there",
    "check bucket and path; names must be given in full, and large and small letters differ",
    MissingError,
)

_BY_STATUS: tuple[tuple[range | tuple[int, ...], str, Reason | None], ...] = (
    (
        (),
        "AlreadyExistsError",
        Reason("an object is there already", "choose another target", TargetExistsError),
    ),
    (
        (409, 412),
        "PreconditionError",
        Reason(
            "the object changed after it was first looked at",
            "run again once nobody writes to it",
            SourceChangedError,
        ),
    ),
    ((401,), "UnauthenticatedError", _REFUSED),
    ((403,), "PermissionDeniedError", None),
    ((429,), "", _SLOW),
    (range(300, 400), "", _REGION),
)
"""Reasons by the HTTP status, or by the name of obstore's error; None if the message must name the permission."""

_QUOTA = Reason("a quota is used up", "raise it or free space, and run again")
_FAILED = Reason(
    "the store failed, and still did after all retries", "run again later", fault="unavailable"
)

_WITHOUT_ANSWER = (
    (
        ("dns error", "name or service not known", "name resolution"),
        Reason(
            "the name of the server is not known",
            "check the endpoint and the network",
            fault="unavailable",
        ),
    ),
    (
        ("timedout", "timed out", "operation timed"),
        Reason(
            "no full answer came in time, also when it was asked again",
            "check the network, and run again",
            fault="slow",
        ),
    ),
    (
        ("certificate",),
        Reason(
            "the server's certificate is not trusted",
            "check the endpoint, and the certificates of this machine",
            fault="refused",
        ),
    ),
    (
        ("connecterror", "tcp connect", "connection refused"),
        Reason(
            "no connection to the server",
            "check the endpoint and the network",
            fault="unavailable",
        ),
    ),
    (
        ("http error", "kind: body", "incompletemessage", "disconnected", "peer closed"),
        Reason(
            "the connection broke off, also when it was asked again",
            "check the network, and run again",
            fault="unavailable",
        ),
    ),
    (
        ("allow_http", "scheme is not http"),
        Reason("the endpoint begins with http://", "set an https:// endpoint", fault="refused"),
    ),
)
"""Reasons if the store did not answer, by words of obstore; the first that fits counts."""

_OTHER = Reason("the request failed", "remove that cause and run again")


def reason_of(action: str, error: Exception) -> Reason:
    """The reason of a failed request; ``action`` as for ``bucket_error``."""
    text = str(error)
    code = CODE.search(text)
    if code is not None and code[1] in _BY_CODE:
        return _BY_CODE[code[1]]
    for words, reason in _BY_WORDS:
        if words.search(text) and (reason is not _ODD_NAME or action == "list"):
            return reason
    return _by_status(action, error, text)


def status_of(error: Exception) -> int:
    """The HTTP status in an error of obstore; 0 if the store did not answer."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else 0


def _by_status(action: str, error: Exception, text: str) -> Reason:
    found, status = type(error).__name__, status_of(error)
    if status == 404 or isinstance(error, FileNotFoundError):
        return _NOTHING_THERE
    for statuses, name, reason in _BY_STATUS:
        if status in statuses or found == name:
            return reason or _forbidden(action, text)
    if status == 507 or "quota" in text.lower():
        return _QUOTA
    if status >= 500:
        return _FAILED
    lower = text.lower()
    fitting = (reason for words, reason in _WITHOUT_ANSWER if any(word in lower for word in words))
    return next(fitting, _OTHER)


def _forbidden(action: str, text: str) -> Reason:
    needed = f"grant {_PERMISSIONS.get(action, _PERMISSIONS['read'])}"
    if CODE.search(text) is None:  # an answer to HEAD has no code
        reason = "the store does not accept the credentials, or they have no permission"
        return Reason(reason, f"check them, and {needed}", ForbiddenError, "forbidden")
    return Reason("the credentials have no permission", needed, ForbiddenError, "forbidden")
