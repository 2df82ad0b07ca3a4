"""KeptMetadata: the texts that other programs keep beside the tensors of a checkpoint, such as rank and alpha of a LoRA.

They are in ``__metadata__`` of the header of a safetensors file, in ``metadata`` of an index, and in ``custom_metadata`` of Orbax. A target of
the same format has them in the same place, any other in its record (``slices.json``), from which they come back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

MOST_BYTES = 25_000_000
"""A quarter of the largest header, so that a header has room for it beside the tensors; tag lists of trainers take 1 MB."""

OWN_KEY = "reshard."
"""Keys of headers that begin so are of this project's own records."""

_OF_TORCH = frozenset({"DCP_VERSION", "DCP_SHARDING_INFO"})
"""Keys of headers with the places of slices; a target records its own."""

_SIZE, _VERSION = "total_size", "version"
"""Members of an index that a target has of its own: it computes the first, and digits in the second number weights (``formats.delta``)."""

_FORMAT, _USUAL = "format", "pt"
"""Every header that is written has the first, and the second for it where nothing else is known: transformers refuses files without."""

_SHOWN, _SHOWN_CHARACTERS = 3, 40


class KeptMetadata(Struct, frozen=True):
    """The texts beside the tensors, by key.

    Attributes:
        header: of the headers of safetensors files; ``format`` only where it is not ``pt``.
        index: JSON of the members of ``metadata`` of an index.
        custom: JSON of the ``custom_metadata`` of Orbax, of the ``checkpoint`` and of its ``tree``.
        left_out: the texts that no target gets, one sentence each.
    """

    header: Mapping[str, str] = field(default_factory=dict)
    index: Mapping[str, str] = field(default_factory=dict)
    custom: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    @property
    def parts(self) -> dict[str, Mapping[str, str]]:
        """The texts of each place that has any, by its name."""
        every = {"header": self.header, "index": self.index, "custom": self.custom}
        return {place: texts for place, texts in every.items() if texts}

    @property
    def nbytes(self) -> int:
        """The size of all texts as JSON."""
        return len(json.dumps(self.parts)) if self.parts else 0

    @property
    def header_entries(self) -> dict[str, str]:
        """The entries of a header beside this project's own keys."""
        return {_FORMAT: _USUAL, **self.header}


NO_METADATA = KeptMetadata()


def metadata_of_files(
    headers: Sequence[Mapping[str, str]], index: Mapping[str, Any], recorded: KeptMetadata
) -> KeptMetadata:
    """The texts of the headers of all files and of ``metadata`` of the index; texts that have no place there come from the record.

    A key that files have with different texts is left out.
    """
    header: dict[str, str] = {}
    unlike: dict[str, None] = {}
    for entries in headers:
        for key, text in entries.items():
            is_own = key in _OF_TORCH or key.startswith(OWN_KEY)
            if not is_own and header.setdefault(key, text) != text:
                unlike[key] = None
    # Sorted, since libraries write them in any order, and equal checkpoints become equal files.
    header = {key: header[key] for key in sorted(header) if key not in unlike}
    if header.get(_FORMAT) == _USUAL:
        del header[_FORMAT]
    version = index.get(_VERSION)
    own = (_SIZE, _VERSION) if isinstance(version, str) and version.isdigit() else (_SIZE,)
    members = json_texts({key: value for key, value in index.items() if key not in own})
    told = (
        f"the files have different texts for {_some(unlike)} in their metadata, which is left out"
    )
    left_out = (told,) if unlike else ()
    return within_limits(
        KeptMetadata(header, {**recorded.index, **members}, recorded.custom, left_out)
    )


def json_texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Each value as JSON."""
    return {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}


def within_limits(found: KeptMetadata) -> KeptMetadata:
    """The same without texts that no UTF-8 file can hold, and without any where they are too long."""
    if found.nbytes > MOST_BYTES:
        too_long = (
            f"the metadata beside the tensors takes {found.nbytes:,} bytes, more than the {MOST_BYTES:,} that are carried, and is "
            "left out"
        )
        return KeptMetadata(left_out=(*found.left_out, too_long))
    parts = found.parts
    lost = [key for part in parts.values() for key in part if not _is_utf8(key + part[key])]
    if not lost:
        return found
    kept = {
        place: {key: text for key, text in part.items() if _is_utf8(key + text)}
        for place, part in parts.items()
    }
    odd = f"{_some(lost)} in the metadata has a lone surrogate, which no file can hold, and is left out"
    return KeptMetadata(**kept, left_out=(*found.left_out, odd))


def _is_utf8(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= one <= "\udfff" for one in text)


def metadata_warnings(a: KeptMetadata, b: KeptMetadata) -> Iterator[str]:
    """One sentence where two checkpoints have other metadata, which is no difference of their tensors."""
    one, other = _named(a), _named(b)
    unlike = [key for key in one | other if one.get(key) != other.get(key)]
    if unlike:
        shown = unlike[:_SHOWN]
        told = (f"{k} is {_shown(one.get(k))} in A and {_shown(other.get(k))} in B" for k in shown)
        more = f", and {len(unlike) - _SHOWN:,} more" if len(unlike) > _SHOWN else ""
        yield (
            f"the metadata beside the tensors differs, which is no difference of a tensor: {'; '.join(told)}{more}"
        )


def stale_metadata(old: KeptMetadata, new: KeptMetadata) -> Iterator[str]:
    """One sentence where a delta gives receivers new tensors beside old texts. Only those that serving reads count."""
    before = {**old.header, **old.index}
    unlike = [key for key, text in {**new.header, **new.index}.items() if before.get(key) != text]
    if unlike:
        yield (
            f"{_some(unlike)} in the metadata of the new checkpoint {'are' if unlike[1:] else 'is'} not as in the old one, and a delta has no place "
            "for it: receivers keep the old metadata; publish a full version where they read it (reshard convert)"
        )


def _named(found: KeptMetadata) -> dict[str, str]:
    """Every text, by its key and place as a sentence names them."""
    places = {"header": "", "index": " of the index", "custom": " of custom_metadata"}
    return {
        f"{key[:80]!r}{places[place]}": text
        for place, part in found.parts.items()
        for key, text in part.items()
    }


def _shown(text: str | None) -> str:
    if text is None:
        return "missing"
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…")


def _some(keys: Iterable[str]) -> str:
    """The first of some keys, and the number of the others, in words."""
    names = [repr(key[:80]) for key in keys]
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
