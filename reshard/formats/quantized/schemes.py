"""Schemes: the ways in which programs name codes and the tensors that say what they mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from reshard.layout.tensor_spec import TensorSpec


class NamingScheme(Struct, frozen=True):
    """A way to name codes and companions.

    Attributes:
        ending: of the names of codes; the stem is before it.
        dtypes: the prefixes of the dtypes of codes.
        companions: roles by the endings of the names of companions, behind the stem. One of role "scale" must be there.
        title: in words; "" for one that follows from dtypes.
        is_exact: True if every scale has equally many codes.
    """

    ending: str
    dtypes: tuple[str, ...]
    companions: Mapping[str, str]
    title: str = ""
    is_exact: bool = False


LOW_DTYPES = ("float8", "float6", "float4", "int2", "int4", "int8", "uint2", "uint4", "uint8")
_OF_LAYER = {
    "input_scale": "input_scale", "activation_scale": "input_scale", "act_scale": "input_scale",
    "input_global_scale": "input_global_scale", "input_zero_point": "input_zero_point",
}  # fmt: skip
_OF_WEIGHT = {
    "_scale_inv": "scale", "_scale": "scale", "_scale_2": "global_scale", "_global_scale": "global_scale",
    "_zero_point": "zero_point", "_shape": "shape", "_g_idx": "group_index",
}  # fmt: skip
_OF_PARTS = {"_scale": "scale", "_zero_point": "zero_point", "_per_tensor_scale": "global_scale"}
_OF_LINEAR = {f"weight{ending}": role for ending, role in _OF_WEIGHT.items()} | _OF_LAYER
TORCHAO = "packed by torchao"
"""Its scales may be transposed or swizzled."""

SCHEMES = (
    # compressed-tensors
    NamingScheme("weight_packed", ("int32", "uint8"), _OF_LINEAR),
    NamingScheme("_packed", ("int32", "uint8"), _OF_WEIGHT),
    # AWQ, GPTQ
    NamingScheme("qweight", ("int32",), {"scales": "scale", "qzeros": "zero_point", "g_idx": "group_index"}, "AWQ or GPTQ"),
    # MLX, and the same in transformers
    NamingScheme("weight", ("uint32",), {"scales": "scale", "biases": "zero_point", "qbiases": "zero_point"}, "MLX"),
    # gpt-oss
    NamingScheme("_blocks", ("uint8",), {"_scales": "scale"}, "mxfp4"),
    # Qwix; AQT keeps a list of scales
    *(
        NamingScheme(f"{sep}qvalue", LOW_DTYPES, {
            f"{sep}scale": "scale", f"{sep}scale{sep}0": "scale", f"{sep}scale{sep}1": "scale_1",
            f"{sep}scale_t{sep}0": "scale_t", f"{sep}zero_point": "zero_point",
        }, is_exact=True)
        for sep in "/."
    ),
    # bitsandbytes
    *(
        NamingScheme("", ("uint8",), {
            f"{sep}absmax": "scale", f"{sep}quant_map": "code", f"{sep}nested_absmax": "nested_scale",
            f"{sep}nested_quant_map": "nested_code", f"{sep}quant_state{sep}bitsandbytes__nf4": "state",
            f"{sep}quant_state{sep}bitsandbytes__fp4": "state",
        }, "4 bits of bitsandbytes")
        for sep in "./"
    ),
    NamingScheme("weight", ("int8",), {"SCB": "scale", "weight_format": "format"}, "int8 of bitsandbytes"),
    # torchao and quanto, whose tensors of several parts are taken apart
    NamingScheme("_qdata", ("uint8", "int32"), _OF_PARTS, TORCHAO),
    NamingScheme("_qdata", LOW_DTYPES, _OF_PARTS),
    *(NamingScheme(f"{sep}_data", LOW_DTYPES, {f"{sep}_scale": "scale", f"{sep}_shift": "zero_point"}) for sep in "./"),
    # ComfyUI, EETQ
    NamingScheme("weight", LOW_DTYPES, {"scale_weight": "scale", "scale_input": "input_scale"}),
    NamingScheme("weight", ("int8",), {"weight_scales": "scale"}),
    # fp8 and int8 of Hugging Face, compressed-tensors and ModelOpt, and DeepSeek's own names
    NamingScheme("weight", LOW_DTYPES, _OF_LINEAR),
    NamingScheme("weight", LOW_DTYPES, {"scale": "scale", **_OF_LAYER}),
    # experts in one tensor
    NamingScheme("", LOW_DTYPES, {**_OF_WEIGHT, "_input_scale": "input_scale"}),
)  # fmt: skip
"""The ways in which programs name codes and their companions, in the order in which they are tried."""


class NamedPair(Struct, frozen=True):
    """Codes and companions that have the names of a scheme; their shapes may still not fit.

    Attributes:
        names: of the companions, by role.
    """

    codes: TensorSpec
    scheme: NamingScheme
    names: Mapping[str, str]


def named_pairs(
    candidates: Iterable[TensorSpec], specs: Mapping[str, TensorSpec]
) -> Iterator[NamedPair]:
    """The tensors that may be codes, each with the companions of the first scheme that names a scale."""
    possible = _possible(specs)
    for spec in candidates:
        for scheme in possible:
            if spec.name.endswith(scheme.ending) and spec.dtype.startswith(scheme.dtypes):
                names = _companions(spec.name.removesuffix(scheme.ending), scheme, specs)
                if "scale" in names:
                    yield NamedPair(spec, scheme, names)
                    break


def _possible(names: Iterable[str]) -> list[NamingScheme]:
    """The schemes with a possible scale among the names, each with its possible companions: most of 100,000 tensors need one look."""
    lasts = {name[max(name.rfind("."), name.rfind("/")) + 1 :] for name in names}
    text = "\n".join([*lasts, ""])
    found = []
    for scheme in SCHEMES:
        companions = {
            ending: role
            for ending, role in scheme.companions.items()
            if f"{ending[max(ending.rfind('.'), ending.rfind('/')) + 1 :]}\n" in text
        }
        if "scale" in companions.values():
            found.append(replace(scheme, companions=companions))
    return found


def _companions(stem: str, scheme: NamingScheme, specs: Mapping[str, TensorSpec]) -> dict[str, str]:
    """The names of the companions of codes, by role."""
    found: dict[str, str] = {}
    for ending, role in scheme.companions.items():
        if (name := stem + ending) in specs:
            found[ending.strip("_./") if role in found else role] = name
    return found
