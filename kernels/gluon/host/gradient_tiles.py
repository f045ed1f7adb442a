"""Which tiles the persistent CTAs of attention_bwd_two_pass_gluon_sm90.py work on."""

import heapq


def table(costs, ctas, device):
    """Returns the tiles of each CTA as one int32 tensor: those of CTA i are numbers [i] to [i + 1]
    of it, counted from its start. One number more is read, and not used.

    `costs` are those of all tiles, in the order in which they should start. Each goes to the CTA
    with the least work so far, as it would with one CTA for each tile; so the order in which tiles
    share the L2 cache stays, too.
    """
    import torch  # importing it takes seconds, and compiling does not need it

    lists = _shares(costs, ctas)
    flat, ends = [], [ctas + 1]
    for tiles in lists:
        flat += tiles
        ends.append(ctas + 1 + len(flat))
    return torch.tensor([*ends, *flat, 0], dtype=torch.int32).to(device)


def costs(of_block, heads, section_heads):
    """Returns what each tile costs, by its number: `of_block` are the costs of a head's tiles.

    Tiles are numbered in sections of `section_heads` heads, in a section first by their place in
    `of_block`, as under a causal mask. With other masks all tiles cost the same.
    """
    made = []
    for first in range(0, heads, section_heads):
        for cost in of_block:
            made += [cost] * min(section_heads, heads - first)
    return made


def _shares(costs, ctas):
    """Returns the list of tiles of each CTA."""
    lists = [[] for _ in range(ctas)]
    heap = [(0, cta) for cta in range(ctas)]
    for tile, cost in enumerate(costs):
        busy, cta = heapq.heappop(heap)
        lists[cta].append(tile)
        heapq.heappush(heap, (busy + cost, cta))
    return lists
