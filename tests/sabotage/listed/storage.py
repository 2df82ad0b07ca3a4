"""Sabotages of the storage: what makes a target durable, whole at once, and written by one run only."""

from __future__ import annotations

from tests.sabotage.sabotage import Sabotage

SABOTAGES = (
    Sabotage(
        "lock-not-taken",
        "two processes write to one target",
        "reshard/storage/local/staging.py",
        "            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "",
        ("tests/storage/local/test_staging.py::test_a_live_process_is_named_and_left_alone",),
    ),
    Sabotage(
        "tree-not-synced",
        "a target is published before its files are durable",
        "reshard/storage/local/publishing.py",
        "    sync_tree(staging.root)\n",
        "",
        ("tests/storage/local/test_syncing.py::test_order_of_syncing[False]",),
    ),
    Sabotage(
        "name-not-synced",
        "the name of a published target may be lost in a power failure",
        "reshard/storage/local/publishing.py",
        "    finish_published(staging)\n",
        "",
        ("tests/storage/local/test_syncing.py::test_order_of_syncing[False]",),
    ),
    Sabotage(
        "folders-not-synced",
        "the files of a target are durable, but their names are not",
        "reshard/storage/local/syncing.py",
        "    for path in (*files, *folders):",
        "    for path in files:",
        ("tests/storage/local/test_syncing.py::test_order_of_syncing[False]",),
    ),
    Sabotage(
        "published-over-another",
        "publishing replaces a target that appeared meanwhile",
        "reshard/storage/local/publishing.py",
        "        _rename(staging.published, staging.target, _RENAME_NOREPLACE)",
        "        _rename(staging.published, staging.target, _RENAME_EXCHANGE if staging.target.exists() else 0)",
        (
            "tests/storage/local/test_publishing.py::test_a_target_that_appears_during_the_run_is_not_replaced[folder]",
        ),
    ),
    Sabotage(
        "replaced-stage-published",
        "a staging folder that somebody put in the place of the run's own is published",
        "reshard/storage/local/publishing.py",
        "    _refuse_replaced(staging)\n    with",
        "    with",
        (
            "tests/storage/local/test_publishing.py::test_a_staging_folder_that_was_replaced_is_not_published",
        ),
    ),
    Sabotage(
        "old-journal-not-removed",
        "the journal of an earlier run is left while its files are removed",
        "reshard/storage/local/staging.py",
        "            _remove(staging.journal)\n            fsync(staging.folder)",
        "            pass",
        ("tests/storage/local/test_staging.py::test_an_emptied_folder_has_lost_its_journal_first",),
    ),
    Sabotage(
        "dead-part-writes-on",
        "a run that lost its part to another one still makes files of it",
        "reshard/conversion/parts/part.py",
        "    name = secrets.token_hex(8)",
        '    name = "run"',
        (
            "tests/public/parts/test_taken_over.py::test_one_that_goes_on_after_the_other_is_done[chunks]",
        ),
    ),
    Sabotage(
        "dead-part-removes",
        "a run that lost its part to another one removes that one's journal and lock",
        "reshard/storage/local/transaction.py",
        "        if not self._is_begun or self._root.is_dir():",
        "        if True:",
        (
            "tests/public/parts/test_taken_over.py::test_a_run_that_lost_its_root_removes_nothing_of_the_other",
        ),
    ),
    Sabotage(
        "live-stage-cleaned",
        "cleaning removes what a live run writes",
        "reshard/storage/leftovers.py",
        "    with lock_target(place, unsafe=True, state=state) as transaction:",
        "    if is_local(place):\n        import shutil\n\n        shutil.rmtree(staging_for(Path(place.path)).folder, ignore_errors=True)\n    with lock_target(place, unsafe=True, state=state) as transaction:",
        ("tests/public/buckets/test_clean.py::test_what_a_run_writes_on_a_disk_is_refused",),
    ),
    Sabotage(
        "marker-before-proof",
        "in a bucket the commit marker is put before all objects are looked for",
        "reshard/storage/buckets/transaction.py",
        '        put = {f"{self._target.path}/{name}": self._put_mark(name) for name in others}\n',
        '        put = {f"{self._target.path}/{name}": self._put_mark(name) for name in (*others, *markers)}\n',
        (
            "tests/robustness/buckets/test_changed_objects.py::test_an_object_that_changes_after_everything_was_put_and_proven[s3_bucket-replaced]",
        ),
    ),
    Sabotage(
        "marker-of-others-believed",
        "a commit marker that somebody else put is not refused",
        "reshard/storage/buckets/transaction.py",
        "        self.check()\n        self._refuse_marked()\n        self._lease.renew()",
        "        self.check()\n        self._lease.renew()",
        (
            "tests/storage/buckets/target/test_transaction.py::test_a_marker_that_somebody_else_put_is_refused[s3_bucket]",
        ),
    ),
    Sabotage(
        "lease-unchecked",
        "a run that lost its lease deletes and records on",
        "reshard/storage/buckets/transaction.py",
        "    def check(self) -> None:\n        self._lease.check()\n",
        "    def check(self) -> None:\n",
        ("tests/storage/buckets/target/test_lost_target.py::test_it_removes_nothing[s3_bucket]",),
    ),
    Sabotage(
        "live-lease-taken",
        "a run takes the lease of one that lives",
        "reshard/storage/buckets/lease.py",
        '        if now_s() >= until or process_state(record.mark) == "gone":',
        "        if True:",
        (
            "tests/storage/buckets/target/test_lease.py::test_a_lease_that_is_renewed_meanwhile_is_not_taken[s3_bucket]",
        ),
    ),
    Sabotage(
        "put-new-without-condition",
        "an object is put in the place of one that is there",
        "reshard/storage/buckets/objects.py",
        'return _put(store, path, data, "create", attributes)',
        'return _put(store, path, data, "overwrite", attributes)',
        ("tests/storage/buckets/test_objects.py::test_only_where_nothing_is[s3_bucket]",),
    ),
    Sabotage(
        "replaced-without-condition",
        "an object is replaced whatever version is there",
        "reshard/storage/buckets/objects.py",
        "return _put(store, path, data, _in_place_of(known), attributes)",
        'return _put(store, path, data, "overwrite", attributes)',
        (
            "tests/storage/buckets/test_objects.py::test_only_the_version_that_was_named_is_replaced[s3_bucket]",
        ),
    ),
    Sabotage(
        "parts-swapped",
        "two pieces of a file that is uploaded in parts change places",
        "reshard/storage/target.py",
        "        while (piece := self._pieces.get()) is not None:\n            yield memoryview(piece)\n",
        "        given = list(iter(self._pieces.get, None))\n"
        "        yield from map(memoryview, [*given[1::-1], *given[2:]])\n",
        ("tests/engine/write/test_uploads.py::test_a_file_of_many_pieces_has_them_in_order",),
    ),
    Sabotage(
        "upload-out-of-order",
        "a chunk that is not the next of its file is uploaded all the same",
        "reshard/engine/output.py",
        "        if upload.done_bytes != place.start:",
        "        if False:",
        (
            "tests/engine/write/test_uploads.py::test_a_chunk_that_is_not_the_next_of_its_file_is_refused",
        ),
    ),
    Sabotage(
        "upload-unproved",
        "what Google Cloud received is not compared with what was sent",
        "reshard/storage/buckets/objects.py",
        "    if _is_read_back(store) and not is_received_in_parts(store, path, version, sent):",
        "    if False:",
        (
            "tests/robustness/buckets/test_flips.py::test_parts_that_change_on_the_way_are_refused[gcs_bucket-put_part]",
        ),
    ),
    Sabotage(
        "put-unproved-in-bucket",
        "objects that are gone or were replaced are not noticed before the marker",
        "reshard/conversion/prove.py",
        "    for number, index in sorted(missing):",
        "    for number, index in ():",
        (
            "tests/robustness/buckets/test_changed_objects.py::test_an_object_that_changes_after_everything_was_put_and_proven[s3_bucket-replaced]",
        ),
    ),
    Sabotage(
        "hub-commit-unchecked",
        "bytes of another commit or content of the hub are taken",
        "reshard/storage/hub/store.py",
        '            if told["x-repo-commit"] != self._file.revision or not is_same:',
        "            if False:",
        ("tests/storage/hub/test_faults.py::test_another_content_is_never_mixed",),
    ),
    Sabotage(
        "hub-body-from-the-start",
        "a body that broke off is asked for from its start, and put behind what is there",
        "reshard/storage/hub/store.py",
        'f"bytes={offset + done}-{end - 1}", "accept',
        'f"bytes={offset}-{end - 1}", "accept',
        ("tests/storage/hub/test_faults.py::test_a_body_that_breaks_off_is_read_on_from_there",),
    ),
    Sabotage(
        "hub-token-for-everybody",
        "the token goes to each server that the hub names",
        "reshard/storage/hub/client.py",
        "            if url.startswith(hub) and (token",
        "            if (token",
        (
            "tests/storage/hub/test_store.py::test_another_server_gets_no_token_and_is_asked_at_once",
        ),
    ),
    Sabotage(
        "hub-path-unpinned",
        "what a call returns names the branch, and not the commit that was read",
        "reshard/formats/registry.py",
        "str(root) if is_in_hub(path) else path, root",
        "path, root",
        ("tests/public/hub/test_read.py::test_every_form_is_read_as_from_a_disk",),
    ),
)
