"""Checks the signed name and version of weights: otherwise a valid but older signature passes for the newest."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from reshard.errors import PlanError, VerificationError, shorten
from reshard.identity.envelope import MOST_CHARACTERS, SignedAs


def signing_now(name: Any, version: Any) -> SignedAs:
    """The statements to sign beside a root. Raises PlanError for a version without a name, and for a value that is no text."""
    said = (_text("name", name), _text("version", version))
    if said[1] and not said[0]:
        raise PlanError("a version is one of a model; give its name too (name)")
    return SignedAs(*said, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))


def wanted_of(name: Any, min_version: Any, *, is_signed: bool) -> SignedAs:
    """The statements that a caller wants. Raises PlanError for a least version without a name, for either without a key, and for no text."""
    wanted = SignedAs(_text("name", name), _text("min_version", min_version))
    if wanted.version and not wanted.name:
        raise PlanError(
            "the versions of one model have an order, those of several have none; give the name too (name)"
        )
    if wanted.name and not is_signed:
        raise PlanError(
            "a name and a version stand in a signature, which only a key can check; give the public key (key)"
        )
    return wanted


def check_signed_as(wanted: SignedAs, said: SignedAs) -> None:
    """Raises VerificationError unless the signature says that the weights have this name, and this version or a later one."""
    if wanted.name and said.name != wanted.name:
        found = f"signed as {said.name!r}" if said.name else "signed without a name"
        raise VerificationError(
            f"the weights are {found}, but {wanted.name!r} was asked for; take the signature that was made for it (reshard sign --name)"
        )
    if wanted.version and not _is_reached(said.version, wanted.version):
        found = f"the version {said.version!r}" if said.version else "no version"
        raise VerificationError(
            f"the weights are signed as {said.name!r}, {found}, at {said.signed_at or 'an unknown time'}, but {wanted.version!r} or later was asked "
            "for: they may be older ones; only whole numbers have an order; take the newer checkpoint, or sign it with its version"
        )


def _is_reached(version: str, least: str) -> bool:
    numbers = [text.isascii() and text.isdigit() for text in (version, least)]
    return int(version) >= int(least) if all(numbers) else version == least


def _text(what: str, value: Any) -> str:
    """A name or a version as text; "" for None."""
    if value is None:
        return ""
    is_number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64
    text = str(value) if is_number else value
    is_one = isinstance(text, str) and 0 < len(text) <= MOST_CHARACTERS and text.isprintable()
    if not is_one:
        raise PlanError(
            f"{what} is {shorten(value)}; expected a text of 1 to {MOST_CHARACTERS} printable characters, or a whole number below 2^64; or leave it "
            "out"
        )
    return text
