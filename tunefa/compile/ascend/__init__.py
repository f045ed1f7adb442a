"""Huawei's compiler of kernels, without an NPU: what is installed, what it says of a tile.

It lives in an environment of its own, for its front end would overwrite the Triton of tunefa's.
"""
