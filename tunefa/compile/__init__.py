"""Compiles configs to binaries, and prepares binaries for launching.

`contract`: the types that all languages share. `languages`: Triton, Gluon, CUDA C++ and Ascend.
`nvrtc` and `cubin_cache`: the CUDA compiler and its results on disk. `ascend`: Huawei's compiler.
`pool` and `workers`: compiling in parallel processes. `launch`: starting kernels. `provenance`:
the versions that a result was made with.
"""
