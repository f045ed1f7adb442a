"""Attention of few queries over a cache by cuDNN, through the package nvidia-cudnn-frontend.

Algorithm: FlashAttention (arXiv:2205.14135) in cuDNN's own kernels, which it chooses by its
heuristics; with few queries it splits the keys. tunefa describes scaled dot-product attention with
a padding mask as a graph of the front end: the lengths of sequences are a tensor on the device, and
so is the block table of pages. PyTorch's own operators for cuDNN take neither. tunefa has no part
in the kernel. So there are no parameters, and there is nothing to tune.

The bits of a sequence depend on the batch, so it serves only calls without batch invariance. There
it competes like any other kernel: it is checked, timed and raced, and a record may say that it is
the fastest for a workload. Its record holds both versions, and does not serve with others. Without
a record, tunefa's own kernels come first.

Its causal masks are used for one query alone, from which they hide nothing.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import threading
from importlib import metadata

from tunefa.kernels.decode.tensors import most_keys
from tunefa.kernels.library import cudnn as of_pytorch
from tunefa.kernels.library.caches import rows_fit, seen_keys
from tunefa.kernels.library.tensors import readable

LIBRARY = "nvidia-cudnn-frontend"
is_aligned = rows_fit


def version():
    """Returns the versions of cuDNN and of the package; None where one of them is missing."""
    cudnn = of_pytorch.version()
    if cudnn is None or importlib.util.find_spec("cudnn") is None:
        return None
    try:
        return f"{cudnn}, {LIBRARY} {metadata.version(LIBRARY)}"
    except metadata.PackageNotFoundError:  # another package with a module of that name
        return None


def run(tensors, spec):
    """Returns (out, lse)."""
    import torch

    workload = spec.workload
    q, (k, v) = readable(tensors[0]), tensors[1:3]
    lengths = seen_keys(tensors, workload)[:, None, None, None]
    # A block table has four axes in cuDNN.
    inputs = [q, k, v, lengths, *([tensors[6][:, None, :, None]] if workload.page_size else [])]
    out, lse = torch.empty_like(q), q.new_empty((*q.shape[:3], 1), dtype=torch.float32)
    layouts = tuple((tuple(x.shape), x.stride()) for x in (*inputs, out, lse))
    keys = most_keys(tensors, workload)
    call = _planned(threading.get_ident(), q.device, q.dtype, layouts, keys, spec.scale)
    call(inputs, out, lse)
    empty = lengths == 0
    return out.masked_fill_(empty, 0.0), lse.masked_fill_(empty, float("-inf"))[..., 0]


@functools.cache
def _planned(thread, device, dtype, layouts, keys, scale):
    """Returns a call of cuDNN on tensors of these shapes and strides. It is planned once for each
    thread, as a handle has one stream, and never freed, as CUDA graphs hold its memory."""
    import torch

    cudnn = importlib.import_module("cudnn")
    graph, inputs, seq_len_q, outputs = _graph(cudnn, dtype, layouts, keys, scale)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A])
    graph.check_support()
    graph.build_plans()
    handle, workspace_bytes = cudnn.create_handle(), max(1, graph.get_workspace_size())
    (batch, _, rows, _), _ = layouts[0]
    queries = torch.full((batch, 1, 1, 1), rows, dtype=torch.int32, device=device)

    def call(given, *found):
        stream = torch.cuda.current_stream(device).cuda_stream
        workspace = torch.empty(workspace_bytes, dtype=torch.uint8, device=device)
        cudnn.set_stream(handle=handle, stream=stream)
        tensors = {**dict(zip(inputs, given, strict=True)), seq_len_q: queries}
        tensors |= dict(zip(outputs, found, strict=True))
        graph.execute(tensors, workspace, handle=handle)

    return call


def _graph(cudnn, dtype, layouts, keys, scale):
    """Returns the graph, its tensors in the order of the call, the numbers of queries, and the
    outputs."""
    import torch

    io = {torch.bfloat16: cudnn.data_type.BFLOAT16, torch.float16: cudnn.data_type.HALF}[dtype]
    fp32, int32 = cudnn.data_type.FLOAT, cudnn.data_type.INT32
    graph = cudnn.pygraph(io_data_type=io, intermediate_data_type=fp32, compute_data_type=fp32)
    *of_inputs, of_out, of_lse = layouts

    def tensor(name, layout, data_type):
        shape, strides = map(list, layout)
        return graph.tensor(name=name, dim=shape, stride=strides, data_type=data_type)

    names, types = ("q", "k", "v", "seq_len_kv", "table"), (io, io, io, int32, int32)
    inputs = [tensor(*each) for each in zip(names, of_inputs, types, strict=False)]
    seq_len_q = tensor("seq_len_q", of_inputs[3], int32)
    q, k, v, seq_len_kv, *tables = inputs
    pages = {}
    for table in tables:
        pages = {"paged_attention_k_table": table, "paged_attention_v_table": table,
                 "paged_attention_max_seq_len_kv": keys}  # fmt: skip
    outputs = graph.sdpa(
        q=q, k=k, v=v, seq_len_q=seq_len_q, seq_len_kv=seq_len_kv, use_padding_mask=True,
        generate_stats=True, attn_scale=scale, name="attention", **pages,
    )  # fmt: skip
    for each, (shape, strides), kind in zip(outputs, (of_out, of_lse), (io, fp32), strict=True):
        each.set_output(True).set_dim(list(shape)).set_stride(list(strides)).set_data_type(kind)
    return graph, inputs, seq_len_q, outputs
