"""The options of a target of a conversion, declared once: ConvertOptions, and Target, which records them.

``convert``, ``plan`` and ``check_arguments`` take ``**options: Unpack[ConvertOptions]``. A new option is a key of ConvertOptions
with its documentation, a field of Target with its default, and an Option in ``declared_options.py`` or among those of a
format; the command line, the HTTP model and the forms of the web pages derive from these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

from msgspec import Struct

from reshard.arguments import OptionsMeta

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reshard.arguments import CastRules, MapLike, MissingChunks, PairRules, Path, Rules
    from reshard.formats.contents import Style
    from reshard.formats.target_files import FilesOf
    from reshard.layout.device_mesh import MeshLike
    from reshard.layout.layout_file import LayoutFile, MissingAxes
    from reshard.layout.layout_map import LayoutMap

    LayoutLike = Path | Mapping[str, Any] | LayoutFile | LayoutMap | Any | None
    """Any: a tree of TensorLayouts, jax shardings or jax.ShapeDtypeStructs."""

FormatName = Literal["orbax", "safetensors", "dcp", "keras", "tensorflow"]
"""The formats that are written: those of ``formats.registry``."""

Check = Literal["written", "readback"]

IdentityMode = Literal["carry", "compute", "check", "none"]

LIBRARY_NAMES = {"verify": "check"}
"""Options with another name on the command line and in HTTP, by that name."""


class ConvertOptions(TypedDict, total=False):
    """The options of one target of a conversion; each can be left out.

    Attributes:
        layout: a layout file's path or content, a LayoutMap, or a tree of TensorLayouts, jax shardings,
            PartitionSpecs or ``jax.ShapeDtypeStruct``s, in which a leaf applies to everything below it. LayoutMaps and
            TensorLayouts may be those of Keras. None, the default, keeps the source's layouts.
        mesh: a DeviceMesh, also of Keras, a ``jax.sharding.Mesh`` or ``"data=4,model=2"``. It replaces the mesh of a layout file, and is
            the mesh of a tree's PartitionSpecs. Without a layout every tensor keeps the source's axes, over this
            mesh.
        missing_axes: treatment of axes of the source or of a layout file that ``mesh`` lacks. ``"error"``, the default, refuses
            them; ``"replicate"`` replicates the dimensions that they split, with a warning.
        select: patterns that are searched in names; tensors that one of them finds are kept. Without patterns all are kept.
        drop: patterns that are searched in names; tensors that one of them finds are left out, after ``select``.
        rename: pairs of a pattern and a replacement, or a mapping; the first that matches counts.
        cast: pairs of a pattern and a dtype, or of ``"float"``, ``"int"``, ``"complex"``, ``"bool"`` or a
            dtype and a dtype, or a mapping: every tensor of the first becomes the second. A dtype is a name, a short name
            such as ``"bf16"``, or one of numpy, ml_dtypes or jax.
            ``"float8_e4m3fn:saturate"`` clips values that are too large to the largest one. The first that applies counts.
        map: a map file's path, content or text, or the name of a recipe (``reshard.rules.recipes``): which tensors of the source become which
            of the target. It comes after ``select`` and ``drop``, which then search names of the source alone, and before ``rename``, ``cast``
            and the layout, which then search names of the target. docs/reference/maps.md describes it.
        sizes: of dimensions of the map that no shape tells, by name.
        reverse: read the map from right to left.
        compression: ``"none"``, the default, ``"zstd[:level]"``, ``"gzip[:level]"``, ``"blosc"``, or ``"keep"`` for
            each tensor's own.
        chunk_bytes: bytes, or text such as ``"64MiB"``; larger target chunks are subdivided. The default is 256 MiB.
        ocdbt: pack the target into one OCDBT database instead of plain files.
        style: Orbax's form of the target, ``"v0"`` or ``"v1"``; None, the default, keeps the source's.
        to: the target's format, ``"orbax"``, ``"safetensors"``, ``"dcp"`` (of torch, with ``.metadata`` and ``.distcp`` files),
            ``"tensorflow"``, whose target is the beginning of its files' names, or ``"keras"``, a ``.weights.h5`` file. None, the
            default, takes safetensors for a target whose name ends in ``.safetensors``, keras for ``.weights.h5``, else the source's
            format. ``ocdbt``, ``style``, ``compression`` and
            ``chunk_bytes`` are options of Orbax, the next five of safetensors, and the first two of these of TensorFlow too.
        files: the files of a safetensors target. ``"shards"``, the default of a folder, is Hugging Face's form: whole
            tensors, and an index. ``"one"`` is a single file, the default of a target whose name ends in
            ``.safetensors``. ``"ranks"`` is a file for each device of the target mesh, with that device's slices.
            ``"dcp"`` is the form of torch's distributed checkpoint, which has each slice once. The data files of a TensorFlow target:
            ``"ranks"``, the default, is a file for each shard, ``"shards"`` files of at most ``file_bytes``, ``"one"`` a single file.
        file_bytes: for shards, the most bytes of tensors in one file, or text such as ``"5GB"``, the default; a tensor, of TensorFlow a
            slice, is never split. For a TensorFlow target it means ``"shards"``.
        file_names: the pattern of the files' names, such as ``"model-{number:05d}-of-{count:05d}.safetensors"``.
            ``{number}`` counts from 1, ``{rank}`` from 0. None keeps the name of the source's model where its format stays.
        carry: copy the other files beside the weights of a safetensors source, such as ``config.json``, to the target,
            and folders of at most 64 MiB; a warning names larger ones.
        config: a folder with ``config.json``, from which it and the tokenizer's and other small files are copied. The config is held
            against names and shapes of the target first.
        missing_chunks: treatment of chunks of the source's tensors that are not stored. ``"refuse"`` raises CorruptError;
            ``"warn"`` and ``"allow"`` take the fill value, mostly 0, with or without a warning. None, the default, refuses
            them where the checkpoint records that it stores every chunk, and else warns: older versions of Orbax leave out
            chunks that hold nothing but the fill value.
        check: verification of the target before it appears. ``"written"``, the default, compares the digest of what
            was read with the digest of what was written, tensor by tensor; ``"readback"`` also reads the
            target again, and only then does the report say "proved".
        identity: treatment of the identity of the weights (``reshard.identify``). ``"carry"`` copies the source's into the target
            where every digest is the recorded one; ``"compute"`` hashes what was written; ``"check"`` does so too, and publishes only
            if the root is the source's, and both read a target that was finished before; ``"none"`` does nothing. None, the default, carries
            where the source has one and no tensor gets other bits.
        overwrite: replace an existing target.
        restart: start over instead of resuming an interrupted run to this target.
        state: the URL of a folder in a bucket, for the records by which a run to a bucket resumes. None, the default, keeps
            them beside the target.
        unsafe_commit: write also to a bucket without conditional writes. Two runs to one target could mix there: make sure
            that there is only one.
    """

    layout: LayoutLike
    mesh: str | MeshLike | None
    missing_axes: MissingAxes
    select: Rules
    drop: Rules
    rename: PairRules
    cast: CastRules
    map: MapLike
    sizes: Mapping[str, int] | None
    reverse: bool
    compression: str
    chunk_bytes: int | str | None
    ocdbt: bool
    style: Style | None
    to: FormatName | None
    files: FilesOf | None
    file_bytes: int | str | None
    file_names: str | None
    carry: bool
    config: Path | None
    missing_chunks: MissingChunks | None
    check: Check
    identity: IdentityMode | None
    overwrite: bool
    restart: bool
    state: str | None
    unsafe_commit: bool


class _Options(Struct, frozen=True, kw_only=True, metaclass=OptionsMeta):
    """The defaults."""

    layout: LayoutLike = None
    mesh: str | MeshLike | None = None
    missing_axes: MissingAxes = "error"
    select: Rules = ()
    drop: Rules = ()
    rename: PairRules = ()
    cast: CastRules = ()
    map: MapLike = None
    sizes: Mapping[str, int] | None = None
    reverse: bool = False
    compression: str = "none"
    chunk_bytes: int | str | None = None
    ocdbt: bool = False
    style: Style | None = None
    to: FormatName | None = None
    files: FilesOf | None = None
    file_bytes: int | str | None = None
    file_names: str | None = None
    carry: bool = False
    config: Path | None = None
    missing_chunks: MissingChunks | None = None
    check: Check = "written"
    identity: IdentityMode | None = None
    overwrite: bool = False
    restart: bool = False
    state: str | None = None
    unsafe_commit: bool = False


class Target(_Options, frozen=True, repr_omit_defaults=True):
    """One target of ``convert_all`` or ``plan_all``: its folder, and the options that make it.

    ``target`` is the folder's path. The options are those of ``ConvertOptions``, which documents them; each can be
    read as an attribute.

    >>> Target("served", layout="serving.yaml", cast={"float": "bfloat16"})
    Target(target='served', layout='serving.yaml', cast={'float': 'bfloat16'})
    >>> Target("served").check
    'written'
    """

    target: Path
