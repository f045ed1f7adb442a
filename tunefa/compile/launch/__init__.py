"""Starts compiled kernels on tensors.

`driver`: libcuda through ctypes. `arguments`, `cuda_abi`, `triton_abi`: the parameters of a kernel.
`prepared`: launches that only renew addresses. `host_side`: the launch of a config, from its kernel
file's host side.
"""
