"""The workload: one attention problem, its text form, and the amount of work in it. Workloads of
other ops, such as `tunefa.spec.matmul.Matmul`, are read by `Workload.parse` too."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, cast

from tunefa.errors import TunefaError
from tunefa.spec import attended_pairs
from tunefa.spec.matmul import Matmul
from tunefa.spec.rounding import ceil_div
from tunefa.spec.sizes import parts_of
from tunefa.spec.workload_checks import check
from tunefa.spec.workload_parts import ACCURACIES as ACCURACIES
from tunefa.spec.workload_parts import (
    CACHE_OPS,
    FLAGS,
    MAX_MLA_DIMS,
    ROPE_DIM,
    SIDES,
    SIZES,
    parse_part,
)
from tunefa.spec.workload_parts import DTYPES as DTYPES


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One attention problem: forward (op `fwd`), backward (`bwd`), or over a cache of keys and
    values, with few queries (`decode`) or packed ones (`prefill`). `Workload.of` makes one from
    some of its fields.

    Shapes: q is (batch, heads, seqlen_q, head_dim), k is (batch, heads_kv, seqlen_k, head_dim), v
    is (batch, heads_kv, seqlen_k, head_dim_v).

    A causal mask is aligned to the bottom right, as in FlashAttention since 2.1: query i attends
    key j if j <= i + seqlen_k - seqlen_q. Key i + seqlen_k - seqlen_q is on the diagonal of query
    i. `window_left` and `window_right` are the numbers of keys that a query attends before and
    after its diagonal, as in FlashAttention's `window_size`. A causal mask excludes `window_right`.
    A window that hides no key becomes None, so that equal problems are equal workloads. The text
    form counts the diagonal as well: w4096 is a `window_left` of 4,095.

    `softcap` says that a score s becomes c * tanh(s / c) (Gemma 2, arXiv:2408.00118, section 2);
    the value of c is not part of a workload. `varlen` says that the sequences are packed one after
    the other; then seqlen_q and seqlen_k are those of the longest, and `lengths` gives all.

    Of the ops `decode` and `prefill`, k and v are a cache: `page_size` says how many keys a page of
    it has, None that it has none, which only `decode` allows. `varlen` says that sequences have
    different numbers of keys, and of `prefill` of queries. `sinks` says that each head has a
    learned logit beside its scores. `e4m3cache` says that keys and values are in e4m3, with
    factors, and the queries in `dtype`. `mla`, of `decode`, says that the values are the keys'
    first head_dim_v columns: absorbed multi-head latent attention (arXiv:2405.04434, 2.1.2).
    `prefix`, of `decode`, says that all sequences begin with the same pages, `prefix_keys` keys,
    and that kernels read them once. `batchvariant`, of `decode`, says that the bits of a sequence
    may depend on the other sequences of the batch.
    """

    op: str = "fwd"
    batch: int = 1
    heads: int = 32
    heads_kv: int = 8
    seqlen_q: int
    seqlen_k: int
    head_dim: int = 128
    head_dim_v: int = 128
    dtype: str = "bf16"
    causal: bool = True
    window_left: int | None = None
    window_right: int | None = None
    softcap: bool = False
    sinks: bool = False
    e4m3cache: bool = False
    mla: bool = False
    prefix: bool = False
    page_size: int | None = None
    varlen: bool = False
    deterministic: bool = False
    batchvariant: bool = False
    accuracy: str = ACCURACIES[0]

    tf32_products = 3
    """Products on the tensor cores for each product of fp32: three restore its accuracy."""
    smaller = "fewer or shorter sequences"

    def __post_init__(self) -> None:
        """Raises TunefaError if a field has a value that no kernel can serve."""
        check(self.__dict__)
        # A window hides no key if it reaches the last key from query 0, or key 0 from the last.
        for name, enough in zip(SIDES, (self.seqlen_k - 1, self.seqlen_q - 1), strict=True):
            value = getattr(self, name)
            if value is not None and value >= enough:
                object.__setattr__(self, name, None)  # the dataclass is frozen

    @classmethod
    def of(cls, **parts: Any) -> Workload:
        """Returns a workload from some of its fields; missing fields and None mean the default.

        `heads_kv` defaults to a given `heads`, `seqlen_k` to `seqlen_q`, `head_dim_v` to a given
        `head_dim`, `causal` to False if `window_right` is given, and `op` to `prefill` if
        `page_size` is. With `mla`, `heads_kv` defaults to 1, `head_dim` to 576 and `head_dim_v` to
        64 less. Raises TunefaError if `seqlen_q` is missing or a value is not valid.
        """
        given = {name: value for name, value in parts.items() if value is not None}
        if "page_size" in given:
            given.setdefault("op", "prefill")
        if given.get("op") == "decode":
            if "seqlen_k" not in given:
                raise TunefaError("seqlen_k is missing: give the number of keys, such as 8192")
            given.setdefault("seqlen_q", 1)
        if given.get("mla"):
            given.setdefault("heads_kv", 1)
            given.setdefault("head_dim", MAX_MLA_DIMS["head_dim"])
            if isinstance(given["head_dim"], int) and given["head_dim"] > 2 * ROPE_DIM:
                given.setdefault("head_dim_v", given["head_dim"] - ROPE_DIM)
        if "seqlen_q" not in given:
            raise TunefaError("seqlen_q is missing: give the number of query rows, such as 8192")
        pairs = (("heads", "heads_kv"), ("seqlen_q", "seqlen_k"), ("head_dim", "head_dim_v"))
        for name, follower in pairs:
            if name in given:
                given.setdefault(follower, given[name])
        if "window_right" in given:
            given.setdefault("causal", False)
        return cls(**given)

    @classmethod
    def parse(cls, text: str) -> Workload:
        """Returns the workload for a text such as `q4096` or `b4_h32_kv8_q1_k8k_d64_fp16_full`.

        The parts have any order; missing parts default as in `of`. Raises TunefaError, which quotes
        `text`, if a part is unknown, not valid or given twice, or if `q` is missing.

        The text of another op gives that op's own class, which lacks the fields of attention:
        code for all ops reads what every op has (docs/contributing.md).
        """
        if Matmul.is_text(text):
            return cast(Workload, Matmul.parse(text))
        try:
            parts = parts_of(text, parse_part)
            return cls.of(**parts)
        except TunefaError as error:
            raise TunefaError(f"workload {text!r}: {error}") from None

    def __str__(self) -> str:
        """Returns the canonical text, such as `fwd_b4_h32_kv8_q4096_k4096_d128_bf16_causal`."""
        parts = [self.op]
        parts += [f"{key}{getattr(self, SIZES[key])}" for key in ("b", "h", "kv", "q", "k", "d")]
        if self.head_dim_v != self.head_dim:
            parts.append(f"dv{self.head_dim_v}")
        parts += [self.dtype, "causal" if self.causal else "full"]
        if self.window_left is not None:
            parts.append(f"w{self.window_left + 1}")
        if self.window_right is not None:
            parts.append(f"a{self.window_right}")
        parts += [f"page{self.page_size}"] if self.page_size is not None else []
        parts += [flag for flag in FLAGS if getattr(self, flag)]
        parts += [self.accuracy] if self.accuracy != ACCURACIES[0] else []
        return "_".join(parts)

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.heads // self.heads_kv

    @property
    def band(self) -> tuple[int | None, int | None]:
        """(left, right): keys attended before and after the diagonal; None for all, 0 if causal."""
        return self.window_left, 0 if self.causal else self.window_right

    @property
    def is_aligned(self) -> bool:
        """Whether rows of contiguous tensors begin at multiples of 16 elements."""
        return self.head_dim % 16 == 0 and self.head_dim_v % 16 == 0

    @property
    def is_packed(self) -> bool:
        """Whether the query rows of all sequences follow one another: q is (rows, heads, head_dim),
        and the logsumexp (heads, rows)."""
        return self.op == "prefill" or (self.varlen and self.op != "decode")

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """(query rows, keys) of each sequence.

        Packed ones have 1 / batch, 2 / batch, ... 1 of the longest, in a fixed random order; of the
        op `decode` keys alone.
        """
        if not self.varlen:
            return [(self.seqlen_q, self.seqlen_k)] * self.batch
        chance = random.Random(0)
        shares = sorted(range(1, self.batch + 1), key=lambda _: chance.random())
        keys = [ceil_div(self.seqlen_k * share, self.batch) for share in shares]
        if self.op == "decode":
            return [(self.seqlen_q, each) for each in keys]
        rows = [ceil_div(self.seqlen_q * share, self.batch) for share in shares]
        return list(zip(rows, keys, strict=True))

    @property
    def rows_and_keys(self) -> tuple[int, int]:
        """Query rows and keys of all sequences: keys that a window leaves to some query (of all, a
        gradient is written), and those of a shared prefix once."""
        # A batch may have any number of sequences, so equal ones are not listed.
        lengths = self.lengths if self.varlen else [(self.seqlen_q, self.seqlen_k)]
        if self.op != "bwd" and self.window_left is not None:
            lengths = [(rows, min(keys, self.window_left + rows)) for rows, keys in lengths]
        times = 1 if self.varlen else self.batch
        rows, keys = (times * sum(each) for each in zip(*lengths, strict=True))
        return rows, keys - (self.batch - 1) * self.prefix_keys

    @property
    def prefix_keys(self) -> int:
        """Keys in the pages that all sequences share: half of the shortest one's, in whole pages;
        0 without `prefix`."""
        if not self.prefix or self.page_size is None:
            return 0
        shortest = min(keys for _, keys in self.lengths) if self.varlen else self.seqlen_k
        return shortest // 2 // self.page_size * self.page_size

    @property
    def dense_equivalent(self) -> Workload:
        """The same without packing, with about as many query rows and query-key pairs.
        Lengths evenly spread up to L have the mean L / 2 and the mean square L^2 / 3. So have 3 / 4
        as many sequences of length 2 / 3 L, in sum.
        """
        if not self.varlen:
            return self
        if self.op == "decode":
            keys = sum(keys for _, keys in self.lengths)
            return replace(self, seqlen_k=ceil_div(keys, self.batch), varlen=False)
        return replace(
            self,
            batch=max(1, round(self.batch * 3 / 4)),
            seqlen_q=ceil_div(self.seqlen_q * 2, 3),
            seqlen_k=ceil_div(self.seqlen_k * 2, 3),
            varlen=False,
        )

    @property
    def pairs(self) -> int:
        """Query-key pairs that one head attends: in one sequence, or in all packed sequences."""
        if self.varlen:
            return sum(
                replace(self, batch=1, seqlen_q=rows, seqlen_k=keys, varlen=False).pairs
                for rows, keys in self.lengths
            )
        return attended_pairs.count(self.seqlen_q, self.seqlen_k, *self.band)

    @property
    def kv_bytes(self) -> int:
        """Bytes of an element of k and v."""
        return DTYPES["e4m3" if self.e4m3cache else self.dtype]

    @property
    def kv_columns(self) -> int:
        """Elements of k and v for one key and KV head; with `mla` k has those of v."""
        return self.head_dim + (0 if self.mla else self.head_dim_v)

    @property
    def exp2_count(self) -> int:
        """Elements of the softmax over all heads; each takes one exp2."""
        return (1 if self.varlen else self.batch) * self.heads * self.pairs

    @property
    def tensor_names(self) -> str:
        """The tensors that a launch reads and writes, for messages."""
        if self.op == "bwd":
            return "Q, K, V, the output, the logsumexp and their gradients"
        if self.op in CACHE_OPS:
            return "Q, the cache, the output and the logsumexp"
        return "Q, K, V, the output and the logsumexp"

    @property
    def flops(self) -> int:
        """Floating-point operations of the matrix products, for attended pairs only.

        The forward pass has two products: Q K^T over head_dim, P V over head_dim_v. The backward
        pass has five: Q K^T again, dQ and dK over head_dim, dP and dV over head_dim_v. So it has
        2.5 times as many where the two head dimensions are equal.
        """
        of_dim, of_dim_v = (3, 2) if self.op == "bwd" else (1, 1)
        return 2 * self.exp2_count * (of_dim * self.head_dim + of_dim_v * self.head_dim_v)

    @property
    def io_bytes(self) -> int:
        """Bytes of q, k, v, the output and the fp32 logsumexp together; for the op `bwd` with those
        of their gradients, but for that of the logsumexp."""
        rows, keys = self.rows_and_keys
        rows, rows_kv, size = self.heads * rows, self.heads_kv * keys, DTYPES[self.dtype]
        inputs = rows * self.head_dim * size + rows_kv * self.kv_columns * self.kv_bytes
        both = inputs + rows * self.head_dim_v * max(size, 2)
        return both * (2 if self.op == "bwd" else 1) + 4 * rows

    def env(self) -> dict[str, Any]:
        """Returns what expressions may read: each field but `op`, and `group`, `dtype_bytes` and
        `kv_bytes`."""
        env = dict(self.__dict__)
        del env["op"]
        sizes = {"dtype_bytes": DTYPES[self.dtype], "kv_bytes": self.kv_bytes}
        return env | {"group": self.group, **sizes}
