"""Export to FlexAttention's `kernel_options`, for users of PyTorch's own kernel."""

from __future__ import annotations

from collections.abc import Sequence

from tunefa.store import prediction
from tunefa.store.exports.triton import is_of_gpu, require_one_arch
from tunefa.store.record import Record

SUFFIXES = (".flex.py",)
DESCRIPTION = "Python: kernel_options of PyTorch's FlexAttention per workload, for one arch"

# What FlexAttention's Triton kernel shares with tunefa's, as documented for
# torch.nn.attention.flex_attention.FlexKernelOptions; it chooses its other options itself.
_OPTIONS = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")

_HEAD = '''\
"""FlexAttention options by workload, written by tunefa{arch}.

flex_attention(q, k, v, kernel_options=KERNEL_OPTIONS["<workload>"])

They were tuned on another kernel, and for the forward pass: a good start, not FlexAttention's
measured best. A block mask's BLOCK_SIZE, 128 unless said otherwise, must be a multiple of BLOCK_M
and of BLOCK_N. With the prefix fwd_ (fwd_BLOCK_M) an option leaves the backward pass as it is.
"""

KERNEL_OPTIONS = {{
'''


def holds(record: Record) -> bool:
    """Returns whether the record is of a Triton kernel, and its config has all of these options."""
    has_all = all(option in record.config for option in _OPTIONS)
    return record.workload.op == "fwd" and is_of_gpu(record) and has_all


def dump(records: Sequence[Record]) -> str:
    """Returns a Python module whose `KERNEL_OPTIONS` maps a workload to its best record's options.

    Comments name the records that are left out: records without these options, and all but the best
    record of a workload. Raises TunefaError if the options would be those of several archs.
    """
    held = [record for record in records if holds(record)]
    require_one_arch("flex", held)
    lines = [_HEAD.format(arch=f" for {held[0].arch}" if held else "")]
    written: set[str] = set()
    for record in sorted(records, key=lambda record: (str(record.workload), record.rank)):
        workload = str(record.workload)
        if record not in held:
            missing = [option for option in _OPTIONS if option not in record.config]
            reason = f"it has no {', '.join(missing)}" if missing else "it is not a Triton kernel's"
            if record.workload.op != "fwd":
                reason = f"it is of the op {record.workload.op}"
            lines.append(f"    # left out, {reason}: {workload}: {record.summary}\n")
        elif workload in written:
            lines.append(f"    # left out, not the best for {workload}: {record.summary}\n")
        else:
            options = {option: record.config[option] for option in _OPTIONS}
            comments = "".join(f"    # {said}\n" for said in prediction.sentences(record))
            lines.append(f"{comments}    {workload!r}: {options!r},\n")
            written.add(workload)
    return "".join([*lines, "}\n"])
