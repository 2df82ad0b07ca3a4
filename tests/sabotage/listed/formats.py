"""Sabotages of the formats: what is read of a file, and what is refused."""

from __future__ import annotations

from tests.sabotage.sabotage import Sabotage

SABOTAGES = (
    Sabotage(
        "chunk-crc-unchecked",
        "the CRC32C that is stored with a chunk is not compared",
        "reshard/formats/codecs/source.py",
        "        if stored != self._crc:",
        "        if False:",
        (
            "tests/formats/codecs/test_damaged_chunks.py::test_a_wrong_checksum_names_both_values_and_the_place",
        ),
    ),
    Sabotage(
        "database-crc-unchecked",
        "the checksum of a block of an OCDBT database is not compared",
        "reshard/formats/ocdbt/manifest.py",
        "        self._source.check_trailer()\n",
        "",
        ("tests/formats/ocdbt/test_manifest.py::test_no_flipped_bit_passes",),
    ),
    Sabotage(
        "shard-index-crc-unchecked",
        "the checksum of the index of a zarr 3 shard is not compared",
        "reshard/formats/zarr/values.py",
        "    if found != expected:",
        "    if False:",
        ("tests/formats/orbax/test_damaged_data.py::test_shard_index_is_damaged",),
    ),
    Sabotage(
        "fill-value-ignored",
        "a chunk that is not stored is read as zeros",
        "reshard/formats/codecs/stream.py",
        'np.frombuffer(fill if any(fill) else b"\\0", np.uint8)',
        'np.frombuffer(b"\\0", np.uint8)',
        ("tests/formats/codecs/test_decode.py::test_fill_streams",),
    ),
    Sabotage(
        "fill-value-big-endian",
        "the bytes of a fill value are stored in the wrong order",
        "reshard/formats/zarr/metadata.py",
        "    return element.tobytes()",
        "    return element.tobytes()[::-1]",
        ("tests/formats/zarr/test_metadata.py::test_known_forms",),
    ),
    Sabotage(
        "stored-order-ignored",
        "a chunk whose axes are stored in another order is read as it lies",
        "reshard/formats/codecs/stream.py",
        "            self._elements = stored.reshape(shape).transpose(np.argsort(self._order))",
        "            self._elements = stored.reshape(self._shape)",
        (
            "tests/formats/codecs/test_turned.py::test_elements_are_row_major_in_reads_of_any_length",
        ),
    ),
    Sabotage(
        "piece-order-ignored",
        "a piece whose axes are stored in another order is read as row-major",
        "reshard/formats/codecs/source.py",
        "    for dim in reversed(piece.order or range(len(shape))):",
        "    for dim in reversed(range(len(shape))):",
        (
            "tests/formats/test_loose_pieces.py::test_a_turned_piece_is_read_once_however_little_is_taken_at_a_time",
        ),
    ),
    Sabotage(
        "byte-order-ignored",
        "big-endian elements are read as little-endian",
        "reshard/formats/zarr/metadata.py",
        '    return bool(configuration.get("endian", "little") == "little")',
        "    return True",
        (
            "tests/formats/orbax/test_reader_codecs.py::test_chains_that_are_left_to_tensorstore[zarr3-shard-big-plain]",
        ),
    ),
    Sabotage(
        "overlap-unrefused",
        "a safetensors file whose tensors overlap or leave holes is read",
        "reshard/formats/safetensors/header.py",
        "        if piece.offset != end:",
        "        if False:",
        (
            "tests/formats/safetensors/test_header.py::test_a_file_that_does_not_add_up_is_refused[an overlap]",
        ),
    ),
    Sabotage(
        "header-unsorted",
        "the tensors of a safetensors file are not sorted by alignment and name",
        "reshard/formats/safetensors/write_files.py",
        "tuple(sorted(slices, key=_in_file))",
        "tuple(slices)",
        (
            "tests/formats/safetensors/write/test_file_plan.py::test_tensors_lie_by_the_size_of_their_elements_and_then_by_name",
        ),
    ),
    Sabotage(
        "name-twice-unrefused",
        "of two tensors of one name in a header the last is taken",
        "reshard/formats/safetensors/header.py",
        "    if len(made) < len(pairs):",
        "    if False:",
        ("tests/formats/safetensors/test_header.py::test_a_name_that_is_given_twice_is_refused",),
    ),
    Sabotage(
        "lost-file-unnoticed",
        "a file of a set that says how many they are is gone, and nobody says so",
        "reshard/formats/safetensors/slices.py",
        "    if lost is not None:",
        "    if False:",
        (
            "tests/robustness/hostile/test_safetensors.py::test_lies_about_slices_are_refused[shard-1-shard 0 is missing]",
        ),
    ),
    Sabotage(
        "missing-chunk-unrefused",
        "chunks that are not stored are filled although the checkpoint records that all are",
        "reshard/formats/lacks.py",
        "(asked is None and not reader.tensors[name].may_be_missing)",
        "False",
        (
            "tests/public/convert/test_missing_chunks.py::test_where_every_chunk_should_be_stored_they_are_refused[ocdbt-zarr2]",
        ),
    ),
    Sabotage(
        "encoded-without-crc",
        "a chunk is stored without the checksum that its metadata promise",
        "reshard/formats/codecs/encode.py",
        "    return (encoded, _trailer(encoded)) if encoding.checksum else (encoded,)",
        "    return (encoded,)",
        (
            "tests/formats/codecs/test_encode.py::test_tensorstore_reads_encoded_chunks[f4_array-zarr3-crc]",
        ),
    ),
    Sabotage(
        "pickle-names-unchecked",
        "a pickle whose content is known to its end may name any class or function",
        "reshard/formats/torch/pickle_interpreter.py",
        "    if known is None and m.is_closed:\n",
        "    if False:\n",
        ("tests/formats/torch/test_pickle_interpreter.py::test_a_poisoned_pickle_runs_nothing",),
    ),
    Sabotage(
        "torch-strides-ignored",
        "a tensor of torch whose axes are stored in another order is read as it lies",
        "reshard/formats/torch/saved_values.py",
        "    return (*short, *axes), has_gaps\n",
        "    return (), False\n",
        (
            "tests/formats/torch/test_archived_tensor.py::test_an_order_of_axes_is_what_numpy_makes_of_the_strides",
        ),
    ),
    Sabotage(
        "torch-conj-ignored",
        "the stored bytes of a conjugated or negated view are taken for its values",
        "reshard/formats/torch/saved_values.py",
        "    if marks:\n",
        "    if False:\n",
        ("tests/formats/torch/test_archived_tensor.py::test_what_is_no_plain_tensor_is_refused",),
    ),
    Sabotage(
        "archive-sizes-unchecked",
        "a record of an archive may reach into the next one",
        "reshard/formats/torch/archive.py",
        "            or start + record.nbytes > record.limit\n",
        "",
        (
            "tests/formats/torch/test_archive.py::test_a_size_that_only_the_directory_tells_must_fit",
        ),
    ),
    Sabotage(
        "archive-crc-unchecked",
        "a record that several tensors share is not compared with its CRC-32",
        "reshard/engine/recorded_ranges.py",
        "is_right=found == one.range.value",
        "is_right=True",
        ("tests/formats/state_dict/test_state.py::test_verify_names_the_tensors_and_the_file",),
    ),
    Sabotage(
        "archive-crcs-not-summed",
        "the CRC-32s of pieces are not compared while they are read",
        "reshard/formats/torch/archive.py",
        "        return PieceCrcs.of(boxes, self.values, self.itemsize, CRC32)",
        "        return None",
        ("tests/formats/dcp/test_crcs.py::test_convert_and_restore_check_it_while_they_read",),
    ),
    Sabotage(
        "storage-offset-ignored",
        "a tensor within a larger storage is read from its beginning",
        "reshard/formats/state_dict/reader.py",
        "    offset = value.start + tensor.offset\n",
        "    offset = value.start\n",
        ("tests/formats/state_dict/test_state.py::test_tensors_of_one_storage",),
    ),
    Sabotage(
        "state-index-ignored",
        "a tensor is read from a file although the index names another",
        "reshard/formats/state_dict/reader.py",
        "listed == state.file.name",
        "True",
        ("tests/formats/state_dict/test_files.py::test_an_index_decides",),
    ),
)
