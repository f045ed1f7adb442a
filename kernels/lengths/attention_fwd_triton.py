"""What of a launch of attention_fwd_triton follows the batch and the lengths."""


def resized(workload, config, sms):
    """Returns what `tunefa.compile.launch.lengths` describes; None where it does not apply."""
    if workload.varlen or workload.dtype == "e4m3":
        return None
    return _Resized(workload, config)


class _Resized:
    def __init__(self, workload, config):
        self._heads, self._block_m = workload.heads, config["BLOCK_M"]
        self._packed = workload.group if config["PACK_GQA"] else 1

    def variant(self, rows, keys):
        return None

    def decides(self, batch, rows, keys):
        return None

    def tables(self, spec, device):
        return ()

    def numbers(self, batch, rows, keys, sizes, tables):
        tiles = -(-rows * self._packed // self._block_m)
        heads = batch * self._heads // self._packed
        q, k, v, out = sizes
        steps = *q[4:7], *k[4:7], *v[4:7], *out[4:7]
        return tiles * heads, (*steps, self._heads, rows, keys, tiles, heads)
