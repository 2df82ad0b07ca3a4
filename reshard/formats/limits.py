"""The limits of a checkpoint's metadata; a checkpoint beyond them is refused.

Tensor data is not limited here: its memory is planned. Each limit is far above the metadata of any real program,
and low enough that hostile metadata costs only seconds and some hundred megabytes.
"""

from __future__ import annotations

MAX_JSON_BYTES = 1 << 30
"""A tree of 100,000 tensors takes 30 MB; a sharding file that lists 16,384 devices a tensor, 500 MB."""

MAX_JSON_DEPTH = 64
"""Orbax nests 6 deep; users' own metadata deeper, but not this deep."""

MAX_JSON_VALUES = 1 << 22
"""Values of a document that is built as a whole; each takes 100 bytes of memory."""

MAX_SLICE_VALUES = 1 << 24
"""Values of a slices.json: a million tensors."""

MAX_VALUE_CHARACTERS = 16 << 20
"""One list or object within a document that is read member by member."""

MAX_LEAVES = 1 << 20
"""Leaves of an item, each some 2 KB in memory."""

MAX_PATH_KEYS = 256
"""Keys of a path: other programs write and rebuild trees by recursion; jax's own trees nest about 20 deep."""

MAX_NAME_CHARACTERS = 4096
"""Characters of a tensor's name; a file's path may have as many bytes."""

MAX_ALL_NAMES_CHARACTERS = 64 << 20
"""Characters of all names of a tree whose file has each key once, however many names begin with it, and of its strings;
100,000 leaves have 10 million. Each key of a path takes 8 bytes of memory besides."""

MAX_ARRAY_PIECES = 1 << 16
"""Pieces of an array in a msgpack file; real ones have 1 GiB each."""

MAX_ZARR_BYTES = 1 << 20
"""An array's metadata file takes some hundred bytes."""

MAX_RANK = 32
"""Dimensions, as in TensorStore."""

MAX_CHUNKS = 1 << 22
"""Chunks of one tensor: at this number a tensor of 1 TiB still has chunks of only 256 KiB."""

MAX_TENSOR_BYTES = 1 << 62
"""Bytes of a tensor, and of a chunk, so that sums of them fit into 64 bits."""

MAX_CUTS = 1 << 22
"""Cuts of all different chunk grids of an item together, each some 40 bytes in memory."""

MAX_LAYOUT_CUTS = 1 << 26
"""Cuts of all different layouts of an item. They are only read, which takes some seconds."""

MAX_MANIFEST_BYTES = 64 << 20
"""Bytes of a database's manifest; a real one takes some hundred bytes."""

MAX_NODE_BYTES = 128 << 20
"""Keys of a node of a database's index, or its paths; Orbax writes nodes of at most 100 MB."""

MAX_INLINE_BYTES = 1 << 20
"""A value within a node, as in TensorStore."""

MAX_NODES = 1 << 20
"""Nodes of a database's index."""

MAX_PICKLE_BYTES = 512 << 20
"""A ``.metadata`` of torch takes some 260 bytes for each tensor."""

MAX_PICKLE_OPCODES = 1 << 27
"""Steps of a pickle: a ``.metadata`` takes some 110 for each tensor. A million take about half a second."""

MAX_PICKLE_VALUES = 1 << 26
"""Values that a pickle makes, each 70 bytes in memory: a ``.metadata`` makes some 40 for each tensor."""

FEW_PICKLE_VALUES, PICKLE_VALUE_BYTES = 1 << 20, 4
"""More values than the first must take so many bytes each; those of a ``.metadata`` take 7. So a stranger's file takes at most 20 times
its size in memory."""

MAX_INTEGER_BYTES = 1 << 10
"""An integer in a pickle; those of torch have 8 bytes. Python writes none of more than 4,300 digits as text."""

MAX_PICKLE_STACK = 1 << 16
"""Values that wait on a pickle's stack: writers of pickles add 1,000 items of a list or dict at a time."""

MAX_ITEM_PICKLE_BYTES = 1 << 20
"""The pickle of one item that torch.save wrote: of a tensor some 200 bytes, of an optimizer's settings some thousand."""

MAX_ARCHIVE_RECORDS = 1 << 12
"""Records of one archive of torch.save; that of a tensor has seven."""

MAX_DIRECTORY_BYTES = 1 << 20
"""The directory of such an archive, some 60 bytes for each record."""

MAX_STATE_PICKLE_BYTES = 64 << 20
"""The pickle of a state dict in one file: some 110 bytes for each tensor."""

MAX_FILE_RECORDS = 1 << 18
"""Records of an archive with a state dict, one for each storage."""

MAX_FILE_DIRECTORY_BYTES = 32 << 20
"""The directory of such an archive."""

MAX_HDF5_BYTES = 1 << 30
"""Bytes of an HDF5 file's metadata, each time that HDF5 reads them: a dataset takes about one kilobyte."""
