"""Training on several ranks of one host, compared with one process: DDP, FSDP2 and DTensor.

Every function of `CHECKS` runs on each rank, and fails there. On the CPU the backend is gloo and
training is in fp32; on GPUs they are NCCL and bf16, by autocast.
"""

from __future__ import annotations

import datetime
import functools
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import tunefa
from tests.support import rank_processes

WORLD = 2
HEADS, HEADS_KV, HEAD_DIM, VOCABULARY = 4, 2, 64, 96
BATCH, SEQLEN, STEPS = 4, 160, 3
LIMITS = {"cpu": 1e-4, "cuda": 3e-2}
"""Limits of relative errors: sums in another order in fp32, and rounding to bf16."""
IMPORTED = (
    "torch._dynamo.backends.debugging",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "functorch.compile",
)
"""Modules of PyTorch that the checks need, in the process from which ranks are forked."""
Wrap = Callable[[nn.Module, str], nn.Module]


class _Layer(nn.Module):
    """Attention by tunefa, with two query heads on each KV head, and a feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        width = HEADS * HEAD_DIM
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, (HEADS + 2 * HEADS_KV) * HEAD_DIM)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Takes and returns (batch, seqlen, width)."""
        heads = self.qkv(self.norm_1(x)).unflatten(-1, (-1, HEAD_DIM))
        q, k, v = heads.split([HEADS, HEADS_KV, HEADS_KV], dim=2)
        x = x + self.out(tunefa.flash_attention(q, k, v, causal=True).flatten(2))
        made: Tensor = x + self.down(functional.gelu(self.up(self.norm_2(x))))
        return made


def _model(device: str) -> nn.Sequential:
    """A decoder of two layers, with equal weights in all processes."""
    torch.manual_seed(0)
    width = HEADS * HEAD_DIM
    embedding, head = nn.Embedding(VOCABULARY, width), nn.Linear(width, VOCABULARY)
    return nn.Sequential(embedding, _Layer(), _Layer(), head).to(device)


def _batches(device: str) -> Tensor:
    """(steps, batch, seqlen + 1) tokens, equal in all processes and steps, so that losses fall."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCABULARY, (BATCH, SEQLEN + 1), generator=generator)
    return tokens.to(device).expand(STEPS, -1, -1)


def _train(
    model: nn.Module, batches: Tensor, average: Callable[[Tensor], Tensor]
) -> tuple[list[float], dict[str, Tensor]]:
    """Returns the loss of each step, and all gradients of the first one."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses: list[float] = []
    first: dict[str, Tensor] = {}
    device = batches.device.type
    for tokens in batches:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        losses.append(float(average(loss.detach())))
        first = first or {_plain(name): _whole(p.grad) for name, p in model.named_parameters()}
        optimizer.step()
    return losses, first


def _plain(name: str) -> str:
    """A parameter's name without the prefixes of DDP and torch.compile."""
    return name.replace("module.", "").replace("_orig_mod.", "")


def _whole(grad: Tensor | None) -> Tensor:
    assert grad is not None
    return (grad.full_tensor() if isinstance(grad, DTensor) else grad).clone()


def _averaged(loss: Tensor) -> Tensor:
    dist.all_reduce(loss)
    return loss / WORLD


def _error(made: Tensor, right: Tensor) -> float:
    return float((made.float() - right.float()).norm() / right.float().norm())


@functools.cache
def _right(device: str) -> tuple[list[float], dict[str, Tensor]]:
    """The result of one process for whole batches, which all checks compare with."""
    return _train(_model(device), _batches(device), lambda loss: loss)


def _same_as_one_process(wrap: Wrap, device: str) -> None:
    """Trains on a rank's part of each batch, and compares with the whole batch in this process."""
    batches = _batches(device)
    right_losses, right = _right(device)
    part = batches.chunk(WORLD, dim=1)[dist.get_rank()]
    losses, grads = _train(wrap(_model(device), device), part, _averaged)
    limit = LIMITS[device]
    assert losses[-1] < losses[0]
    for mine, theirs in zip(losses, right_losses, strict=True):
        assert abs(mine - theirs) <= limit / 4 * abs(theirs), (losses, right_losses)
    assert grads.keys() == right.keys()
    for name, grad in grads.items():
        assert _error(grad, right[name]) <= limit, (name, _error(grad, right[name]))


def _ddp(model: nn.Module, device: str) -> nn.Module:
    return DistributedDataParallel(model)


def _compiled_ddp(model: nn.Module, device: str) -> nn.Module:
    backend = "inductor" if device == "cuda" else "aot_eager"
    compiled: Any = torch.compile(model, fullgraph=True, backend=backend)
    return DistributedDataParallel(compiled)


def _fsdp(model: nn.Module, device: str) -> nn.Module:
    mesh = init_device_mesh(device, (WORLD,))
    assert isinstance(model, nn.Sequential)
    for layer in (model[1], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def ddp(device: str) -> None:
    """DistributedDataParallel: losses and gradients are those of one process."""
    _same_as_one_process(_ddp, device)


def compiled_ddp(device: str) -> None:
    """A model compiled as one graph within DistributedDataParallel, in the same way."""
    _same_as_one_process(_compiled_ddp, device)


def fsdp(device: str) -> None:
    """fully_shard of each layer and of the rest, in the same way."""
    _same_as_one_process(_fsdp, device)


def tensors(device: str) -> None:
    """DTensors sharded by batch, heads and seqlen: outputs and gradients are those of tensors."""
    mesh = init_device_mesh(device, (WORLD,))
    generator = torch.Generator().manual_seed(2)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    heads = (HEADS, HEADS_KV, HEADS_KV, HEADS)
    q, k, v, grad = (
        torch.randn(BATCH, SEQLEN, n, HEAD_DIM, generator=generator).to(device, dtype)
        for n in heads
    )
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out, lse = tunefa.flash_attention(*leaves, causal=True, return_lse=True)
    right = (out, lse, *torch.autograd.grad((out, lse.sum()), leaves, (grad, None)))
    for axis, kept in ((0, (0,)), (2, (2,)), (1, (0, 2))):
        parts = [distribute_tensor(x.detach(), mesh, [Shard(axis)]) for x in (*leaves, grad)]
        shards = [part.requires_grad_() for part in parts[:3]]
        out, lse = tunefa.flash_attention(*shards, causal=True, return_lse=True)
        grads = torch.autograd.grad((out, lse.sum()), shards, (parts[3], None))
        assert isinstance(out, DTensor)
        # Which placement a split sequence is brought to differs between PyTorch's versions.
        allowed = [*map(Shard, kept), *([Replicate()] if axis == 1 else [])]
        assert out.placements[0] in allowed, out.placements
        for name, mine, theirs in zip(
            ("out", "lse", "dq", "dk", "dv"), (out, lse, *grads), right, strict=True
        ):
            error = _error(_whole(mine.detach()), theirs.detach())
            assert error <= LIMITS[device], (axis, name, error)


def packed_with_sinks(device: str) -> None:
    """Packed sequences with sinks, sharded by heads."""
    mesh = init_device_mesh(device, (WORLD,))
    generator = torch.Generator().manual_seed(3)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    q, k, v = (
        torch.randn(SEQLEN, n, HEAD_DIM, generator=generator).to(device, dtype)
        for n in (HEADS, HEADS_KV, HEADS_KV)
    )
    sinks = torch.randn(HEADS, generator=generator).to(device)
    starts = torch.tensor([0, SEQLEN // 3, SEQLEN - 2], dtype=torch.int32, device=device)
    leaves = [x.requires_grad_() for x in (q, k, v, sinks)]
    call = functools.partial(tunefa.flash_attention_varlen, causal=True)
    lengths = SEQLEN, SEQLEN
    out = call(*leaves[:3], starts, starts, *lengths, sinks=leaves[3])[: SEQLEN - 2]
    right = out, *torch.autograd.grad(out.sum(), leaves)
    axes = (1, 1, 1, 0)
    shards = [
        distribute_tensor(x.detach(), mesh, [Shard(axis)]).requires_grad_()
        for x, axis in zip(leaves, axes, strict=True)
    ]
    at = distribute_tensor(starts, mesh, [Replicate()])
    made = call(*shards[:3], at, at, *lengths, sinks=shards[3])[: SEQLEN - 2]
    grads = torch.autograd.grad(made.sum(), shards)
    for name, mine, theirs in zip(
        ("out", "dq", "dk", "dv", "dsinks"), (made, *grads), right, strict=True
    ):
        error = _error(_whole(mine.detach()), theirs.detach())
        assert error <= LIMITS[device], (name, error)


CHECKS: Mapping[str, Callable[[str], None]] = {
    "ddp": ddp,
    "compiled_ddp": compiled_ddp,
    "fsdp": fsdp,
    "tensors": tensors,
    "packed_with_sinks": packed_with_sinks,
}


def run(checks: Iterable[str], device: str) -> None:
    """Runs checks on `WORLD` ranks, each a process; raises what one of them raises."""
    with tempfile.TemporaryDirectory() as folder:
        rank_processes.start(_rank, (tuple(checks), device, folder), WORLD, device, IMPORTED)


def _rank(rank: int, checks: Iterable[str], device: str, folder: str) -> None:
    os.environ["TUNEFA_HOME"] = folder
    backend, store = "gloo", f"file://{folder}/store"
    if device == "cuda":
        backend = "nccl"
        torch.cuda.set_device(rank)
    torch.set_num_threads(1)
    limit = datetime.timedelta(minutes=4)
    dist.init_process_group(backend, store, limit, WORLD, rank)
    try:
        for check in checks:
            CHECKS[check](device)
    finally:
        dist.destroy_process_group()
