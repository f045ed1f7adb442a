"""Batches of requests over SGLang's pools, and steps of a layer over them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.support import vllm_batches as texts
from tests.support.vllm_batches import Lengths, Sizes
from tunefa.measure.attention_inputs import E4M3

CONTEXT = 128
"""The most keys of a request in tests on the CPU."""


class Cache(NamedTuple):
    """The properties of a cache: its dtype, the device, the most keys of a request, and whether
    layer 1 has its keys in a second pool."""

    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    context: int = CONTEXT
    two_pools: bool = False


PLAIN = Cache()


class Step:
    """A step of a model with two layers: SGLang's runner, its batch, and keys and values that were
    in the cache before."""

    def __init__(
        self, names: Any, lengths: Lengths, mode: str, sizes: Sizes, cache: Cache = PLAIN
    ) -> None:
        self.names, self.lengths, self.sizes, self.cache = names, lengths, sizes, cache
        compute = torch.bfloat16 if cache.dtype == E4M3 else cache.dtype
        made = texts.texts(lengths, compute, sizes, cache.device)
        self.kept = [(k + 0.1, v + 0.1) for k, v in made]
        self.runner = self._runner(compute)
        self.batch = self._batch(mode)
        rows = sum(new for new, _ in lengths)
        self.q = torch.randn(rows, sizes.heads, sizes.head_dim).to(cache.device, compute)

    def _runner(self, compute: torch.dtype) -> Any:
        """Returns what the backend reads of SGLang's ModelRunner, with pools of two layers."""
        names, sizes, cache, device = self.names, self.sizes, self.cache, self.cache.device
        requests, page = len(self.lengths), sizes.page_size
        size = sum(-(-keys // page) * page for _, keys in self.lengths)
        shape = page, cache.dtype, sizes.heads_kv, sizes.head_dim
        if cache.two_pools:
            pool = names.SWAKVPool(size, size, *shape, [1], [0], device)
            # Page 0 is nobody's in both; the last entry stands for slots of -1.
            pages = 1 + torch.randperm(size // page)
            slots = pages[:, None] * page + torch.arange(page)
            mapping = torch.cat([torch.arange(page), slots.flatten(), torch.tensor([-1])])
            pool.register_mapping(mapping.to(device))
        else:
            pool = names.MHATokenToKVPool(size, *shape, 2, device, False)
        rows = names.ReqToTokenPool(requests, cache.context, device, False)
        config = SimpleNamespace(
            is_encoder_decoder=False, attention_chunk_size=None, head_dim=sizes.head_dim
        )
        config.v_head_dim = sizes.head_dim
        return SimpleNamespace(
            model_config=config,
            req_to_token_pool=rows,
            token_to_kv_pool=pool,
            page_size=page,
            device=device,
            dtype=compute,
            kv_cache_dtype=cache.dtype,
            kv_cache_dtype_str="auto",
            use_mla_backend=False,
            spec_algorithm=SimpleNamespace(is_none=lambda: True),
            kv_index_translator=SimpleNamespace(is_translating=False),
        )

    def _batch(self, mode: str) -> Any:
        """SGLang's ForwardBatch, with pages that are given out in no sequence."""
        page, device, table = self.sizes.page_size, self.cache.device, self.slots_of_requests
        new, keys = (list(each) for each in zip(*self.lengths, strict=True))
        needed = [-(-each // page) for each in keys]
        numbers = torch.split(1 + torch.randperm(sum(needed)), needed)
        places = []
        for row, (own, count) in enumerate(zip(numbers, keys, strict=True), 1):
            slots = (own[:, None] * page + torch.arange(page)).flatten()[:count]
            table[row, :count] = slots.to(table)
            places.append(slots[count - new[row - 1] :])
        before = [count - each for each, count in self.lengths]
        return self.names.ForwardBatch(
            forward_mode=getattr(self.names.ForwardMode, mode),
            batch_size=len(keys),
            input_ids=torch.zeros(sum(new), dtype=torch.int64, device=device),
            req_pool_indices=torch.arange(1, len(keys) + 1, device=device),
            seq_lens=torch.tensor(keys, device=device),
            out_cache_loc=torch.cat(places).to(device),
            seq_lens_sum=sum(keys),
            seq_lens_cpu=torch.tensor(keys),
            extend_seq_lens=torch.tensor(new, dtype=torch.int32, device=device),
            extend_seq_lens_cpu=new,
            extend_prefix_lens=torch.tensor(before, dtype=torch.int32, device=device),
            extend_prefix_lens_cpu=before,
        )

    @property
    def slots_of_requests(self) -> Tensor:
        """SGLang's table of slots, (requests + 1, tokens): row 0 is nobody's."""
        table: Tensor = self.runner.req_to_token_pool.req_to_token
        return table

    def layer(self, number: int = 0, **given: Any) -> Any:
        """A layer of the model."""
        made = self.names.RadixAttention(
            self.sizes.heads, self.sizes.head_dim, 0.3, self.sizes.heads_kv, number, **given
        )
        if self.cache.dtype == E4M3:
            made.k_scale, made.v_scale = (
                torch.tensor([each], device=self.cache.device) for each in (0.02, 0.05)
            )
        return made

    def fill(self, layer: Any) -> tuple[Tensor, Tensor]:
        """Writes the keys of a layer that were there before, and returns those of new tokens."""
        pool, starts = self.runner.token_to_kv_pool, self.described.query_start_loc_cpu.tolist()
        for row, (k, v) in enumerate(self.kept, 1):
            old = len(k) - (starts[row] - starts[row - 1])
            slots = self.slots_of_requests[row, :old].long()
            mapping = getattr(pool, "full_to_swa_index_mapping", None)
            more = {} if mapping is None else {"swa_loc": mapping[slots]}
            place = self.names.KVWriteLoc(slots, **more)
            pool.set_kv_buffer(
                layer, place, k[:old].clone(), v[:old].clone(), layer.k_scale, layer.v_scale
            )
        return texts.new_rows(self.described, self.kept)

    @property
    def described(self) -> Any:
        """Returns where the rows of each request begin."""
        starts = torch.tensor([0, *(new for new, _ in self.lengths)]).cumsum(0)
        return SimpleNamespace(query_start_loc_cpu=starts, num_actual_tokens=int(starts[-1]))

    def run(self, backend: Any, layer: Any, **more: Any) -> Tensor:
        """Computes a layer as SGLang does. Returns (tokens, heads, head_dim)."""
        k, v = self.fill(layer)
        backend.init_forward_metadata(self.batch)
        out: Tensor = backend.forward(self.q.flatten(1), k, v, layer, self.batch, True, **more)
        return out.view(len(out), self.sizes.heads, -1)

    def expected(self, **mask: Any) -> Tensor:
        """The same in fp64, (tokens, heads, head_dim)."""
        kept: Any = self.kept
        if self.cache.dtype == E4M3:
            pairs = [zip(each, (0.02, 0.05), strict=True) for each in kept]
            kept = [[(x / f).to(E4M3).double() * f for x, f in each] for each in pairs]
        return texts.expected(self.q.cpu(), self.described, kept, **{"scale": 0.3, **mask})
