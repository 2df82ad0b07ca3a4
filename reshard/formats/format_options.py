"""The options of targets of all formats, and the format that a target's name implies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reshard.errors import PlanError
from reshard.formats.format import Format
from reshard.formats.keras.files import ARCHIVE
from reshard.formats.keras.files import ENDING as WEIGHTS
from reshard.formats.known_formats import every_format, is_own_format, own_formats
from reshard.formats.state_dict.files import ENDINGS
from reshard.formats.tensorflow.files import prefix_of
from reshard.options import Option


def format_names(asked: str | None = None) -> tuple[str, ...]:
    """The names of the formats that are written; of other distributions too if none of this one has the name that is asked for."""
    known = own_formats() if asked is None or is_own_format(asked) else every_format()
    return tuple(one.about.name for one in known if one.write is not None)


def format_options() -> dict[str, Option]:
    """The options that targets of all formats have, by name."""
    return {name: option for known in own_formats() for name, option in known.about.options.items()}


def format_with(option: str) -> Format:
    """The first format whose targets have that option."""
    return next(known for known in own_formats() if option in known.about.options)


def _refuse_other_name(path: str, to: str | None) -> None:
    """Raises PlanError for a target with the name of a file that a format does not write, or that is only a part of one.

    ``to``: the target's format; None where only its source says it.
    """
    name = path.rpartition("/")[2]
    if name.endswith(ARCHIVE):
        raise PlanError(
            f"the target {path!r} has the name of an archive of Keras, which is not written; name a file of weights, such as "
            f"{path.removesuffix(ARCHIVE) + WEIGHTS!r}, or leave the ending out (target)"
        )
    ending = next((one for one in reversed(ENDINGS) if name.endswith(one)), "")
    by_prefix = any(one.about.by_prefix for one in own_formats() if one.about.name == to)
    # TensorFlow 1 names its checkpoints model.ckpt.
    if ending and not (ending == ".ckpt" and (by_prefix or to is None)):
        raise PlanError(
            f"the target {path!r} has the name of a file of torch.save, which is not written; name a .safetensors file, or a folder without "
            f"the ending {ending}, in the format that you choose (to)"
        )
    if by_prefix and (prefix := prefix_of(name)):
        raise PlanError(
            f"the target {path!r} has the name of one file of a TensorFlow checkpoint; name what its files begin with, "
            f"{path.removesuffix(name) + prefix!r} (target)"
        )


def named_options(
    path: str, to: str | None, options: Mapping[str, Any]
) -> tuple[str | None, Mapping[str, Any]]:
    """The format that is asked for, or that the target's name implies, and the options of all formats; the name may change them.

    Args:
        path: "" where options are checked before a target is named.

    Raises PlanError for options that contradict the name, for a name without the ending that the format needs, and for one of files that
    are not written.
    """
    _refuse_other_name(path, to)
    for about in (known.about for known in own_formats()):
        one = about.one_file
        if to not in (None, about.name) or one is None:
            continue
        if not path.endswith(one.ending):
            if path and to is not None and not one.option:
                raise PlanError(
                    f"the target {path!r} should have a name that ends in {one.ending}, by which {about.title} knows its files; add that "
                    "ending (target)"
                )
            continue
        if not one.option:
            return about.name, options
        if options[one.option] not in (None, one.value):
            raise PlanError(
                f"{one.option} is {options[one.option]!r}, which makes a folder, but the target {path!r} has the name of a file; "
                f"name a folder, or leave {one.option} out for one file"
            )
        return about.name, {**options, one.option: one.value}
    return to, options
