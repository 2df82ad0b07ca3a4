"""Sabotages of the way of a conversion: its record of what is done, what a later run takes, and the proof at the end."""

from __future__ import annotations

from tests.sabotage.sabotage import Sabotage

SABOTAGES = (
    Sabotage(
        "journal-line-unverified",
        "a line of the journal is taken although its checksum is wrong",
        "reshard/storage/checked_lines.py",
        '    whole = line.endswith(b"\\n") and line[:_CRC_BYTES] == b"%08x " % zlib.crc32(data)',
        '    whole = line.endswith(b"\\n")',
        (
            "tests/robustness/crash/test_journal.py::test_a_flipped_byte_anywhere_in_a_line_drops_the_line",
        ),
    ),
    Sabotage(
        "journal-record-unchecked",
        "numbers of a journal are taken as they are, out of the plan or below 0",
        "reshard/engine/journal.py",
        "        if not all(_is_planned(result, plan.tensors) for result in results):",
        "        if False:",
        (
            "tests/robustness/crash/test_journal.py::test_a_task_with_a_number_that_none_has_is_not_taken",
        ),
    ),
    Sabotage(
        "recorded-before-closed",
        "tasks are recorded before the chunks that they complete have their checksums",
        "reshard/engine/run.py",
        "        for one in done:\n"
        "            for stored in target.books.add(one):\n"
        "                writeback.begin(stored.path, stored.length, stored.offset)\n"
        "        if target.record is not None and done:\n"
        "            target.record(done)\n",
        "        if target.record is not None and done:\n"
        "            target.record(done)\n"
        "        for one in done:\n"
        "            for stored in target.books.add(one):\n"
        "                writeback.begin(stored.path, stored.length, stored.offset)\n",
        ("tests/engine/test_run.py::test_chunks_are_closed_before_their_tasks_are_recorded",),
    ),
    Sabotage(
        "lost-chunk-resumed",
        "a resumed run counts on a chunk whose file is gone or short",
        "reshard/conversion/resumed.py",
        "if not all(_is_there(c, place, root.path, is_stored) for place in c.places)",
        "if False",
        ("tests/robustness/crash/test_trusted_chunks.py::test_removed_chunks_are_written_again",),
    ),
    Sabotage(
        "changed-chunk-resumed",
        "a resumed run does not read a chunk that changed after it was recorded",
        "reshard/conversion/resumed.py",
        "any(_changed_ns(p) > recorded_ns for p in paths)",
        "False",
        (
            "tests/robustness/crash/test_trusted_chunks.py::test_a_chunk_that_changed_between_the_runs_is_made_again[scatter]",
        ),
    ),
    Sabotage(
        "damaged-chunk-resumed",
        "after a reboot a chunk is trusted without its checksum",
        "reshard/conversion/resumed.py",
        "    return is_ended and recorded.crc32c in (None, crc32c)",
        "    return True",
        (
            "tests/robustness/crash/test_trusted_chunks.py::test_after_a_reboot_only_chunks_that_read_back_are_kept[scatter-zeros]",
        ),
    ),
    Sabotage(
        "reboot-unnoticed",
        "a journal of before a reboot is trusted as one of this boot",
        "reshard/storage/local/transaction.py",
        "(header.host, header.boot) == (host_name(), boot_id())",
        "header.host == host_name()",
        (
            "tests/robustness/crash/test_trusted_chunks.py::test_after_a_reboot_only_chunks_that_read_back_are_kept[weave-empty]",
        ),
    ),
    Sabotage(
        "other-conversion-resumed",
        "what another conversion left at the target is resumed",
        "reshard/conversion/resumed.py",
        "    if different := differences(before, now):",
        "    if (different := differences(before, now)) and False:",
        (
            "tests/robustness/crash/test_changed_conversion.py::test_changed_options_are_refused_by_name[chunk_bytes was 256 MiB and is 32768 bytes]",
        ),
    ),
    Sabotage(
        "half-written-file-kept",
        "files that no record names stay in the target",
        "reshard/conversion/resumed.py",
        "        if file not in named and not target.output.files.keeps(file):",
        "        if False:",
        (
            "tests/robustness/crash/test_trusted_chunks.py::test_files_that_the_journal_does_not_name_are_removed",
        ),
    ),
    Sabotage(
        "source-change-unnoticed",
        "a source that changed while it was read is published",
        "reshard/conversion/prove.py",
        "    if source_state(locate(planned.key.source), plan.chosen.computed) != planned.key.files:\n",
        "    if False:\n",
        (
            "tests/robustness/crash/test_changed_conversion.py::test_a_source_that_changed_while_it_was_read[touched]",
        ),
    ),
    Sabotage(
        "recorded-digest-uncompared",
        "what was read is not compared with the digest that the source recorded",
        "reshard/conversion/prove.py",
        "        if recorded and recorded != digest:",
        "        if False:",
        ("tests/conversion/test_proof.py::test_a_source_that_changed_since",),
    ),
    Sabotage(
        "stored-chunks-unchecked",
        "a chunk that was written and is gone is not noticed before publishing",
        "reshard/conversion/prove.py",
        "        check_stored(target)\n",
        "        pass\n",
        (
            "tests/robustness/crash/test_trusted_chunks.py::test_nothing_is_published_when_a_chunk_has_vanished",
        ),
    ),
    Sabotage(
        "read-back-uncompared",
        "readback reads everything and compares nothing",
        "reshard/conversion/prove.py",
        "    if found.get(name) != expected:",
        "    if False:",
        ("tests/robustness/sabotage/test_read_back.py::test_a_chunk_is_encoded_wrongly",),
    ),
    Sabotage(
        "damaged-target-taken-for-done",
        "a finished target that lost a chunk is reported as done",
        "reshard/conversion/open_target.py",
        "        check_complete(reader)\n",
        "        pass\n",
        (
            "tests/robustness/crash/test_already_done.py::test_a_finished_target_that_lost_bytes_is_reported_as_damaged[zstd-None]",
        ),
    ),
    Sabotage(
        "other-units-committed",
        "a part that records units of another part is committed",
        "reshard/conversion/parts/commit.py",
        "        if seen.has(result.tensor, result.unit):",
        "        if False:",
        (
            "tests/public/parts/test_commit.py::test_a_part_that_records_units_of_another_is_not_committed",
        ),
    ),
    Sabotage(
        "unsealed-part-committed",
        "a part that did not say that it is durable is committed",
        "reshard/conversion/parts/commit.py",
        "        seal = _seal_of(parts[part], part) if part in parts else None",
        "        seal = {} if part in parts else None",
        (
            "tests/public/parts/test_commit.py::test_a_part_that_does_not_say_that_it_is_durable_is_not_committed",
        ),
    ),
    Sabotage(
        "codes-without-scales",
        "codes of quantised weights are cast as if they were numbers",
        "reshard/planning/keep_pairs.py",
        "    if casts:",
        "    if False:",
        (
            "tests/planning/test_keep_pairs.py::test_exceptions_take_as_much_of_a_name_as_tells_it_apart",
        ),
    ),
    Sabotage(
        "half-a-block",
        "slices may end inside a block of quantised weights",
        "reshard/planning/keep_pairs.py",
        "        inside = next((cut for cut in inner if cut % grain), None)",
        "        inside = None",
        ("tests/planning/test_keep_pairs.py::test_cuts_inside_a_block",),
    ),
    Sabotage(
        "parts-not-stopped",
        "after an error the other parts go on, and the run waits for all of them",
        "reshard/conversion/parts/on_executor.py",
        "            stop_parts(each.place, each.target.state)",
        "            pass",
        (
            "tests/public/parts/test_on_executors.py::test_after_an_error_the_others_end_before_they_plan",
        ),
    ),
    Sabotage(
        "parts-cancelled-first",
        "a run that is stopped calls parts cancelled that are at work, and ends before they do",
        "reshard/conversion/parts/on_executor.py",
        "    until = time.monotonic() + STOP_S\n",
        "    until = time.monotonic() + STOP_S\n    for future in running:\n        future.cancel()\n",
        ("tests/executors/test_dask.py::test_a_run_that_is_stopped_waits_for_its_parts",),
    ),
)
