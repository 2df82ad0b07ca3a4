from __future__ import annotations

from reshard.cli.views.verification import verification_view
from reshard.verification.reports import TensorVerdict, Verification
from tests.cli.show import lines

A, B = "00000000000000aa", "00000000000000bb"
EQUAL = TensorVerdict("p/same", "equal", A, A)


def test_differences_come_first() -> None:
    found = Verification(
        "a",
        "b",
        (
            EQUAL,
            TensorVerdict("p/other", "different", A, B, "the stored bits differ"),
            TensorVerdict("p/gone", "only in A", None, None, "B has no tensor 'p/gone'"),
        ),
    )
    text = lines(verification_view(found, show_all=False))
    assert text[0] == "differences"
    assert "p/other different 00000000000000aa 00000000000000bb" in text
    assert "p/other: the stored bits differ" in text
    assert "p/gone only in A – –" in text
    assert not any("p/same" in line for line in text)
    assert text[-1] == "different: 2 of 3 tensors; A = a against B = b"
    assert any("p/same equal" in line for line in lines(verification_view(found, show_all=True)))


def test_equal_checkpoints_are_one_line() -> None:
    found = Verification("a", "b", (EQUAL, EQUAL))
    assert lines(verification_view(found, False)) == ["equal: 2 of 2 tensors; A = a against B = b"]


def test_a_checkpoint_against_its_record() -> None:
    found = Verification(
        "a",
        None,
        (TensorVerdict("x", "recorded", A, A), TensorVerdict("y", "not recorded", A, None)),
    )
    assert lines(verification_view(found, False)) == [
        "no digest was recorded for 1 tensor: y",
        "as recorded: 1 of 2 tensors; A = a against its own record",
    ]


def test_nothing_recorded_is_no_success() -> None:
    found = Verification("a", None, (TensorVerdict("y", "not recorded", A, None),))
    assert lines(verification_view(found, False))[-1] == (
        "nothing verified: no tensor has a record to compare with; A = a against its own record"
    )
