from __future__ import annotations

from reshard.cli.views.diff import diff_view
from reshard.verification.reports import DiffReport, LeafDiff, TensorDiff
from tests.cli.show import lines, show


def changed(name: str, elements: int = 5, relative: float = 0.5, **more: object) -> TensorDiff:
    known = {
        "shape_a": (10, 10), "shape_b": (10, 10), "dtype_a": "float32", "dtype_b": "float32", "compared_as": "float64",
        "elements": elements, "nonfinite": 0, "largest": 0.25, "index": (3, 7), "relative": relative,
    }  # fmt: skip
    return TensorDiff(name, "different", **(known | more))


EQUAL = TensorDiff("p/same", "equal", (2,), (2,), "int8", "int8", "", "integers", 0)


def report(*tensors: TensorDiff, leaves: tuple[LeafDiff, ...] = ()) -> DiffReport:
    return DiffReport(
        "ckpt/a", "ckpt/b", {t.name: t for t in tensors}, {x.name: x for x in leaves}, 2.0
    )


def test_equal_checkpoints() -> None:
    leaf = LeafDiff("note", "equal", "None", "None")
    assert lines(diff_view(report(EQUAL, leaves=(leaf,)), False)) == [
        "equal: 1 tensor and 1 other leaf, bit for bit, in 2.0 s",
        "A = ckpt/a",
        "B = ckpt/b",
    ]


def test_the_largest_relative_change_comes_first_and_layers_are_one_row() -> None:
    layers = [changed(f"layers/{i}/w", 30 + i, 0.1 * i, largest=float(i)) for i in range(3)]
    found = report(EQUAL, *layers, changed("bias", 100, 7.0), changed("head", 1, 0.01))
    text = lines(diff_view(found, False))
    assert text[0] == "tensor n differ share largest relative"
    assert text[2:5] == [
        "bias 1 100 100% 0.25 7",
        "layers/{0…2}/w 3 93 31% 2 0.2",
        "head 1 1 1% 0.25 0.01",
    ]
    assert text[5] == "different: 5 of 6 tensors, in 2.0 s"
    one_each = lines(diff_view(found, True))
    assert one_each[0] == "tensor at differ share largest relative"
    assert one_each[2:4] == ["bias [3,7] 100 100% 0.25 7", "layers/2/w [3,7] 32 32% 2 0.2"]


def test_what_is_not_compared_and_other_leaves() -> None:
    found = report(
        TensorDiff("w", "different", (2,), (3,), "int8", "int8", "shape [2] in A, [3] in B"),
        TensorDiff("a/0", "only in A", (2, 3), None, "int8"),
        TensorDiff("a/1", "only in A", (2, 3), None, "int8"),
        leaves=(LeafDiff("note", "different", repr("x" * 99), "None"), LeafDiff("y", "only in B", None, "Dict")),
    )  # fmt: skip
    text = lines(diff_view(found, False))
    assert "w 1 shape [2] in A, [3] in B" in text
    assert "a/{0,1} 2 only in A (int8 2×3)" in text
    assert f"note '{'x' * 22}… None" in text
    assert "y – Dict" in text
    assert "different: 3 of 3 tensors and 2 of 2 other leaves, in 2.0 s" in text


def test_dtypes_nan_and_keys_are_listed_below_the_table() -> None:
    found = report(
        changed("half", 0, 0.0, dtype_b="bfloat16", largest=None),
        changed("halves", 1, 0.0, dtype_b="bfloat16"),
        changed("lost", 4, 0.0, nonfinite=4, largest=None),
        changed("key", 2, compared_as="bits", relative=None, largest=None),
    )
    text = lines(diff_view(found, False))
    assert "dtype float32 → bfloat16: 2 tensors (half, …), compared by value" in text
    assert (
        "NaN or infinite: 4 of the elements that differ, in lost; left out of largest and relative"
        in text
    )
    assert "PRNG keys: key, compared by their bits only" in text
    assert "lost 1 4 4% – 0" in text
    assert "key 1 2 2% – –" in text
    assert "half 1 0 0% – 0" in text


def test_a_share_is_100_percent_only_where_all_differ() -> None:
    large = changed("w", 10**9 - 1, shape_a=(10**9,))
    few = changed("v", 1, shape_a=(10**9,))
    text = lines(diff_view(report(large, few), False))
    assert "w 1 999,999,999 99.99% 0.25 0.5" in text
    assert "v 1 1 1e-07% 0.25 0.5" in text


def test_names_steer_no_terminal_and_rows_fit_80_columns() -> None:
    names = ["decoder/layers/0/self_attention/query/kernel", "opt_state/0/mu/\x1b[2J"]
    found = report(
        *(changed(n, 12_345_678, shape_a=(5000, 5000), largest=1.23456e-05) for n in names)
    )
    text = show(diff_view(found, False), 80)
    assert "\x1b" not in text
    rows = [line for line in text.splitlines() if "12,345,678" in line]
    assert len(rows) == 2
    assert all(len(line) <= 80 for line in text.splitlines())
