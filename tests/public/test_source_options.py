"""Options of the source of a call, such as dequantize, on every road: conversions, parts, records, questions and commands."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import reshard
from reshard.arguments import adapter_of
from reshard.cli.app import run
from reshard.formats.safetensors.model_folder import beside
from reshard.storage.location import locate
from tests.peft_files import adapter_in

BF16 = ml_dtypes.bfloat16
CODES = (
    (np.arange(256 * 128) % 120).astype(np.uint8).view(ml_dtypes.float8_e4m3fn).reshape(256, 128)
)
# Powers of two keep every weight; other scales may not.
SCALES = {
    "up": np.full((2, 1), 0.5, ml_dtypes.float8_e8m0fnu),
    "down": np.full((2, 1), 0.6, np.float32),
}
CONFIG = {
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "text_config": {"hidden_size": 128, "quantization_config": {"quant_method": "fp8"}},
}
WEIGHTS = {
    "norm": np.arange(4, dtype=BF16),
    **{
        f"{n}.weight": (CODES.astype(np.float32) * s[0].astype(np.float32)).astype(BF16)
        for n, s in SCALES.items()
    },
}
RECORD = "slices.json"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of Hugging Face with two fp8 weights."""
    folder = tmp_path_factory.mktemp("models") / "fp8"
    folder.mkdir()
    tensors: dict[str, Any] = {"norm": WEIGHTS["norm"]}
    for name, scale in SCALES.items():
        tensors |= {f"{name}.weight": CODES, f"{name}.weight_scale_inv": scale}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "hf_quant_config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def made(source: Path) -> tuple[reshard.ConversionReport, Path]:
    """The report of a conversion of it, and the target."""
    target = source.parent / "bf16"
    return reshard.convert(source, target, dequantize="bfloat16", carry=True), target


def same(found: Any) -> None:
    assert found.keys() == WEIGHTS.keys()
    for name, weight in WEIGHTS.items():
        assert (found[name].dtype, found[name].tobytes()) == (weight.dtype, weight.tobytes()), name


def test_the_target_has_weights_and_its_files_say_nothing_of_codes(
    made: tuple[reshard.ConversionReport, Path],
) -> None:
    report, target = made
    same(load_file(target / "model.safetensors"))
    assert {t.target: t.dequantized for t in report.tensors} == {
        "norm": None, "up.weight": "exact", "down.weight": "rounded"
    }  # fmt: skip
    assert not (target / "hf_quant_config.json").exists()
    assert (target / "tokenizer.json").read_text() == "{}"
    assert json.loads((target / "config.json").read_text()) == {
        "torch_dtype": "bfloat16", "text_config": {"hidden_size": 128}
    }  # fmt: skip


def test_a_config_that_is_named_is_edited_too_and_one_without_codes_stays_as_it_is(
    source: Path, tmp_path: Path
) -> None:
    reshard.convert(source, tmp_path / "a", dequantize="bfloat16", config=source)
    assert "quantization_config" not in (tmp_path / "a" / "config.json").read_text()
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "config.json").write_text('{ "torch_dtype":"bfloat16" }')
    reshard.convert(source, tmp_path / "b", dequantize="bfloat16", config=plain)
    assert (tmp_path / "b" / "config.json").read_text() == '{ "torch_dtype":"bfloat16" }'
    reshard.convert(source, tmp_path / "c", carry=True)
    assert json.loads((tmp_path / "c" / "config.json").read_text()) == CONFIG


def test_codes_like_those_of_another_checkpoint_are_told_as_its_config_tells_them(
    source: Path,
) -> None:
    told = beside(locate(str(source))).saying({"quant_method": "other"})
    assert json.loads(told.edited["config.json"]) == {
        "torch_dtype": "bfloat16", "text_config": {"hidden_size": 128}, "quantization_config": {"quant_method": "other"}
    }  # fmt: skip


def test_verify_computes_what_the_target_records(
    source: Path, made: tuple[reshard.ConversionReport, Path]
) -> None:
    target = made[1]
    assert '"computed": {"dequantize": "bfloat16"}' in (target / RECORD).read_text()
    for given in ({}, {"dequantize": "bfloat16"}):
        found = reshard.verify(source, target, **given)
        assert (found.differences, len(found.tensors)) == (0, 3)
    assert reshard.verify(source, target, dequantize="float32").differences == 2
    assert reshard.diff(source, target, dequantize="bfloat16").differences == 0
    # A copy of the target was not made of the codes, but of the same weights.
    assert reshard.verify(target, target).differences == 0


def test_verify_leaves_alone_a_checkpoint_that_cannot_be_computed_as_recorded(
    made: tuple[reshard.ConversionReport, Path], tmp_path: Path
) -> None:
    save_file({**WEIGHTS, "norm": WEIGHTS["norm"] + BF16(1)}, tmp_path / "m.safetensors")
    found = reshard.verify(tmp_path / "m.safetensors", made[1])
    assert (found.differences, len(found.tensors)) == (1, 3)


def test_calls_that_read_see_the_weights(source: Path) -> None:
    same(reshard.restore(source, dequantize="bfloat16"))
    same(reshard.open_checkpoint(source, dequantize="bfloat16").restore())
    said = "fp8, blocks of 128×128: 2 weights, 64.0 KiB → 128 KiB as bfloat16: 1 exact, 1 rounded"
    info = reshard.inspect(source, dequantize="bfloat16")
    assert (info.quantized, info.tensors.keys()) == (said, WEIGHTS.keys())
    assert reshard.plan(source, dequantize="bfloat16").quantized == said
    assert "with scales" in reshard.inspect(source).quantized


def test_parts_that_other_processes_join_know_the_options(source: Path, tmp_path: Path) -> None:
    targets = [reshard.Target(tmp_path / "a"), reshard.Target(tmp_path / "b", to="orbax")]
    reshard.begin_parts(source, targets, 2, dequantize="bfloat16")
    for part in ("1/2", "2/2"):
        reshard.join_part(tmp_path / "b", part)
    reports = reshard.commit_all(tmp_path / "a").reports
    assert [one.tensors[1].dequantized for one in reports] == ["rounded", "rounded"]
    for target in targets:
        same(reshard.restore(target.target))
        assert reshard.verify(source, target.target).differences == 0
    with ThreadPoolExecutor(2) as executor:
        out = tmp_path / "c"
        reshard.convert(source, out, dequantize="bfloat16", executor=executor, parts=2)
    same(reshard.restore(out))


def test_another_dtype_is_another_conversion(source: Path, tmp_path: Path) -> None:
    reshard.convert_part(source, tmp_path / "a", part="1/2", dequantize="bfloat16")
    with pytest.raises(reshard.ResumeError, match="dequantize was bfloat16 and is float32"):
        reshard.convert_part(source, tmp_path / "a", part="2/2", dequantize="float32")


def test_commands_take_them(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*words: str, code: int = 0) -> str:
        assert run([*words]) == code
        return " ".join("".join(capsys.readouterr()).split())

    src, out, how = str(source), str(tmp_path / "out"), ("--dequantize", "bfloat16")
    assert "128 KiB as bfloat16: 1 exact, 1 rounded" in told("plan", src, *how)
    assert "128 KiB as bfloat16: 1 exact, 1 rounded" in told("inspect", src, *how)
    made = told("convert", src, out, *how)
    assert f"converting {src} → {out}: dequantize bfloat16, layout as in the source" in made
    assert "2 weights dequantised: 1 exact, 1 rounded" in made
    for words in (("verify", src, out), ("verify", src, out, *how), ("diff", src, out, *how)):
        told(*words)
    refused = told("convert", out, str(tmp_path / "again"), *how, code=1)
    assert "has no quantised weights" in refused and "(--dequantize)" in refused


def test_deltas_come_before_dequantize(source: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    new.mkdir()
    tensors = reshard.restore(source)
    tensors["up.weight"] = np.ascontiguousarray(np.flip(tensors["up.weight"]))
    save_file(tensors, new / "model.safetensors")
    delta = tmp_path / "weight_v000001"
    reshard.delta(source, new, delta, base_version=0)
    reshard.apply(source, [delta], tmp_path / "out", dequantize="bfloat16")
    assert reshard.verify(new, tmp_path / "out").differences == 0
    assert reshard.verify(source, tmp_path / "out", deltas=[delta]).differences == 0


def test_adapters_come_after_dequantize_and_are_found_again_by_the_record(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter, out = adapter_in(tmp_path / "adapter", CODES.shape), tmp_path / "out"
    monkeypatch.chdir(tmp_path)
    targets = [reshard.Target(out)]
    reshard.begin_parts(source, targets, 1, dequantize="bfloat16", lora=["adapter=0.5"])
    monkeypatch.chdir("/")
    reshard.join_part(out, "1/1")
    made = {tensor.target: tensor.dequantized for tensor in reshard.commit(out).tensors}
    assert made["up.weight"] == "rounded"
    rows = reshard.restore(out)["up.weight"].astype(np.float32)
    before = WEIGHTS["up.weight"].astype(np.float32)
    assert (rows[1:] == before[1:]).all()
    assert (rows[0] == (before[0] + 1).astype(BF16).astype(np.float32)).all()
    alone = reshard.verify(source, out)
    assert alone.differences
    assert (
        f"'{out}' records that it was made with dequantize, lora; give the same here, to compare with that (dequantize, lora)"
        in alone.warnings
    )
    assert reshard.diff(source, out, dequantize="bfloat16").differences == 1
    both: Any = {"dequantize": "bfloat16", "lora": [f"{adapter}=0.5"]}
    assert reshard.diff(source, out, **both).differences == 0
    assert reshard.verify(source, out, **both).differences == 0


@pytest.mark.parametrize(
    ("text", "found"),
    [("a", ("a", None)), ("a=0.5", ("a", 0.5)), ("r=8=-2", ("r=8", -2)), ("a=b", ("a=b", None))],
)
def test_the_scale_of_an_adapter(text: str, found: tuple[str, str]) -> None:
    assert adapter_of(text) == found


def test_a_dtype_that_weights_do_not_have(source: Path) -> None:
    with pytest.raises(reshard.PlanError) as caught:
        reshard.plan(source, dequantize="float8")  # type: ignore[arg-type]
    assert str(caught.value) == "dequantize is 'float8'; expected one of 'bfloat16', 'float32'"
