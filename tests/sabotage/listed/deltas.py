"""Sabotages of what makes deltas and applies them."""

from __future__ import annotations

from tests.sabotage.sabotage import Sabotage

CHAIN = "reshard/formats/delta/chain.py"
MAKE = "reshard/deltas/make_delta.py"
LAYERED = "reshard/formats/delta/changes.py"

SABOTAGES = (
    Sabotage(
        "newest-layer-first",
        "deltas are applied in the order from the last to the first",
        CHAIN,
        "for d in chain if name in d.payloads)",
        "for d in reversed(chain) if name in d.payloads)",
        ("tests/formats/delta/test_chain.py::test_the_chain_is_what_a_naive_receiver_makes",),
    ),
    Sabotage(
        "layer-unchecked",
        "what a delta makes of a tensor is not compared with its checksum",
        LAYERED,
        "        if found != self._layer.digest:\n",
        "        if False:\n",
        ("tests/formats/delta/test_chain.py::test_another_base_is_found_by_the_checksums",),
    ),
    Sabotage(
        "unchanged-tensors-unchecked",
        "a base is taken whose touched tensors fit",
        CHAIN,
        '    return (Layer("same", listing.version, listing.index.checksum, digest),)\n',
        "    return found if digest else ()\n",
        ("tests/deltas/test_make_delta.py::test_a_wrong_base_whose_touched_tensors_fit_is_found",),
    ),
    Sabotage(
        "first-delta-not-missed",
        "deltas of another program are applied to a base of which nothing shows that it is theirs",
        CHAIN,
        "        _refuse_unknown_base(base, chain[0])\n",
        "        pass\n",
        ("tests/formats/delta/test_skyrl.py::test_a_first_delta_that_was_left_out_is_missed",),
    ),
    Sabotage(
        "full-version-not-compared",
        "a delta is made of another step than the full version beside it",
        MAKE,
        "    refuse_other_full(it.before, it.request.old.path, payloads)\n",
        "",
        (
            "tests/deltas/test_publishing.py::test_an_old_that_is_not_the_full_version_before_is_refused",
        ),
    ),
    Sabotage(
        "two-runs-chained",
        "a delta is applied to the version of another run",
        CHAIN,
        "        if None not in (made, base) and made != base:\n",
        "        if False:\n",
        ("tests/deltas/test_make_delta.py::test_deltas_of_two_runs_do_not_chain",),
    ),
    Sabotage(
        "version-skipped",
        "a chain with a hole is applied",
        CHAIN,
        "    if waiting:\n",
        "    if False:\n",
        ("tests/formats/delta/test_chain.py::test_a_version_that_is_missing_is_named",),
    ),
    Sabotage(
        "older-version-taken",
        "a signature of an earlier version passes for a later one",
        "reshard/identity/envelope.py",
        "int(version) >= int(least)",
        "int(version) <= int(least)",
        ("tests/identity/test_signed_as.py::test_what_is_reached",),
    ),
    Sabotage(
        "unlisted-payload-taken",
        "a file of a delta may hold what its index does not list",
        "reshard/formats/delta/read_delta.py",
        "    _refuse_others(found, headers, pieces)\n",
        "",
        ("tests/formats/delta/test_payloads.py::test_files_that_are_not_what_the_index_lists",),
    ),
    Sabotage(
        "files-of-another-version",
        "the index of one version is taken with the files of another",
        "reshard/formats/delta/read_delta.py",
        "    if listed not in (None, digest):\n",
        "    if False:\n",
        ("tests/deltas/test_refusals.py::test_the_index_of_one_version_with_the_files_of_another",),
    ),
    Sabotage(
        "index-before-files",
        "the index of a delta is in a bucket before its payloads",
        MAKE,
        "                stored_bytes = write_payload_files(",
        "                early = render_index(_index(request, version, base_version, payloads, files))\n"
        "                (transaction.root / INDEX_NAME).write_pieces(iter([early]), len(early))\n"
        "                stored_bytes = write_payload_files(",
        (
            "tests/robustness/buckets/test_deltas.py::test_a_delta_that_is_killed_at_a_request_is_made_anew[s3_bucket]",
        ),
    ),
    Sabotage(
        "published-version-made-anew",
        "a version whose index receivers have read is made anew",
        MAKE,
        "            finish_version(place, transaction)\n",
        "",
        (
            "tests/robustness/buckets/test_deltas.py::test_a_version_whose_index_is_there_is_finished_and_not_made_anew[s3_bucket-delta]",
        ),
    ),
    Sabotage(
        "step-in-the-making-published",
        "a delta is published although its source changed meanwhile",
        MAKE,
        "                if _states(request) != before:\n",
        "                if False:\n",
        ("tests/deltas/test_make_delta.py::test_a_source_that_changes_meanwhile",),
    ),
    Sabotage(
        "position-wrapped",
        "positions beyond 4 GiB begin again at zero",
        "reshard/deltas/payloads.py",
        '    if encoding == "overwrite" and spec.nbytes >= POSITIONS:\n',
        '    if encoding == "overwrite" and spec.nbytes >= POSITIONS**2:\n',
        ("tests/deltas/test_make_delta.py::test_a_tensor_whose_positions_would_wrap_is_refused",),
    ),
    Sabotage(
        "needed-version-removed",
        "the base of a kept delta is removed",
        "reshard/deltas/versions.py",
        '            at = sound[at].base_version if at in sound else ""\n',
        '            at = ""\n',
        ("tests/deltas/test_prune_versions.py::test_what_kept_versions_need_stays[1-left0]",),
    ),
    Sabotage(
        "identity-of-the-base-carried",
        "the identity of a base is taken for that of what deltas make of it",
        "reshard/conversion/identity.py",
        "    if reader.chunks.origin is not reader.chunks:\n",
        "    if False:\n",
        ("tests/deltas/test_identities.py::test_a_base_that_records_its_identity_is_applied",),
    ),
    Sabotage(
        "stale-identity-recorded",
        "a delta records the root of weights that changed since they were identified",
        "reshard/deltas/compare.py",
        "            if crc != then:\n",
        "            if False:\n",
        ("tests/deltas/test_identities.py::test_bytes_that_changed_since_they_were_identified[0]",),
    ),
    Sabotage(
        "recorded-root-unchecked",
        "the root that a delta records is not compared with that of what was written",
        "reshard/conversion/identity.py",
        "    if known.root is not None and found.root != known.root:\n",
        "    if False:\n",
        ("tests/deltas/test_identities.py::test_a_recorded_root_of_other_weights",),
    ),
    Sabotage(
        "anchor-of-another-version",
        "a full version records the number of its name, whatever the deltas make",
        "reshard/conversion/run.py",
        "        if made is not None and named not in (None, made):\n",
        "        if False:\n",
        (
            "tests/deltas/test_anchors.py::test_a_name_of_another_version_than_the_deltas_make_is_refused",
        ),
    ),
    Sabotage(
        "manifest-of-another-base",
        "dtype and shape in a manifest of SkyRL are not compared with the base",
        "reshard/formats/delta/chain.py",
        "        if listed is not None and (what := _unlike(base.tensors[name], listed)):\n",
        "        if listed is not None and (what := False):\n",
        ("tests/formats/delta/test_skyrl.py::test_files_that_are_not_what_the_manifest_lists",),
    ),
)
