"""Faults that spoil little of what a right kernel wrote: each takes (q, k, v, out, lse, ...)."""

from __future__ import annotations

from typing import Any


def one_row(tensors: Any) -> None:
    """One row of one head is 30 % too large."""
    tensors[3][0, 1, 5] *= 1.3


def one_head(tensors: Any) -> None:
    """The last head of the last sequence is 5 % too large."""
    tensors[3][-1, -1] *= 1.05


def beside_nan(tensors: Any) -> None:
    """A key behind the last one is read and multiplied by 0, as by a mask that is a product."""
    v, out = tensors[2], tensors[3]
    end = v.storage_offset() + v.shape[2] * v.stride(2)
    beyond = v.as_strided((*v.shape[:2], 1, v.shape[3]), v.stride(), end)
    out += 0.0 * beyond.repeat_interleave(out.shape[1] // v.shape[1], 1)


def positive_v(tensors: Any) -> None:
    """Sums of values of one sign lose 4 %, as in an accumulator that drops digits."""
    v, out = tensors[2], tensors[3]
    of_one_sign = (v.float() > 0).flatten(2).all(2).repeat_interleave(out.shape[1] // v.shape[1], 1)
    out[of_one_sign] *= 0.96


def falling_scores(tensors: Any) -> None:
    """Rows are too large whose scores are 40 nats lower at the last key than at the first."""
    q, k, out = (tensors[i].float() for i in (0, 1, 3))
    ends = k[:, :, [0, -1]].repeat_interleave(q.shape[1] // k.shape[1], 1)
    first, last = (q @ ends.transpose(2, 3) * q.shape[3] ** -0.5).unbind(3)
    tensors[3][first - last > 30.0] *= 1.5
    assert out.shape == tensors[3].shape


def lse_of_one_row(tensors: Any) -> None:
    """The logsumexp of one row is 0.01 too large."""
    tensors[4][1, 2, 7] += 0.01


def written_beside(tensors: Any) -> None:
    """A row is written behind the last one of the output."""
    out = tensors[3]
    end = out.storage_offset() + out.shape[2] * out.stride(2)
    out.as_strided((*out.shape[:2], 1, out.shape[3]), out.stride(), end).fill_(0.0)


def inputs_spoilt(tensors: Any) -> None:
    """One element of K is written."""
    tensors[1][0, 0, 3, 3] += 1.0
