"""A kernel that needs a table on the device, as persistent kernels need their schedule."""

from __future__ import annotations

from tests.support.own_kernels import OwnKernels
from tunefa.spec.kernel import Kernel


def tabled(own_kernels: OwnKernels, name: str) -> Kernel:
    """tunefa's own kernel with a table of ones on the device that it multiplies its output by."""

    def change(source: str) -> str:
        source = source.replace("import math\n", "import math\n\nimport torch\n", 1)
        source = source.replace(
            '"q_ptr": f"*{kind}",', '"table_ptr": "*fp32", "q_ptr": f"*{kind}",'
        )
        source = source.replace("return grid, [q, ", "return grid, [_table(q), q, ")
        return source + (
            "\n\ndef _table(q):\n    return torch.tensor([1.0] * 4096, device=q.device)\n"
        )

    def change_device_code(source: str) -> str:
        source = source.replace("    q_ptr, k_source,", "    table_ptr, q_ptr, k_source,")
        return source.replace(
            "    acc = _finish(",
            "    acc = acc * tl.load(table_ptr + tile % 4096)\n    acc = _finish(",
        )

    return own_kernels.add_attention(name, change, device=change_device_code)
