"""The identity of machine code: compilers make one program of several configs.

A cubin is an ELF file. Two of them are the same program if all sections that a chip runs or reads
are equal. Debug data and the notes of tools do not count, nor do the tables of names. The limit of
registers that was asked for does not count either: what a launch allocates is another attribute,
which does. On eight landscapes of an H200, 882 groups of configs differ only in such a limit and
not in what the compiler reports; the median difference within a group is 0.4 %, as between two
screenings of one config.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_HEADER, _MAGIC = 64, b"\x7fELF\x02\x01"
"""The size of the header of an ELF file of 64 bits, little-endian, and how it begins."""
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NO_BITS = 8
"""SHT_NOBITS: a section that has a size, but no content in the file."""
_ACCIDENTAL = re.compile(r"debug|^\.note\b|(^|\.)(shstrtab|strtab|symtab)$|\.nv\.callgraph$")
"""Names of sections that change nothing: debug data, notes, names, and which function calls which.
All others count, so that sections of later chips count too."""
_ATTRIBUTES = re.compile(r"\.nv\.info\b")
_REGISTER_LIMIT = 0x1B
"""The attribute MAXREG_COUNT of a kernel, as `cuobjdump -elf` calls it."""
_LONG = 4
"""The format of an attribute whose length its third and fourth byte give; all others have four."""


_LAUNCHED = (
    *("num_warps", "num_ctas", "cluster_dims", "shared", "launch_pdl", "launch_cooperative_grid"),
    *("global_scratch_size", "global_scratch_align", "profile_scratch_size", "tensordesc_meta"),
)
"""The metadata by which Triton launches a binary, as far as its versions 3.6 to 3.9 have them."""


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    flags: int
    info: int
    size: int
    content: bytes


def code(images: Sequence[bytes], *launch: Any) -> str:
    """Returns a hash of the programs in cubins: equal hashes mean equal programs.

    `launch` is what else a launch needs of the compiler, such as the threads of a CTA; its `repr`
    counts. Of a file that is no cubin, every byte counts.
    """
    made = hashlib.sha256(repr((len(images), launch)).encode())
    for image in images:
        try:
            told = [_told(each) for each in _sections(image) if not _ACCIDENTAL.search(each.name)]
        except (struct.error, ValueError, OverflowError, IndexError):
            told = [image]
        for each in told:
            made.update(len(each).to_bytes(8, "little") + each)
    return made.hexdigest()[:16]


def of_triton(*binaries: Any) -> str:
    """Returns `code` of binaries that Triton compiled, which a call launches in this order."""
    metadata = [
        {name: getattr(binary.metadata, name, None) for name in _LAUNCHED} for binary in binaries
    ]
    return code([binary.asm["cubin"] for binary in binaries], *metadata)


def _told(section: _Section) -> bytes:
    """Returns what counts of a section: all but the register limit in a kernel's attributes."""
    # The highest byte of `info` of a kernel's instructions is its number of registers.
    head = (section.name, section.kind, section.flags, section.info >> 24, section.size)
    content = section.content
    if _ATTRIBUTES.search(section.name):
        kept = (each for each in _attributes(content) if each[1] != _REGISTER_LIMIT)
        content = b"".join(kept)
    return repr(head).encode() + content


def _attributes(content: bytes) -> Iterator[bytes]:
    """Yields the attributes of a kernel: format, kind, and a value."""
    start = 0
    while start < len(content):
        form, _, length = struct.unpack_from("<BBH", content, start)
        end = start + 4 + (length if form == _LONG else 0)
        yield content[start:end]
        start = end


def _sections(image: bytes) -> Iterator[_Section]:
    """Yields the sections of an ELF file. Raises ValueError, IndexError, OverflowError or
    struct.error if it is none."""
    if not image.startswith(_MAGIC):
        raise ValueError("no ELF file")
    (table,) = struct.unpack_from("<Q", image, 0x28)
    count, names = struct.unpack_from("<HH", image, 0x3C)
    rows = [_SECTION.unpack_from(image, table + _SECTION.size * i) for i in range(count)]
    names_at = rows[names][4]
    for name, kind, flags, _, offset, size, _, info, _, _ in rows:
        start = names_at + name
        text = image[start : image.index(b"\0", start)].decode()
        content = b"" if kind == _NO_BITS else image[offset : offset + size]
        yield _Section(text, kind, flags, info, size, content)
