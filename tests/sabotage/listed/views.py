"""Sabotages of views."""

from __future__ import annotations

from tests.sabotage.sabotage import Sabotage

FILES = "tests/views/test_view_files.py"
BLOCKS = "tests/views/test_blocks.py"
TO_HUB = "tests/views/test_to_hub.py"

KEPT = "tests/server/views/test_revisions.py"
READ = "tests/server/views/test_reading.py"

SABOTAGES = (
    Sabotage(
        "view-of-another-version-without-rights",
        "an id answers with an earlier version whose roots the caller may not read",
        "server/reshard_server/views/recorded.py",
        "if one.is_for(caller.may_read):  # each",
        "if True:  # each",
        (f"{KEPT}::test_rights_are_those_for_the_version_that_an_id_is_of",),
    ),
    Sabotage(
        "view-remembered-without-rights",
        "an id that another caller has asked for is answered without a look at the rights",
        "server/reshard_server/views/recorded.py",
        "if known is None or not is_fresh or not known.source.stored.is_for(caller.may_read):",
        "if known is None or not is_fresh:",
        (f"{KEPT}::test_rights_hold_within_a_look_too",),
    ),
    Sabotage(
        "view-of-an-unfinished-step",
        "a step without the mark of a finished one is a revision",
        "server/reshard_server/views/revisions.py",
        'if asked in ("latest", "each", step) and committed_among(folder, [names[step]]):',
        'if asked in ("latest", "each", step):',
        (f"{KEPT}::test_a_step_without_its_mark_is_never_shown",),
    ),
    Sabotage(
        "view-planned-by-each-client",
        "each of several clients plans a view",
        "server/reshard_server/views/opened.py",
        "if commit not in self:",
        "if True:",
        (f"{READ}::test_clients_that_come_together_plan_once",),
    ),
    Sabotage(
        "view-of-a-changed-source",
        "bytes of a file that was written since are handed over",
        "reshard/views/results.py",
        "if file_state(path) != self._known[path]:",
        "if False:",
        (f"{FILES}::test_a_source_that_changes_is_never_mixed",),
    ),
    Sabotage(
        "view-without-digests",
        "a flipped bit of a tensor that is read whole is not noticed",
        "reshard/views/results.py",
        "if place == stop and is_all:",
        "if False:",
        (f"{FILES}::test_wrong_bytes_are_found_before_the_last_is_handed_over",),
    ),
    Sabotage(
        "view-with-invented-digests",
        "a record of digests that nobody computed is among the files",
        "reshard/views/checkpoint_view.py",
        "if len(digests) < len(checkpoint.tensors):",
        "if False:",
        (f"{FILES}::test_files_are_those_of_a_conversion",),
    ),
    Sabotage(
        "view-of-the-wrong-part",
        "a part of a source tensor is read from the tensor's beginning",
        "reshard/views/results.py",
        "return _Result(self._reader, side, piece.source_box.start)",
        "return _Result(self._reader, side, (0,) * len(spec.shape))",
        (f"{FILES}::test_files_are_those_of_a_conversion",),
    ),
    Sabotage(
        "blocks-of-another-file",
        "blocks of two files are one",
        "reshard/views/checkpoint_view.py",
        'f"{self.revision}/{path}"',
        "self.revision",
        (f"{FILES}::test_blocks_of_a_view_tile_its_files",),
    ),
    Sabotage(
        "decoder-at-the-wrong-block",
        "a reader goes on where another block begins",
        "reshard/views/blocks.py",
        "(file.tag, last), decoder, waits=",
        "(file.tag, first), decoder, waits=",
        (f"{BLOCKS}::test_a_file_that_is_cheap_in_order_is_read_on_by_later_requests",),
    ),
    Sabotage(
        "rows-of-other-chunks",
        "a row of chunks is the whole tensor",
        "reshard/views/view_file.py",
        "first, last = first + begin, first + end",
        "del begin, end",
        (f"{FILES}::test_a_row_of_chunks_is_read_once",),
    ),
    Sabotage(
        "slot-used-too-early",
        "memory of a block that is still sent is used again",
        "reshard/views/blocks.py",
        "        finalize(slot, self._free.append, number).atexit = False\n",
        "        self._free.appendleft(number)\n",
        (f"{BLOCKS}::test_memory_is_bounded",),
    ),
    Sabotage(
        "commit-on-another-head",
        "a commit goes on top of one that nobody looked at",
        "reshard/views/to_hub.py",
        '"parent_commit": head',
        '"parent_commit": None',
        (f"{TO_HUB}::test_a_commit_in_between_refuses_this_one",),
    ),
    Sabotage(
        "commit-of-a-changed-source",
        "a source that was written while files were sent is committed",
        "reshard/views/to_hub.py",
        "        view.check_unchanged()\n",
        "",
        (f"{TO_HUB}::test_a_source_that_changes_meanwhile_is_not_committed",),
    ),
    Sabotage(
        "commit-without-the-record",
        "files that hold digests are hashed before these are known",
        "reshard/views/to_hub.py",
        "if f.is_known or f.head != heads[path]",
        "if f.is_known",
        (f"{TO_HUB}::test_the_files_are_those_of_a_conversion_to_a_folder",),
    ),
)
