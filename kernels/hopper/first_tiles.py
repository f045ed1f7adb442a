"""The tables of hopper/tile_table.py for kernels that know their first tile after one load."""

import numpy as np
from tunefa.kernels.hopper import tile_table


def tables(spec, device):
    """Returns (schedule, tiles). `tiles` is that of `tile_table.tables`; so is `schedule` without
    DEPENDENT_LAUNCH.

    With DEPENDENT_LAUNCH row i of `schedule` is (first row of `tiles`, cluster row of the first
    tile, 0, 0, and the first tile itself), for CTA i. The cluster row is the first query row of the
    cluster's tile that sees the most keys. The last row has the end of `tiles`, and zeros.
    """
    if not spec.config["DEPENDENT_LAUNCH"]:
        return tile_table.tables(spec, device)
    key = "first tiles", tile_table._key(spec.workload, spec.config, spec.sms)
    return spec.table(key, lambda: _tables(spec, device))


def _tables(spec, device):
    """Returns new `tables`."""
    import torch  # importing it takes seconds, and compiling does not need it

    schedule, tiles = tile_table._tables(spec, "cpu")
    ends, table, cluster = schedule.numpy(), tiles.numpy(), spec.config["CLUSTER_SIZE"]
    begins, counts = ends[:-1], np.diff(ends)
    ranks = np.arange(len(begins)) % cluster
    made = np.zeros((len(ends), 8), dtype=np.int32)
    made[:, 0] = ends
    made[:-1, 1] = table[begins + (cluster - 1 - ranks) * counts, 3]
    made[:-1, 4:] = table[begins]
    return torch.from_numpy(made).to(device), tiles.to(device)
