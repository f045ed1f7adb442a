"""The list of packed sequences' tiles. A kernel writes it on the device: only the device knows the
lengths of the sequences, and they differ between replays of one CUDA graph.

CTAs take tiles from the front of the list as they finish (see tiles.py). Neighbours in the list are
worked on at the same time, so the order decides what the L2 cache holds:
* the sequences with most keys come first, as short ones at the end let all CTAs end together;
* inside a sequence come sections of heads whose K and V fit the cache, one after the other;
* inside a section come the last rows first, as they see most keys under a causal mask; for each
  block of rows come all heads of the section.
This takes no sort: how many tiles come before a tile is a sum over the sequences.
"""

from tunefa.spec.rounding import ceil_div, next_pow2

COLUMNS = 8
"""Fields of a tile: (query head, KV head, first query row in its sequence, where the sequence's
rows begin and how many there are, where its keys begin and how many there are, unused). The entry
that ends the list has the row -1."""
_TILES, _SEQUENCES, _HEADS = 32, 128, 16
"""How many of each a program of `pack_tiles` handles at once."""


def pack_tiles():
    """Returns the kernel, which imports Triton."""
    from tunefa.kernels.triton.pack_tiles import pack_tiles

    return pack_tiles


def preprocess(workload, config):
    """Returns the variant that writes the list; None where the host makes a table."""
    if not workload.varlen:
        return None
    constants = {
        "ROWS": 64 * config["WARPGROUPS"],
        "COLUMNS": COLUMNS,
        "TILES": _TILES,
        "SEQUENCES": _SEQUENCES,
        "HEADS": _HEADS,
    }
    pointers = ("cu_seqlens_q_ptr", "cu_seqlens_k_ptr", "schedule_ptr", "tiles_ptr")
    signature = dict.fromkeys(pointers, "*i32")
    signature |= dict.fromkeys(("bounds", "heads", "group", "section"), "i32")
    return {
        "function": pack_tiles,
        "signature": signature | dict.fromkeys(constants, "constexpr"),
        "constants": constants,
        "aligned": ["schedule_ptr", "tiles_ptr"],
        "options": {"num_warps": 4},
    }


def scratch(tensors, spec):
    """Returns shapes and dtypes of (schedule, tiles), see `pack_tiles`: each call has its own, as
    the tile counter is in them.

    `tensors` = (q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k). There is room for as many rows and
    sequences as the next powers of two.
    """
    import torch  # importing it takes seconds, and compiling does not need it

    tiles = _most_tiles(tensors, spec.config) * spec.workload.heads
    return ((2,), torch.int32), ((tiles + 1, COLUMNS), torch.int32)


def preprocess_arguments(tensors, spec):
    """Returns the grid and the arguments of `pack_tiles`.

    `tensors` are those of `scratch`, followed by the memory that it asks for.
    """
    workload, config = spec.workload, spec.config
    *_, cu_seqlens_q, cu_seqlens_k, schedule, tiles = tensors
    grid = (ceil_div(_most_tiles(tensors, config), _TILES), 1, 1)
    pointers = [cu_seqlens_q, cu_seqlens_k, schedule, tiles]
    section = config["L2_SECTION_MB"] * 2**20 // (2 * (workload.head_dim + workload.head_dim_v))
    sizes = [workload.heads, workload.group, section]
    constants = preprocess(workload, config)["constants"].values()
    return grid, [*pointers, (cu_seqlens_q, 0), *sizes, *constants]


def ctas(tiles, spec):
    """Returns how many CTAs work through a list with that much room."""
    return min(len(tiles) - 1, spec.sms)


def _most_tiles(tensors, config):
    """Returns how many tiles of one head such tensors can have: each sequence may have one that is
    not full."""
    rows = next_pow2(tensors[0].shape[0])
    batch = next_pow2(max(1, tensors[5].shape[0] - 1))
    return rows // (64 * config["WARPGROUPS"]) + batch
