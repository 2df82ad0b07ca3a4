"""Documents that say the same have one text, and others another."""

from __future__ import annotations

from reshard_server.db.documents import canonical_text


def test_keys_in_any_order_say_the_same() -> None:
    one = {"layout": {"mesh": {"axes": ["a"], "shape": [2]}, "rules": [{"match": "x", "axes": []}]}}
    other = {
        "layout": {"rules": [{"axes": [], "match": "x"}], "mesh": {"shape": [2], "axes": ["a"]}}
    }
    assert canonical_text(one) == canonical_text(other)
    assert canonical_text({"a": 1}) != canonical_text({"a": True})


def test_the_order_of_a_meshs_axes_counts() -> None:
    one, other = {"mesh": {"data": 4, "model": 2}}, {"mesh": {"model": 2, "data": 4}}
    assert canonical_text(one) != canonical_text(other)
    assert canonical_text({"targets": [{"layout": one}]}) != canonical_text(
        {"targets": [{"layout": other}]}
    )
    assert canonical_text(one) == canonical_text({"mesh": dict(one["mesh"])})
