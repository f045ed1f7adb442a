"""Text from files and kernels, made safe for a terminal.

A reason, a device's name or a config value comes from a file that anyone may have written. Control
characters in it would move the cursor, change the title or hide lines.
"""

from __future__ import annotations

import re

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline
    "\u200e\u200f\u202a-\u202e\u2066-\u2069"  # they change the direction of what follows
    "\u2028\u2029\ud800-\udfff]"  # line separators; half characters, which cannot be written
)


def cleaned(text: str) -> str:
    """Returns the text with each character that acts on a terminal replaced by U+FFFD."""
    return _UNSAFE.sub("\ufffd", text)
