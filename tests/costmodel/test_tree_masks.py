"""tunefa/costmodel/tree_masks.py: sums of trees for rows in which most features are fixed."""

from __future__ import annotations

import numpy as np

from tunefa.costmodel import learned
from tunefa.costmodel.learned import Trees
from tunefa.costmodel.tree_masks import TreeMasks


def test_the_sums_are_those_of_the_trees() -> None:
    model = learned.shipped("attention_fwd_cuda_sm90", "sm90")
    assert model is not None
    trees, chance = model.trees, np.random.default_rng(0)
    free = [14, 20, 31, 40]
    # Thresholds themselves go left, and the next number goes right.
    some = chance.choice(trees.threshold[np.isfinite(trees.threshold)], (300, len(model.names)))
    rows = np.where(chance.random(some.shape) < 0.5, some, np.nextafter(some, np.float32(np.inf)))
    rows = rows.astype(np.float32)
    fixed = [place for place in range(len(model.names)) if place not in free]
    rows[:, fixed] = rows[0, fixed]
    masks = TreeMasks(trees, dict(zip(fixed, rows[0, fixed].tolist(), strict=True)), free)
    assert 0 < masks.leaves < len(trees.feature)
    found = [masks.total(row) for row in rows[:, free].tolist()]
    np.testing.assert_allclose(found, trees.total(rows), rtol=0, atol=1e-12)
    assert len({round(each, 6) for each in found}) > 1


def test_where_everything_is_fixed_there_is_one_sum() -> None:
    split = np.array([[1, 2], [1, 1], [2, 2]], np.int32)
    trees = Trees(
        1, 1, np.zeros(3, np.int16), np.array([0.5, np.inf, np.inf], np.float32), split,
        np.array([0.0, 3.0, 4.0], np.float32),
    )  # fmt: skip
    assert TreeMasks(trees, {0: 0.5}, []).total([]) == 3.0
    assert TreeMasks(trees, {0: 0.6}, []).total([]) == 4.0
    assert [TreeMasks(trees, {}, [0]).total([x]) for x in (0.5, 0.6)] == [3.0, 4.0]
