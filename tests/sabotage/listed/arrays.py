"""Sabotages of what reads and writes live arrays, and of what compares checkpoints."""

from __future__ import annotations

from tests.sabotage.sabotage import Sabotage

SABOTAGES = (
    Sabotage(
        "restored-digest-uncompared",
        "what is restored is not compared with the digest that was recorded",
        "reshard/restoring/tensor_read.py",
        "            check_recorded(spec.name, found, self.digest)\n",
        "            pass\n",
        (
            "tests/restoring/test_restore_errors.py::test_damaged_bytes_are_found_by_the_recorded_digest",
        ),
    ),
    Sabotage(
        "restored-to-another-region",
        "a chunk that two devices share goes to the first of them only",
        "reshard/restoring/tensor_read.py",
        "        for each in self._part.buffers:\n            self._cast",
        "        for each in self._part.buffers[:1]:\n            self._cast",
        ("tests/restoring/test_restore_layout.py::test_every_form_of_layout[prefix of shardings]",),
    ),
    Sabotage(
        "band-to-another-sink",
        "all units of a batch go to the sink of the first",
        "reshard/engine/read_boxes.py",
        "        return [_read_unit(unit, open_sink(unit), sources, arena) for unit in batch.units]",
        "        one = open_sink(batch.units[0])\n"
        "        return [_read_unit(unit, one, sources, arena) for unit in batch.units]",
        ("tests/engine/test_read_digests.py::test_the_digest_is_a_plain_crc_of_the_whole",),
    ),
    Sabotage(
        "unit-not-restored",
        "the parts of a batch but the first are not put into arrays",
        "reshard/engine/read_boxes.py",
        "arena) for unit in batch.units]",
        "arena) for unit in batch.units[:1]]",
        ("tests/restoring/test_restore_layout.py::test_every_form_of_layout[prefix of shardings]",),
    ),
    Sabotage(
        "chunk-not-summed",
        "a digest leaves out the first chunk of each tensor",
        "reshard/engine/read_digests.py",
        "            crc=sum_of_box(found, band, shape),",
        "            crc=sum_of_box(found, band, shape) if any(band.start) else 0,",
        ("tests/engine/test_read_digests.py::test_the_digest_is_a_plain_crc_of_the_whole",),
    ),
    Sabotage(
        "leaf-not-hashed",
        "an identity leaves out the bands but the first of a block",
        "reshard/identity/read_leaves.py",
        "        self._hashing.add(as_hashed(spec.name, found, spec.dtype), band)",
        "        if not self._hashing._done:\n"
        "            self._hashing.add(as_hashed(spec.name, found, spec.dtype), band)",
        ("tests/identity/test_conversions.py::test_small_bands_and_open_hashers_give_the_same",),
    ),
    Sabotage(
        "band-not-compared",
        "a comparison forgets the differences of all bands but the last",
        "reshard/verification/pair_blocks.py",
        "        self._found = self._found + found",
        "        self._found = found",
        ("tests/verification/test_diff.py::test_any_chunks_codecs_and_bands_beside_numpy",),
    ),
    Sabotage(
        "band-not-streamed",
        "a stream of a part begins a band late",
        "reshard/streaming/tensor_stream.py",
        "            cut = piece[max(0, start - place) : stop - place]",
        '            cut = piece[max(0, start - place) : stop - place] if place else b""',
        (
            "tests/streaming/test_tensor_stream.py::test_any_box_of_any_form_with_any_bands_is_what_numpy_cuts_out",
        ),
    ),
    Sabotage(
        "window-not-filled",
        "a delta leaves a band of a window as it was",
        "reshard/engine/read_boxes.py",
        "            stream.fill(out[band.relative_to(side.box.start).slices], band)",
        "            if not any(band.start):\n"
        "                stream.fill(out[band.relative_to(side.box.start).slices], band)",
        ("tests/engine/test_read_boxes.py::test_boxes_of_many_chunks_are_read_side_by_side",),
    ),
    Sabotage(
        "restored-row-off-by-one",
        "a shard of every k-th row begins at the wrong row of a chunk",
        "reshard/restoring/regions.py",
        "    return start + -(-(inside.start[region.axis] - start) // region.step) * region.step",
        "    return start + ((inside.start[region.axis] - start) // region.step) * region.step",
        (
            "tests/restoring/test_regions.py::test_pieces_in_any_order_make_what_numpy_takes",
            "tests/restoring/test_regions.py::test_a_cast_gives_what_numpy_gives",
        ),
    ),
    Sabotage(
        "chunk-saved-twice",
        "every process writes the chunks that several have",
        "reshard/saving/plan.py",
        "            if owner == process:",
        "            if owner == process or process in writers(tensor, box):",
        ("tests/saving/test_chunks.py::test_replicas_share_the_work",),
    ),
    Sabotage(
        "saved-digest-of-one-process",
        "the digest of a saved tensor leaves out what other processes wrote",
        "reshard/saving/run.py",
        "            sums[name] ^= int(value, 16)",
        "            sums[name] = int(value, 16)",
        ("tests/saving/test_process_group.py::test_digests_of_all_processes_are_combined",),
    ),
    Sabotage(
        "saved-before-proof",
        "a save in a bucket publishes although objects were replaced",
        "reshard/saving/run.py",
        "    if found_sum != reduce(xor, put_sums, 0):",
        "    if False:",
        (
            "tests/public/buckets/test_save.py::test_objects_that_somebody_changes_meanwhile_are_missed[s3_bucket-replaced]",
        ),
    ),
    Sabotage(
        "difference-unseen",
        "tensors whose bits differ are reported as equal",
        "reshard/verification/compare.py",
        "    elif digests[0] != digests[1]:",
        "    elif False:",
        ("tests/verification/test_compare.py::test_a_single_bit_is_a_difference",),
    ),
    Sabotage(
        "record-uncompared",
        "stored bits that differ from their record are reported as recorded",
        "reshard/verification/compare.py",
        'status: Status = "recorded" if stored == tensor.digest else "different"',
        'status: Status = "recorded"',
        (
            "tests/verification/test_compare.py::test_bytes_that_changed_since_they_were_recorded_are_a_difference",
        ),
    ),
    Sabotage(
        "copies-uncompared",
        "copies of a slice that differ are not noticed",
        "reshard/engine/read_digests.py",
        "        other = next((extent for extent in others if _crc32c(extent) != expected), None)",
        "        other = None",
        (
            "tests/robustness/sabotage/test_read_back.py::test_one_of_several_copies_is_written_wrongly",
        ),
    ),
    Sabotage(
        "slice-proof-believed",
        "a slice is taken whatever its proof gives",
        "reshard/identity/slice_proof.py",
        "    if found != top:\n",
        '    if found == b"":\n',
        ("tests/identity/test_slice_proofs.py::test_another_proof_fails",),
    ),
    Sabotage(
        "live-node-uncompared",
        "nodes of live arrays are not compared with the identity",
        "reshard/saving/prove_arrays.py",
        "        elif not _is_equal(tensor, tree, level, node, kept):\n",
        "        elif not _is_equal(tensor, tree, level, node, kept) and not kept:\n",
        ("tests/saving/test_prove.py::test_one_flipped_bit_is_found_and_named[rows]",),
    ),
)
