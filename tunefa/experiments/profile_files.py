"""The kernels in the files that profilers write: traces of PyTorch, and hatchet files of Proton."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tunefa.errors import TunefaError
from tunefa.experiments import profiled
from tunefa.experiments.document import Row

_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
"""The categories of what runs on the GPU in a trace of PyTorch."""
_BEFORE_NAMES = frozenset(
    ("void", "at", "native", "cuda", "c10", "std", "anonymous", "namespace", "unnamed")
)
"""Words before the name of a kernel."""
_NO_NAME = re.compile(r"L[a-z]\d+E|[ST]\d*_|E\d+_(?!GLOBAL)")
"""Digits in mangled names that are no lengths: numbers, substitutions and closures (Itanium C++
ABI, section 5.1)."""
_WORK = re.compile(r"(_kernel|Functor)$")
"""The names in PyTorch's elementwise kernels that say what is computed."""


def ranges(path: Path, contestants: Sequence[str]) -> list[Row]:
    """Returns the kernels, copies and fills in the range of each contestant, from a trace that
    PyTorch's profiler has written; those of one name are one row.

    Each range ends when the GPU is idle, so what begins in its time belongs to it. Kernels that are
    launched through the driver, as tunefa's, have no operator of PyTorch around them. Raises
    TunefaError for another file.
    """
    try:
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        there = [each for each in events if each.get("cat") in _ON_GPU]
        rows = list[Row]()
        for contestant in contestants:
            name = profiled.range_name(contestant)
            spans = [
                (each["ts"], each["ts"] + each["dur"])
                for each in events
                if each.get("cat") == "user_annotation" and each["name"] == name
            ]
            found, counts = Counter[str](), Counter[str]()
            for each in there:
                if any(start <= each["ts"] <= end for start, end in spans):
                    found[each["name"]] += each["dur"]
                    counts[each["name"]] += 1
            rows += [
                {"contestant": contestant, "kernel": kernel, "count": counts[kernel], "time_us": us}
                for kernel, us in found.most_common()
            ]
    except OSError as error:
        raise TunefaError(f"PyTorch has written no {path}: {error.strerror}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TunefaError(f"{path} is no trace of PyTorch: {error!r}") from error
    return rows


def scopes(path: Path) -> list[Row]:
    """Returns the kernels in each scope of a hatchet file, as Proton writes it: a tree of frames,
    whose leaves have `count` and `time (ns)`. Raises TunefaError for another file."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        found = [scope for root in tree if "frame" in root for scope in root["children"]]
        return [
            {
                "contestant": scope["frame"]["name"].removeprefix(f"{profiled.OURS}:"),
                "kernel": leaf["frame"]["name"],
                "count": int(leaf["metrics"].get("count", 1)),
                "time_us": float(leaf["metrics"]["time (ns)"]) / 1e3,
            }
            for scope in found
            for leaf in _leaves(scope)
            if "time (ns)" in leaf["metrics"]
        ]
    except OSError as error:
        raise TunefaError(f"Proton has written no {path}: {error.strerror}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TunefaError(f"{path} is no profile of Proton: {error!r}") from error


def _leaves(node: Any) -> list[Any]:
    children = node["children"]
    return [leaf for child in children for leaf in _leaves(child)] if children else [node]


def short_name(kernel: str) -> str:
    """Returns the name of a kernel without namespaces and types; for one of PyTorch's elementwise
    kernels, mangled or not, with what it computes: `elementwise_kernel: masked_fill_kernel`."""
    if kernel.startswith("_Z"):
        names = list(_mangled(kernel))
    elif "<" in kernel:
        names = re.findall(r"[A-Za-z_]\w*", kernel)
    else:
        return kernel
    plain = [n for n in names if n not in _BEFORE_NAMES and not n.startswith("_GLOBAL__N")]
    if not plain:
        return kernel
    work = [name for name in plain[1:] if _WORK.search(name) and name != plain[0]]
    return f"{plain[0]}: {work[-1]}" if work else plain[0]


def _mangled(name: str) -> Iterator[str]:
    """The identifiers in a mangled name of C++, which stand behind their lengths."""
    place = 0
    while place < len(name):
        if skipped := _NO_NAME.match(name, place):
            place = skipped.end()
        elif length := re.compile(r"\d+").match(name, place):
            end = length.end() + int(length[0])
            yield name[length.end() : end]
            place = end
        else:
            place += 1
