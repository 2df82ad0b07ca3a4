"""The structures of a zip archive, as ``torch.save`` uses them, as far as they are read and written (PKWARE's APPNOTE.TXT, 4.3)."""

from __future__ import annotations

from struct import Struct

LOCAL_MAGIC, DESCRIPTOR_MAGIC, CENTRAL_MAGIC = b"PK\3\4", b"PK\7\b", b"PK\1\2"
END64_MAGIC, LOCATOR_MAGIC, END_MAGIC = b"PK\6\6", b"PK\6\7", b"PK\5\6"

LOCAL = Struct("<4s5H3I2H")
"""Before a record's data: magic, version, flags, method, time, date, CRC-32, two sizes, lengths of the name and of extra fields."""

DESCRIPTOR, DESCRIPTOR64 = Struct("<4s3I"), Struct("<4sI2Q")
"""Behind the data, where flag 8 says so: magic, CRC-32, two sizes."""

CENTRAL = Struct("<4s6H3I5H2I")
"""In the directory: as LOCAL with the writer's version first, then length of the comment, disk, two attributes, offset of the header."""

END64 = Struct("<4sQ2H2I4Q")
"""Magic, its own size from there on, two versions, two disks, two counts of records, size and offset of the directory."""

LOCATOR = Struct("<4sIQI")
"""Magic, disk, offset of END64, number of disks."""

END = Struct("<4s4H2IH")
"""Magic, two disks, two counts of records, size and offset of the directory, length of the comment."""

EXTRA = Struct("<2H")
"""Before an extra field: its kind and its length."""

ENCRYPTED, SIZES_FOLLOW = 1, 8
"""Flags: the data is encrypted; CRC-32 and sizes are in a descriptor."""

ZIP64 = 1
"""The kind of the extra field for numbers that 4 bytes cannot hold."""

UNSET = 0xFFFFFFFF
"""The value of a field of 4 bytes whose number is in ZIP64's."""
