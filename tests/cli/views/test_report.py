from __future__ import annotations

from msgspec.structs import replace

from reshard.cli.views.report import report_view
from reshard.engine.task import CastStats
from tests.cli.show import lines, show
from tests.cli.specimens import kept_report, report, tensor_report


def test_a_report_at_a_glance() -> None:
    found = report(*(tensor_report(f"p/{i}") for i in range(10)), warnings=("beware",))
    text = lines(report_view(found, show_all=False))
    assert text[:2] == [
        "converted 10 tensors, 5.00 KiB, in 2.0 s (2.50 KiB/s, syncing included) → served",
        "read 2.50 KiB from files (0.50× the tensors' size), moved 5.00 KiB (1.00×), wrote 5.00 KiB (1.00×)",
    ]
    assert "p/0 scatter 512 B 00000000000000aa written" in text
    assert "… and 2 more tensors; --all shows each tensor" in text
    assert text[-2:] == [
        "written: 10 tensors; the decoded bytes and the bytes handed to the storage have equal digests",
        "warning: beware",
    ]
    assert len(lines(report_view(found, show_all=True))) == len(text) + 1


def test_casts_are_listed_worst_first() -> None:
    found = report(
        tensor_report("fine", "bfloat16", CastStats(0, 0, 0.0039)),
        tensor_report("lossy", "float16", CastStats(1200, 3, float("inf"))),
    )
    text = lines(report_view(found, show_all=False))
    rows = [line for line in text if line.startswith(("fine float32", "lossy float32"))]
    assert rows == [
        "lossy float32 → float16 1,200 3 inf",
        "fine float32 → bfloat16 0 0 0.0039",
    ]
    assert "fine scatter 512 B 00000000000000aa 00000000000000bb written" in text
    assert text[-1] == (
        "written: 2 cast tensors; the digest of the bytes handed to the storage is recorded"
    )


def test_nothing_converted_in_no_time() -> None:
    assert lines(report_view(report(), False))[1] == (
        "read 0 B from files (– the tensors' size), moved 0 B (–), wrote 0 B (–)"
    )


def test_what_a_finished_target_records() -> None:
    tensors = [kept_report("kernel"), *(kept_report(f"p/{i}", None) for i in range(9))]
    text = lines(report_view(replace(report(*tensors), already_done=True), show_all=False))
    assert text[0] == "nothing to do: served is the finished result of this conversion"
    assert "kernel – 512 B 00000000000000aa –" in text
    assert "p/0 – 512 B – –" in text
    assert text[-1] == "… and 2 more tensors; --all shows each tensor"


def test_only_names_are_wider_than_80_columns() -> None:
    name = "params/layers/0/attention/query/kernel/" * 3
    text = show(report_view(report(tensor_report(name)), False), 80).splitlines()
    assert [line for line in text if len(line) > 80] == [name]


def test_a_renamed_tensor_has_both_names() -> None:
    cast = tensor_report("model/w", "bfloat16", CastStats(0, 0, 0.0039))
    text = lines(report_view(report(replace(cast, source="params/w")), False))
    assert len([line for line in text if line.startswith("params/w → model/w ")]) == 2
