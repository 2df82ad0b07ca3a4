"""The texts beside tensors: which are kept of several files, and which no file can hold."""

from __future__ import annotations

import json

import pytest

from reshard.formats.slices import kept_metadata
from reshard.formats.slices.kept_metadata import (
    NO_METADATA,
    KeptMetadata,
    metadata_of_files,
    metadata_warnings,
    within_limits,
)


def test_own_keys_and_the_usual_format_are_not_kept() -> None:
    header = {
        "format": "pt", "reshard.crc64nvme": "0", "reshard.record": "{}", "DCP_VERSION": "1.0",
        "DCP_SHARDING_INFO": "{}", "total_size": "1", "version": "2",
    }  # fmt: skip
    found = metadata_of_files([header], {"total_size": 8, "version": "000007"}, NO_METADATA)
    assert found == KeptMetadata({"total_size": "1", "version": "2"})
    assert found.header_entries == {"format": "pt", "total_size": "1", "version": "2"}
    assert metadata_of_files([], {"version": "1.0"}, NO_METADATA).index == {"version": '"1.0"'}


def test_what_files_say_comes_before_what_was_recorded() -> None:
    recorded = KeptMetadata({"a": "old"}, {"b": "1", "c": "2"}, {"tree": "3"})
    found = metadata_of_files([{"a": "new"}, {}], {"b": [2]}, recorded)
    assert found == KeptMetadata({"a": "new"}, {"b": "[2]", "c": "2"}, {"tree": "3"})


def test_files_that_disagree_lose_the_key_only() -> None:
    found = metadata_of_files([{"format": "pt", "a": "1"}, {"format": "tf", "a": "1"}], {}, NO_METADATA)  # fmt: skip
    assert found.header_entries == {"format": "pt", "a": "1"}
    assert found.left_out == (
        "the files have different texts for 'format' in their metadata, which is left out",
    )


def test_too_long_metadata_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_metadata, "MOST_BYTES", 100)
    assert within_limits(KeptMetadata({"a": "x" * 60})).header == {"a": "x" * 60}
    assert within_limits(KeptMetadata({"a": "é" * 60})) == KeptMetadata(
        left_out=(
            "the metadata beside the tensors takes 381 bytes, more than the 100 that are carried, and is left out",
        )
    )


def test_lone_surrogates_are_left_out() -> None:
    index = json.loads('{"a": "\\ud800", "b": "\\ud83d\\ude00", "c\\udc00": 1}')
    found = metadata_of_files([], index, NO_METADATA)
    assert found.index == {"b": '"😀"'}
    assert found.left_out == (
        "'a', 'c\\udc00' in the metadata has a lone surrogate, which no file can hold, and is left out",
    )


def test_only_the_first_differences_are_told() -> None:
    a = KeptMetadata({str(n): "1" for n in range(9)}, {"n": "1"})
    assert not list(metadata_warnings(a, a))
    (text,) = metadata_warnings(a, KeptMetadata(index={"n": "2"}))
    assert text.endswith("'2' is '1' in A and missing in B, and 7 more")
    (text,) = metadata_warnings(KeptMetadata(index={"n": "1"}), KeptMetadata({"n": "1"}))
    assert "'n' of the index is '1' in A and missing in B; 'n' is missing in A and '1' in B" in text
