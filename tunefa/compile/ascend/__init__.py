"""Huawei's kernel compiler, which runs without an NPU.

It has two parts: the front end (triton-ascend) lowers a Triton kernel to MLIR's linalg dialect; the
back end (bishengir-compile) compiles that and plans the memories of a core. They are installed in
their own environment, because triton-ascend would overwrite tunefa's Triton.

`pins`, `find_python`, `install`, `toolchain`: how they are installed, and where. `front_end`,
`front_end_process`, `back_end`: how they run. `compiler_report`: what they report. `cache`: reports
on disk.
"""
