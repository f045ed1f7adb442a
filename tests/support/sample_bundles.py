"""Bundles for tests: one with made-up binaries, and one that is compiled for an H200."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.bundled_process import WORKLOADS
from tests.support.made_once import made_once
from tests.support.sample_records import measured
from tunefa.runtime import bundle_builder
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload
from tunefa.store import bundle_file
from tunefa.store.bundle_file import Contents, Plan

IMAGES = {bundle_file.name_of(image): image for image in (b"first cubin", b"second" * 1000)}
CONFIG: dict[str, Any] = {"BLOCK_M": 128, "L2_SECTION_MB": 8}


def plan(workload: str = "q4096", **changes: Any) -> Plan:
    """A plan on an H200."""
    made = Plan(
        "sm90", "NVIDIA H200", Workload.parse(workload), "attention_fwd_triton", CONFIG, CONFIG,
        "exact", "exact: measured", True,
    )  # fmt: skip
    return replace(made, **changes)


def contents(*plans: Plan) -> Contents:
    """The contents of a bundle, with two binaries."""
    first, second = IMAGES
    binaries = {
        "ab" * 16: {"kernel": "attention_fwd_triton", "steps": {"binary": {"image": first}}},
        "cd" * 16: {"kernel": "attention_fwd_triton", "steps": {"binary": {"image": second}}},
    }
    kernels = {"attention_fwd_triton": {"language": "triton", "source_hash": "0123"}}
    made = {"tunefa": "0.1.0", "licence": "Apache-2.0"}
    left_out = [{"what": "a library", "why": "it has no binary"}]
    return Contents(plans or (plan(),), [measured()], kernels, binaries, made, left_out)


def write(path: Path, *plans: Plan) -> Path:
    """Writes that bundle, and returns its path."""
    bundle_file.write(path, contents(*plans), IMAGES)
    return path


@functools.cache
def compiled(texts: tuple[str, ...] = WORKLOADS, chip: str = "h200") -> tuple[Contents, Any]:
    """The contents of a bundle of real kernels, and its binaries. Compiling takes seconds, so the
    processes of a test run share them."""

    def make() -> tuple[Contents, Any]:
        workloads = [Workload.parse(text) for text in texts]
        return bundle_builder.build(workloads, [Target.named(chip)], workers=2)

    return made_once(f"bundle {texts} {chip}", make)
