"""The error for mistakes of a user, which says in one sentence what is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class TunefaError(Exception):
    """A mistake that the user can correct. It says what is wrong, the value, where, and what to do.

    Anything else that escapes tunefa is a bug and keeps its traceback.
    """

    exit_code = 1
    """The exit status of a command that ends with this error."""


def unknown(kind: str, name: str, known: Iterable[str]) -> TunefaError:
    """Returns the error for a `name` that is not among the `known` ones; it suggests the nearest.

    The caller raises it, so that its control flow shows the `raise`.
    """
    names = sorted(known) if isinstance(known, set | frozenset) else list(known)
    spellings = {each.lower(): each for each in names}
    nearest = get_close_matches(name.lower(), spellings, n=1)
    hint = f": did you mean {spellings[nearest[0]]}?" if nearest else ""
    return TunefaError(f"unknown {kind} {name!r}{hint} (known: {', '.join(names) or 'none'})")
