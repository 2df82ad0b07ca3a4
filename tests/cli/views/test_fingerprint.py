from __future__ import annotations

from reshard.cli.views.verification import fingerprint_view
from reshard.verification.fingerprint import Fingerprint, TensorDigest
from tests.cli.show import lines


def test_what_was_recorded_and_where() -> None:
    found = Fingerprint(
        "a",
        {f"w{i}": TensorDigest(f"w{i}", f"{i:016x}") for i in range(20)},
        3,
        80,
        ("a/slices.json",),
        2.0,
    )
    text = lines(fingerprint_view(found, show_all=False))
    assert text[0].startswith("recorded 20 tensors, 80 B, and 3 other files of a in 2")
    assert "w1 0000000000000001" in text
    assert not any("w19" in line for line in text)
    assert "written: a/slices.json" in text[-1]
    assert any("w19" in line for line in lines(fingerprint_view(found, show_all=True)))
