"""What differs between the Gluon of Triton 3.6 and that of 3.9, under one name each.

Kernels import these from here; all else of Gluon that they use is the same in 3.6 to 3.9.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.language import core

aggregate = getattr(gluon, "aggregate", None) or core._aggregate
"""Class decorator: a value of several fields that device functions pass around as one."""

barrier = getattr(gl, "barrier", None) or gl.thread_barrier
"""All threads of this partition meet."""

copy_in = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
"""A TMA copy into shared memory that completes on an mbarrier."""

copy_out = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
"""A TMA copy out of shared memory."""
