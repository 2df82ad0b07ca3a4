"""Every failure of a bucket as a StorageError: the action, the URL, the reason, the remedy, the store's own words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from reshard.errors import ReshardError, StorageError
from reshard.storage.buckets.reasons import CHECKSUM, CODE, DamagedUploadError, reason_of, status_of

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
