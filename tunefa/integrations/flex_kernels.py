"""FlexAttention's kernels as kernels of tunefa: PyTorch's templates, for one mask and one score
function.

The name of such a kernel ends with the hash of both functions. So a record of it serves calls with
these functions alone, and records of others never replace it.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import flex_attention as interface

from tunefa import assets
from tunefa.integrations.flex_calls import FlexCall, function_hash, is_identity
from tunefa.spec import space as spaces
from tunefa.spec.kernel import Kernel
from tunefa.spec.space import Parameter, Space
from tunefa.spec.trial import Config

PREFIX = "flex_attention_"
_TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "fwd": ("flex_attention", "common", "utilities"),
    "bwd": ("flex_backwards", "utilities"),
}
"""The templates of PyTorch's kernel by op."""
_MASK_SIZES = ("SPARSE_Q_BLOCK_SIZE", "SPARSE_KV_BLOCK_SIZE")
"""The parameters that are not options: PyTorch takes them from the block mask."""
_SWITCHES = ("USE_TMA", "PRESCALE_QK")
"""The options that are True or False."""
_LAUNCH = ("num_warps", "num_stages")
"""The options that PyTorch's templates do not name, as Triton's compiler reads them."""


@dataclass(frozen=True)
class FlexKernel(Kernel):
    """PyTorch's kernel of one op for one mask and one score function."""

    @functools.cached_property
    def sources(self) -> tuple[Path, ...]:
        """The templates of the installed PyTorch."""
        return templates(self.op)


def kernel_of(call: FlexCall, prescale: bool = True) -> FlexKernel:
    """Returns the kernel of a call whose functions are graphs, with the space for its block mask.

    PRESCALE_QK is searched only if `prescale`, and where the score function is the identity:
    PyTorch passes the function other scores then.
    """
    own = space(call.op)
    fixed: dict[str, Any] = dict(zip(_MASK_SIZES, call.block_size, strict=True))
    unread = [each.name for each in own.parameters if not is_read(each.name, call.op)]
    first = {each.name: each.values[0] for each in own.parameters}
    fixed |= {name: first[name] for name in unread if name not in _MASK_SIZES}
    if not (prescale and is_identity(call.score)):
        fixed["PRESCALE_QK"] = first["PRESCALE_QK"]
    kept = tuple(_fixed(each, fixed) for each in own.parameters)
    name = f"{PREFIX}{call.op}.{function_hash(call.score, call.mask)}"
    made = replace(own, kernel=name, parameters=kept)
    return FlexKernel(name, templates(call.op)[0], made)


@functools.cache
def space(op: str) -> Space:
    """Returns the search space of an op, for all calls."""
    return spaces.read(assets.root("search_spaces") / "flex" / f"{PREFIX}{op}.yaml")


def options(config: Config) -> dict[str, Any]:
    """Returns the kernel options of a config."""
    chosen = {name: value for name, value in config.items() if name not in _MASK_SIZES}
    return {name: bool(v) if name in _SWITCHES else v for name, v in chosen.items()}


def default(call: FlexCall, kernel: Kernel) -> Config | None:
    """Returns the config that PyTorch chooses by itself for a call on CUDA; None where several are
    in question."""
    from torch._inductor import config
    from torch._inductor.choices import InductorChoices

    q = call.qkv[0]
    with config.patch(max_autotune=False):
        choices = InductorChoices()
        asked = getattr(choices, f"get_flex_attention_{call.op}_configs")
        found: list[Any] = asked(q.shape[-1], q.dtype, "cuda")
    if len(found) != 1:
        return None
    chosen = {_named(name): value for name, value in dataclasses.asdict(found[0]).items()}
    first = {each.name: each.values[0] for each in kernel.space.parameters}
    return {**first, **{name: value for name, value in chosen.items() if name in first}}


def is_read(name: str, op: str) -> bool:
    """Whether the installed PyTorch reads an option of FlexAttention's kernel for an op."""
    documented = getattr(interface, "FlexKernelOptions", None)
    if documented is not None and name not in (*documented.__annotations__, *_MASK_SIZES):
        return False
    return name in _LAUNCH or re.search(rf"\b{name}\b", _source(op)) is not None


def templates(op: str) -> tuple[Path, ...]:
    """Returns the files of PyTorch's templates for an op, the kernel's own first."""
    folder = Path(torch.__file__).parent / "_inductor" / "kernel" / "flex" / "templates"
    return tuple(folder / f"{name}.py.jinja" for name in _TEMPLATES[op])


@functools.cache
def _source(op: str) -> str:
    """The templates of an op as text, without their comments."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in templates(op))
    return re.sub(r"#.*", "", text)


def _fixed(parameter: Parameter, fixed: Mapping[str, Any]) -> Parameter:
    """The parameter with one value, if it is fixed."""
    if parameter.name not in fixed:
        return parameter
    return replace(parameter, values=(fixed[parameter.name],))


def _named(field: str) -> str:
    """The option of a field of PyTorch's config."""
    return field if field in _LAUNCH else field.upper()
