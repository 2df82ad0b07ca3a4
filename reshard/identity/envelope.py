"""The signature of an identity: a DSSE envelope around an in-toto Statement (both version 1), and the name and version that it must have.

DSSE: https://github.com/secure-systems-lab/dsse, in-toto: https://github.com/in-toto/attestation. The signed bytes are
``DSSEv1``, the length and text of the type, and the length and bytes of the payload.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from reshard.errors import (
    CorruptError,
    FormatError,
    MissingError,
    PlanError,
    VerificationError,
    shorten,
)
from reshard.formats.names import SIGNATURE_NAME
from reshard.formats.safe_json import checked_text, read_bytes
from reshard.identity.keys import PrivateKey, PublicKey
from reshard.identity.leaf_tree import is_root
from reshard.identity.weights_identity import WeightsIdentity
from reshard.storage.location import Location

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:reshard:weights-identity:v1"
DIGEST_NAME = "reshardWeightsIdentityV1"
SUBJECT_NAME = "weights"

MAX_ENVELOPE_BYTES = 1 << 20

MOST_CHARACTERS = 200
"""Limit of a name and of a version."""

_Said = Annotated[
    str, Meta(max_length=MOST_CHARACTERS)
]  # longer digits take long to become a number

_OF_URLS = str.maketrans("-_", "+/")


class _Signature(Struct, frozen=True):
    sig: str
    keyid: str | None = None


class _Envelope(Struct, frozen=True):
    payload: str
    payloadType: str  # noqa: N815  the name that DSSE gives it
    signatures: tuple[_Signature, ...]


class NoSignatureError(MissingError):
    """There is no signature.

    Attributes:
        problem: the beginning of the message; the remedy depends on the arguments of the caller.
    """

    def __init__(self, place: Location) -> None:
        self.problem = f"{place} does not exist: expected the signature of an identity"
        super().__init__(
            f"{self.problem}; sign the checkpoint with reshard sign, or name the folder that has the signature (identity)"
        )


class RecordedSignature(Struct, frozen=True):
    """A signature that lies beside an identity; it is not verified.

    Attributes:
        data: the bytes of ``identity.dsse.json``.
        root: the root that it claims to sign.
        signers: the ids of the keys, "" for one that is not named.
    """

    data: bytes
    root: str
    signers: tuple[str, ...]


class _Subject(Struct, frozen=True):
    name: str
    digest: dict[str, str]


class SignedAs(Struct, frozen=True, omit_defaults=True):
    """The signer's statements about the weights; each is "" where none was made.

    Attributes:
        name: of the model.
        version: of it; whole numbers have an order.
        signed_at: time of the signature, such as ``2026-11-29T08:00:00Z``.
    """

    name: _Said = ""
    version: _Said = ""
    signed_at: _Said = ""


class _Predicate(SignedAs, frozen=True, omit_defaults=True):
    """Statements about the weights besides their root.

    Attributes:
        tensors: their number.
    """

    contents: str = ""
    rest: str = ""
    tensors: int = 0


class SignedRoot(Struct, frozen=True):
    """A root, and its signer's statements about it."""

    root: str
    said: SignedAs


class _Statement(Struct, frozen=True):
    type: str = field(name="_type")
    subject: tuple[_Subject, ...] = ()
    predicate_type: str = field(name="predicateType", default="")
    predicate: _Predicate = field(default_factory=_Predicate)


def signed_envelope(found: WeightsIdentity, key: PrivateKey, said: SignedAs) -> bytes:
    """``identity.dsse.json``: the signature of a root."""
    statement = _Statement(
        STATEMENT_TYPE,
        (_Subject(SUBJECT_NAME, {DIGEST_NAME: found.root}),),
        PREDICATE_TYPE,
        _Predicate(
            said.name,
            said.version,
            said.signed_at,
            found.contents,
            found.rest,
            len(found.tensors),
        ),
    )
    payload = msgspec.json.encode(statement)
    signature = base64.b64encode(key.sign(_signed_bytes(PAYLOAD_TYPE, payload))).decode()
    envelope = _Envelope(
        base64.b64encode(payload).decode(), PAYLOAD_TYPE, (_Signature(signature, key.id),)
    )
    return msgspec.json.format(msgspec.json.encode(envelope), indent=1) + b"\n"


def read_signed_root(folder: Location, key: PublicKey) -> SignedRoot:
    """The root that a key has signed in a folder's envelope, and the signer's statements about it.

    Raises NoSignatureError where there is no envelope, CorruptError where it is damaged, FormatError for an envelope of something else,
    VerificationError where the key has not signed it.
    """
    place = folder / SIGNATURE_NAME
    if not place.exists():
        raise NoSignatureError(place)
    return _signed_root(read_bytes(place, MAX_ENVELOPE_BYTES), str(place), key)


def recorded_signers(folder: Location) -> tuple[str, ...]:
    """The ids of the keys that signed, as the envelope in a folder says, "" for one that it does not name; nothing is verified.

    Empty where there is no envelope.

    Raises CorruptError where it is damaged.
    """
    place = folder / SIGNATURE_NAME
    if not place.exists():
        return ()
    data = read_bytes(place, MAX_ENVELOPE_BYTES)
    try:
        envelope = msgspec.json.decode(checked_text(data, str(place)), type=_Envelope)
    except msgspec.DecodeError as error:
        raise _no_envelope(str(place), error) from None
    return _signers(envelope)


def _signers(envelope: _Envelope) -> tuple[str, ...]:
    return tuple(signature.keyid or "" for signature in envelope.signatures)


def recorded_signature(folder: Location) -> RecordedSignature | None:
    """The envelope in a folder, whose signature is not verified; None where there is none.

    Raises as ``read_signed_root``, but for NoSignatureError and VerificationError.
    """
    place = folder / SIGNATURE_NAME
    if not place.exists():
        return None
    data = read_bytes(place, MAX_ENVELOPE_BYTES)
    envelope, payload = _read(data, str(place))
    found = _root_in(envelope, payload, str(place))
    return RecordedSignature(data, found.root, _signers(envelope))


def _signed_root(data: bytes, where: str, key: PublicKey) -> SignedRoot:
    envelope, payload = _read(data, where)
    try:
        signatures = [_decoded(signature.sig) for signature in envelope.signatures]
    except ValueError as error:
        raise _no_envelope(where, error) from None
    signed = _signed_bytes(envelope.payloadType, payload)
    if not any(key.has_signed(signed, signature) for signature in signatures):
        raise VerificationError(
            f"{where} is not signed with this key (id {key.id[:16]}…): it has {len(signatures)} signature"
            f"{'' if len(signatures) == 1 else 's'}, of the keys "
            f"{', '.join(map(_shown_id, envelope.signatures[:3])) or 'none'}; check which key signs your weights"
        )
    return _root_in(envelope, payload, where)


def _root_in(envelope: _Envelope, payload: bytes, where: str) -> SignedRoot:
    if envelope.payloadType != PAYLOAD_TYPE:
        raise FormatError(
            f"{where} is an envelope of {envelope.payloadType[:80]!r}; expected {PAYLOAD_TYPE!r}; choose the file that reshard sign "
            "wrote"
        )
    return _root_of_statement(payload, where)


def _read(data: bytes, where: str) -> tuple[_Envelope, bytes]:
    """An envelope and its payload."""
    try:
        envelope = msgspec.json.decode(checked_text(data, where), type=_Envelope)
        return envelope, _decoded(envelope.payload)
    except (msgspec.DecodeError, ValueError) as error:
        raise _no_envelope(where, error) from None


def _decoded(text: str) -> bytes:
    """The bytes of a text in base64, by the standard alphabet or the one for URLs: DSSE allows both. ValueError for another text."""
    return base64.b64decode(text.translate(_OF_URLS), validate=True)


def _shown_id(signature: _Signature) -> str:
    return f"{signature.keyid[:16]}…" if signature.keyid else "one without an id"


def _no_envelope(where: str, error: Exception) -> CorruptError:
    return CorruptError(
        f"{where} is damaged: it is no DSSE envelope ({error}); restore it from a copy, or sign anew"
    )


def _root_of_statement(payload: bytes, where: str) -> SignedRoot:
    """The root in a statement whose signature is right."""
    try:
        statement = msgspec.json.decode(payload, type=_Statement)
    except msgspec.DecodeError as error:
        raise FormatError(
            f"{where} signs no statement of in-toto ({error}); choose the file that reshard sign wrote"
        ) from None
    if (statement.type, statement.predicate_type) != (STATEMENT_TYPE, PREDICATE_TYPE):
        raise FormatError(
            f"{where} signs a statement of {statement.predicate_type[:80]!r}; expected {PREDICATE_TYPE!r}; choose the file that "
            "reshard sign wrote"
        )
    roots = [s.digest[DIGEST_NAME] for s in statement.subject if DIGEST_NAME in s.digest]
    if len(roots) != 1:
        raise FormatError(
            f"{where} signs {len(roots)} roots; expected one; choose the file that reshard sign wrote"
        )
    if not is_root(root := roots[0].lower()):
        raise FormatError(
            f"{where} signs the root {roots[0][:80]!r}; expected 64 hex digits; choose the file that reshard sign wrote"
        )
    said = statement.predicate
    return SignedRoot(root, SignedAs(said.name, said.version, said.signed_at))


def _signed_bytes(payload_type: str, payload: bytes) -> bytes:
    """The bytes that DSSE signs."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


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
