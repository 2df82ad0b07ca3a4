"""Sabotages of what changes a folder of weights in place."""

from __future__ import annotations

from tests.sabotage.sabotage import Sabotage

FOLDER = "reshard/storage/local/in_place.py"
STEPS = "reshard/deltas/in_place/apply_in_place.py"
CUT = "tests/robustness/faults/test_in_place.py::test_after_a_power_cut_the_next_call_ends_it"

SABOTAGES = (
    Sabotage(
        "in-place-before-it-is-decided",
        "bytes are changed while the journal may be lost",
        FOLDER,
        "    partial = where.hidden / PARTIAL_JOURNAL\n    fsync(partial)\n",
        "    partial = where.hidden / PARTIAL_JOURNAL\n",
        (CUT,),
    ),
    Sabotage(
        "in-place-files-not-synced",
        "the change is called done before it is on the device",
        FOLDER,
        "        fsync(where.hidden / name)\n",
        "        _is_there(where.hidden / name)\n",
        (CUT,),
    ),
    Sabotage(
        "in-place-done-again",
        "a change that is done is taken away again, from where it was put back",
        STEPS,
        "            if not where.is_done:\n",
        "            if True:\n",
        (
            "tests/deltas/in_place/test_between_versions.py::test_files_that_are_back_are_not_taken_away_again",
        ),
    ),
    Sabotage(
        "in-place-read-between",
        "readers take a folder between two versions",
        "reshard/formats/registry.py",
        "    if is_between_versions(root):\n        raise",
        "    if not root.path:\n        raise",
        (
            "tests/deltas/in_place/test_between_versions.py::test_no_reader_takes_a_folder_between_two_versions",
        ),
    ),
    Sabotage(
        "in-place-digest-unchecked",
        "a file that something else has changed becomes a part of the new version",
        "reshard/deltas/in_place/redo_changes.py",
        "    if found != tensor.digest:\n",
        "    if not found:\n",
        (
            "tests/deltas/in_place/test_between_versions.py::test_a_file_that_something_changed_meanwhile_is_found_and_can_be_brought_back",
        ),
    ),
    Sabotage(
        "in-place-hard-link",
        "a file is changed that has other names",
        FOLDER,
        "        if status.st_nlink > 1:\n",
        "        if status.st_nlink < 1:\n",
        ("tests/deltas/in_place/test_apply_in_place.py::test_what_is_refused_changes_nothing",),
    ),
)
