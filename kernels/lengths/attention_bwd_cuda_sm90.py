"""The parts of the launches of attention_bwd_cuda_sm90 that follow the batch and the lengths."""

import torch
from tunefa.kernels.attention_bwd_cuda_sm90 import _FAR, _KEYS, _WARPGROUPS, lse_factor
from tunefa.kernels.lengths.decode_splits import steps

from tunefa.spec.rounding import round_up


def resized_gradients(workload, config, sms):
    """Returns what `tunefa.compile.launch.lengths` describes; None where it does not apply."""
    is_served = not workload.varlen and workload.band in ((None, None), (None, 0))
    return _Resized(workload, config, sms) if is_served else None


class _Resized:
    def __init__(self, workload, config, sms):
        self._splits = config["GROUP_SPLITS"]
        # A structure of strides has three numbers; a factor comes second in the first and the last
        # kernel.
        self.forms = "qf4x13q", "10q", "qf4x9q" if self._splits == 1 else "qf4x18q"
        self._heads, self._heads_kv = workload.heads, workload.heads_kv
        self._width = round_up(workload.head_dim, 16)
        self._block_m, self._columns = config["BLOCK_M"], round_up(workload.head_dim, 64)
        self._config, self._terms = config, (4,) if config["FOLD_ROW_TERMS"] else ()
        right = 0 if workload.causal else _FAR
        self._most_ctas = sms if config["PERSISTENT"] else 2**31
        self._section_heads = config["L2_SECTION_HEADS"] * self._splits
        self._right, self._window_keys = right, _FAR + 1 + right

    def variant(self, rows, keys):
        return keys % _KEYS != 0

    def decides(self, batch, rows, keys):
        return None

    def tables(self, batch, rows, keys, device):
        return ()

    def __call__(self, asked, tables):
        batch, rows, keys, (_, _, _, out, _, dout, dlse, dq, dk, dv), scale = asked
        heads, block_m = self._heads, self._block_m
        blocks = -(-rows // block_m)
        row_blocks = batch * heads * blocks
        whole = row_blocks * block_m
        factor = lse_factor(self._config, scale)
        edges = keys - rows + self._right, self._window_keys
        sizes = heads, rows, blocks, keys, *edges
        key_tiles, heads_kv = -(-keys // _KEYS), self._heads_kv * self._splits
        tiles = batch * heads_kv * key_tiles
        launches = (
            (
                row_blocks,
                (0, factor, heads, rows, rows, blocks, *steps(out), *steps(dout), *dlse[3:6]),
            ),
            (
                min(tiles, self._most_ctas),
                (0, heads, heads_kv, keys, *edges, blocks, self._section_heads, tiles, key_tiles),
            ),
            self._after(row_blocks, (0, scale, *sizes, *steps(dq)), key_tiles, tiles, dk, dv),
        )
        numbers = (whole, *self._terms), torch.float32
        sums = (whole, self._columns), torch.float32
        scratch = numbers, numbers, sums, ((row_blocks + 1, _WARPGROUPS, 2), torch.int32)
        if self._splits > 1:
            scratch += (((tiles, 2 * _KEYS, self._width), torch.float32),)
        return scratch, launches

    def _after(self, row_blocks, of_dq, key_tiles, tiles, dk, dv):
        """Returns the CTAs and the numbers of `write_dq`."""
        if self._splits == 1:
            return row_blocks, of_dq
        of_keys = self._heads_kv, key_tiles, row_blocks, *steps(dk), *steps(dv)
        return row_blocks + 2 * (tiles // self._splits), (*of_dq, *of_keys)
