"""Every failure of a bucket as a StorageError: what was tried, the URL, the reason, the remedy, the store's own words."""

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


class NoConditionsError(StorageError):
    """The store refuses a condition on a put."""


class DamagedUploadError(StorageError):
    """The store received other bytes than were sent."""


_STATUS = re.compile(r"(?:non-2xx status code|HTTP status|status): (\d{3})")
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE = re.compile(r"<(?:Message|Details)>([^<]*)</")
_METADATA_SERVER = re.compile(
    r"169\.254\.|metadata\.google\.internal|/latest/(?:api|meta-data)|/metadata/identity|InstanceMetadata|"
    r"No (?:credentials|access key)|credentials? (?:are|were)? ?not (?:found|provided)|Account must be specified|"
    r"MissingAccountKey|Error getting credentials",
    re.IGNORECASE,
)
_KEY = re.compile(r"<Code>KMS\.|\bkms:\w+|\bcloudkms\.|Cloud KMS", re.IGNORECASE)
_SECRET = re.compile(
    r"(?i)((?:[?&; {,'\"]|^)(?:sig|signature|x-amz-signature|x-amz-credential|x-amz-security-token|x-goog-signature|"
    r"x-goog-credential|awsaccesskeyid|googleaccessid|access_token|client_secret|assertion|accountkey)[\"']?[=:]\s*\"?)[^&\s\"';,<]+"
)
_BEARER = re.compile(r"(?i)\b(bearer|sharedkey|aws4-hmac-sha256) [^\s\"']+")
_LISTINGS = 3
"""A listing is tried so often."""

_WORDS = 300
"""So many characters of the store's own words are shown."""


class _Reason(Struct, frozen=True):
    """Why a request failed, and what to do. ``kind`` is the class of the error, and ``fault`` its attribute."""

    reason: str
    remedy: str
    kind: type[StorageError] = StorageError
    fault: Fault = ""


_CLOCK = _Reason(
    "the store refuses the time of this machine's clock",
    "set the clock (NTP) and run again",
    fault="refused",
)
_EXPIRED = _Reason(
    "the credentials have expired", "renew them and run the same command again", fault="refused"
)
_REFUSED = _Reason(
    "the store does not accept the credentials",
    "check them, and that they belong to this cloud",
    fault="refused",
)
_REGION = _Reason(
    "the bucket is in another region",
    "set AWS_REGION to the region of the bucket",
    fault="refused",
)
_SLOW = _Reason(
    "the store asks for fewer requests, and still did after all retries",
    "wait, use fewer workers, and run again",
    fault="unavailable",
)
_LOCKED = _Reason(
    "a retention policy or a legal hold protects the object",
    "choose another target, or wait until the retention ends",
)
_CUSTOMER_KEY = _Reason(
    "the object is encrypted with a key of the customer, which was not sent",
    "give the key (AWS_SERVER_SIDE_ENCRYPTION=sse-c and AWS_SSE_CUSTOMER_KEY_BASE64; for az:// AZURE_ENCRYPTION_KEY; "
    "gs:// has no setting for it)",
)
_KEY_REFUSED = _Reason(
    "the key with which the bucket encrypts may not be used",
    "enable it, and grant its use (kms:GenerateDataKey and kms:Decrypt, or roles/cloudkms.cryptoKeyEncrypterDecrypter)",
    fault="refused",
)
_ARCHIVED = _Reason(
    "the object is archived", "restore it to a storage class that can be read, and run again"
)
_CHECKSUM = _Reason(
    "the store received other bytes than were sent",
    "check memory and network, and run again",
    DamagedUploadError,
)
_NO_CONDITIONS = _Reason(
    "the store takes no conditions on writing",
    "write elsewhere, or see that nobody else writes there and say so (unsafe_commit)",
    NoConditionsError,
)
_NO_BUCKET = _Reason(
    "there is no such bucket",
    "check its name, and that the endpoint is the right one",
    MissingError,
    "refused",
)

_BY_CODE = {
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
    "BadDigest": _CHECKSUM,
    "XAmzContentChecksumMismatch": _CHECKSUM,
    "Md5Mismatch": _CHECKSUM,
    "NotImplemented": _NO_CONDITIONS,
}

_PERMISSIONS = {
    "list": "s3:ListBucket, storage.objects.list, or Storage Blob Data Reader",
    "read": "s3:GetObject, storage.objects.get, or Storage Blob Data Reader",
    "look at": "s3:GetObject and s3:ListBucket, storage.objects.get and .list, or Storage Blob Data Reader",
    "write": "s3:PutObject, storage.objects.create, or Storage Blob Data Contributor",
    "delete": "s3:DeleteObject, storage.objects.delete, or Storage Blob Data Contributor",
}


def bucket_error(action: str, url: str, error: Exception, what: str = "") -> StorageError:
    """``error`` of obstore as a StorageError that names the action, the URL, the reason and the remedy.

    Nothing secret is in it: of what the store answered, its code and its message are shown, signatures removed.
    """
    found = _reason(action, error)
    begin = f"{what}: " if what else ""
    who = "store" if status_of(error) else "client"
    finding = f"{begin}cannot {action} {url}: {found.reason}"
    made = found.kind(f"{finding}; {found.remedy} (the {who} says: {_own_words(str(error))})")
    if found.fault:
        made.fault, made.finding = found.fault, finding
    return made


def damaged_upload(url: str) -> StorageError:
    """The error for an object that has other bytes than were sent, to be raised."""
    return DamagedUploadError(f"cannot write {url}: {_CHECKSUM.reason}; {_CHECKSUM.remedy}")


@contextmanager
def bucket_errors(action: str, url: str, what: str = "") -> Iterator[None]:
    """Turns an error of obstore in the block into a StorageError about ``url``."""
    try:
        yield
    except ReshardError:  # some of them are OSErrors, and say already what is wrong
        raise
    except client_errors() as error:
        raise bucket_error(action, url, error, what) from None  # its text may hold what is secret


def whole_listing(listed: Callable[[], T]) -> T:
    """What a listing gives; obstore does not ask again where the answer breaks off or makes no sense."""
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


def status_of(error: Exception) -> int:
    """The HTTP status in an error of obstore; 0 where the store did not answer."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else 0


def without_secrets(text: str) -> str:
    """A text with the values of signatures, keys and tokens removed."""
    return _BEARER.sub(r"\1 …", _SECRET.sub(r"\1…", text))


def _own_words(text: str) -> str:
    """The store's code and message, or the first line of the error, on one line and without secrets."""
    plain = text.partition("\n\nDebug source:")[0]
    code, message = _CODE.search(text), _MESSAGE.search(text)
    shown = plain if code is None else f"{code[1]}: {message[1]}" if message else code[1]
    shown = " ".join(without_secrets(shown).split())
    return shown if len(shown) <= _WORDS else f"{shown[:_WORDS]}…"


def _reason(action: str, error: Exception) -> _Reason:
    text = str(error)
    code = _CODE.search(text)
    if code is not None and code[1] in _BY_CODE:
        return _BY_CODE[code[1]]
    return _special(action, text) or _by_status(action, error, text)


def _special(action: str, text: str) -> _Reason | None:
    """Reasons that only the words tell."""
    lower = text.lower()
    if _METADATA_SERVER.search(text):
        return _Reason(
            "no credentials were found",
            "set the variables of the cloud, log in with its command line, or run on a machine that has a role "
            "(see how-to/buckets)",
            fault="refused",
        )
    if "worm protected" in lower or "object lock" in lower:
        return _LOCKED
    if "server side encryption" in lower and "correct parameters" in lower:
        return _CUSTOMER_KEY
    if _KEY.search(text):
        return _KEY_REFUSED
    if "redirect without location" in lower or "wrong region" in lower:
        return _REGION
    if "invalid path" in lower and action == "list":
        return _Reason(
            "the bucket has an object below it whose name has an empty part, '.', '..' or a control character",
            "rename or delete that object",
        )
    if "expired" in lower and ("token" in lower or "credential" in lower):
        return _EXPIRED
    if "invalid_grant" in lower or "invalid_client" in lower:
        return _REFUSED
    return None


def _by_status(action: str, error: Exception, text: str) -> _Reason:
    name, status = type(error).__name__, status_of(error)
    if status == 404 or isinstance(error, FileNotFoundError):
        return _Reason(
            "nothing is there",
            "check bucket and path; names must be given in full, and large and small letters differ",
            MissingError,
        )
    if name == "AlreadyExistsError":
        return _Reason("an object is there already", "choose another target", TargetExistsError)
    if status in (409, 412) or name == "PreconditionError":
        return _Reason(
            "the object changed after it was first looked at",
            "run again once nobody writes to it",
            SourceChangedError,
        )
    if status == 401 or name == "UnauthenticatedError":
        return _REFUSED
    if status == 403 or name == "PermissionDeniedError":
        return _forbidden(action, text)
    if status == 429:
        return _SLOW
    if 300 <= status < 400:
        return _REGION
    if status == 507 or "quota" in text.lower():
        return _Reason("a quota is used up", "raise it or free space, and run again")
    if status >= 500:
        return _Reason(
            "the store failed, and still did after all retries",
            "run again later",
            fault="unavailable",
        )
    return _without_answer(text)


def _forbidden(action: str, text: str) -> _Reason:
    needed = f"grant {_PERMISSIONS.get(action, _PERMISSIONS['read'])}"
    if _CODE.search(text) is None:  # an answer to HEAD does not say which
        reason = "the store does not accept the credentials, or they have no permission"
        return _Reason(reason, f"check them, and {needed}", ForbiddenError, "forbidden")
    return _Reason("the credentials have no permission", needed, ForbiddenError, "forbidden")


def _without_answer(text: str) -> _Reason:
    lower = text.lower()
    if "dns error" in lower:
        return _Reason(
            "the name of the server is not known",
            "check the endpoint and the network",
            fault="unavailable",
        )
    if "timedout" in lower or "timed out" in lower or "operation timed" in lower:
        return _Reason(
            "no full answer came in time, also when it was asked again",
            "check the network, and run again",
            fault="slow",
        )
    if "certificate" in lower:
        return _Reason(
            "the server's certificate is not trusted",
            "check the endpoint, and the certificates of this machine",
            fault="refused",
        )
    if "connecterror" in lower or "tcp connect" in lower or "connection refused" in lower:
        return _Reason(
            "no connection to the server",
            "check the endpoint and the network",
            fault="unavailable",
        )
    if "http error" in lower or "kind: body" in lower or "incompletemessage" in lower:
        return _Reason(
            "the connection broke off, also when it was asked again",
            "check the network, and run again",
            fault="unavailable",
        )
    if "allow_http" in lower or "scheme is not http" in lower:
        return _Reason(
            "the endpoint begins with http://", "set an https:// endpoint", fault="refused"
        )
    return _Reason("the request failed", "remove that cause and run again")
