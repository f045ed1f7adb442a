r"""FlashAttention backward for Hopper in Gluon, in two passes: deterministic, up to head_dim 256.

    P = exp(scale * q @ k^T - lse)         dP = dout @ v^T         delta = rowsum(dout * out) - dlse
    dS = P * (dP - delta)    dq = scale * dS @ k    dk = scale * dS^T @ q    dv = P^T @ dout

Algorithm: Dao, "FlashAttention-2", arXiv:2307.08691, section 3.1.2, with its loop turned both ways,
as in PyTorch's FlexAttention (arXiv:2412.05496), and with the warp specialisation of Shah et al.,
"FlashAttention-3", arXiv:2407.08608. A call launches two kernels, one after the other:

    pass   a CTA owns                             it streams               it computes
    ----   ----------                             ----------               -----------
    dQ     64 * WARPGROUPS2 rows of a query head  K, V in blocks of keys   dQ, delta, lse_log2
    dKV    a block of keys of a KV head           Q, dO, delta, lse_log2   dK, dV

So S and dP are computed twice, seven products in all instead of five. In return, no sum is ever in
memory, which takes neither a kernel before that zeroes dQ nor one after that converts it, and every
launch on the same tensors gives the same bits.

What a CTA owns stays in shared memory, and its sums stay in registers, 64 rows in each consumer
warpgroup. One producer warp copies by TMA. A step of the dQ pass:

    producer                         consumer warpgroup
    --------                         ------------------
    K: wait empty, copy -----------> start S = Q K^T
    V: wait empty, copy -----------> start dP = dO V^T
                                     P = exp2(S - lse)
                        <- V empty - dS = P * (dP - delta), to registers
                                     start S of the next block
                        <- K empty - dQ += dS K

In a step of the dKV pass all is transposed, so that P^T and dS^T are left operands from registers:
dV += P^T dO and dK += dS^T Q. The dQ pass sums up delta while K and V are on their way, and writes
it, with lse in powers of two, for the dKV pass.

head_dim is padded to 64, 128 or 256 columns by TMA, which reads zeros beyond a tensor and writes
nothing there. The same holds for rows beyond seqlen_q and keys beyond seqlen_k; lse = inf makes P
of such rows 0, and those keys are masked. Causal means bottom-right aligned (FlashAttention >=
2.1): query i sees keys j <= i + seqlen_k - seqlen_q. A window that reaches `window_right` keys
beyond this diagonal is a causal mask with a diagonal further to the right, where each query sees
the last `window_keys` keys. In both passes the longest tiles start first.

This file is the host side, with gluon/host/query_gradients.py and gluon/host/key_gradients.py. The
device code is gluon/query_gradients.py and gluon/key_gradients.py.

What each parameter trades; names end in 1 for the dKV pass, and in 2 for the dQ pass:
    WARPGROUPS1, WARPGROUPS2    rows of a CTA, so less traffic, against CTAs: with one warpgroup,
                                two CTAs fit on an SM. In the dKV pass with 256 columns two
                                warpgroups share 64 keys: one computes dV, the other dK
    BLOCK_M1, BLOCK_N2          fewer, longer steps against registers and shared memory
    Q_STAGES1                   blocks of Q and of dO in flight against shared memory
    K_STAGES2, V_STAGES2        blocks of K, and of V, in flight against shared memory
    PREFETCH_S1, PREFETCH_S2    S of the next step is started 0: in that step; 1: before the last
                                product of this one; 2: before the exponentials of this one, which
                                takes more registers
    KV_IN_REGISTERS1            1: K and V are left operands from registers, which saves traffic of
                                shared memory
    Q_IN_REGISTERS2             1: likewise Q and dO in the dQ pass
    DEFER_ROW_LOADS1            lse and delta are loaded 0: before the products that they wait for;
                                1: delta after its product; 2: both after theirs, for fewer live
                                registers
    P_BYTES1                    256 columns: P between the warpgroups of the dKV pass in 4: fp32, 2:
                                fp16, for less traffic of shared memory
    PERSISTENT1, PERSISTENT2    1: a CTA works on several tiles, and loads early for the next one,
                                against a fixed distribution of the tiles; PERSISTENT1 takes
                                shared memory for a second K and V
    Q_STAGES2                   2: Q and dO of the next tile are loaded early too, against shared
                                memory
    DEPENDENT_LAUNCH            1: CTAs of the dKV pass start, and load K, where the dQ pass leaves
                                room (programmatic dependent launch)
    L2_SECTION_HEADS            causal: KV heads whose CTAs run together, so that what they share
                                stays in the L2 cache
"""

from tunefa.kernels.gluon.host import key_gradients, query_gradients
from tunefa.kernels.hopper.gradients import is_aligned  # noqa: F401 - a part of the contract


def variant(workload, config, aligned=True):
    """Returns what the compiler needs for the dKV pass of one config: a plain dict.

    The compiled kernels depend on no batch, head count or length, but on whether there are groups
    and whether blocks divide the lengths. TMA reads `aligned` tensors only.
    """
    return key_gradients.variant(workload, config, aligned)


def preprocess(workload, config):
    """The variant of the dQ pass."""
    return query_gradients.variant(workload, config)


def unordered(workload, config):
    """No output: each is summed by one CTA, in one order."""
    return ()


def scratch(tensors, spec):
    """The memory of (lse in powers of two, delta): `rows` numbers of each query head."""
    import torch  # importing it takes seconds, and compiling does not need it

    w = spec.workload
    size = w.batch * w.heads * query_gradients.rows(w)
    return ((size,), torch.float32), ((size,), torch.float32)


def preprocess_arguments(tensors, spec):
    """The grid and the arguments of the dQ pass; see `arguments`."""
    return query_gradients.arguments(tensors, spec)


def arguments(tensors, spec):
    """The grid and the arguments of the dKV pass, in the order of its signature.

    `tensors` = (q, k, v, out, lse, dout, dlse, dq, dk, dv), then the memory of `scratch`: q, out,
    dout, dq (batch, heads, seqlen_q, head_dim), k, v, dk, dv (batch, heads_kv, seqlen_k, head_dim),
    aligned, rows contiguous; lse and dlse (batch, heads, seqlen_q), fp32, lse contiguous. `scale`
    multiplies q @ k^T and is positive.
    """
    return key_gradients.arguments(tensors, spec)
