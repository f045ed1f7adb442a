"""A fresh process without Triton, NVRTC and Optuna, whose CPU stands for an H200: it plans and runs
calls from a bundle up to the driver, which is a stand-in, and prints a line of JSON for each:
`python -m tests.support.bundle_on_cpu FILE [frozen]`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.bundled_process import BLOCKED
from tests.support.processes import environment
from tests.support.tree import TREE

LENGTHS = (512, 513, 640, 1000, 77, 1024, 16, 1)
"""The numbers of queries and keys; the bundle has the first."""


def calls(bundle: Path, home: Path, *words: str) -> list[dict[str, Any]]:
    """The output of a process of its own."""
    command = [sys.executable, "-W", "error::UserWarning", "-m", __name__, str(bundle), *words]
    done = subprocess.run(command, cwd=TREE, env=environment(home), capture_output=True, text=True,
                          timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> None:
    """Runs the calls."""
    modules: dict[str, Any] = sys.modules
    modules.update(dict.fromkeys(BLOCKED))
    import torch

    import tunefa
    from tunefa.runtime import process
    from tunefa.runtime.call import Options, Tensors
    from tunefa.runtime.decode_call import CacheOptions, CacheTensors

    runtime, fake = process.current(), _stand_in()
    frozen = sys.argv[2:] == ["frozen"]
    tunefa.load(sys.argv[1], frozen=frozen)
    _device(runtime)
    kind = torch.bfloat16
    q, k = torch.zeros(2, 1024, 8, 128, dtype=kind), torch.zeros(2, 1024, 2, 128, dtype=kind)
    for length in LENGTHS[:1] if frozen else LENGTHS:
        own = Tensors(q[:, :length], k[:, :length], k[:, :length])
        plan = runtime.plan(own, Options(True))
        plan.run(own, None)
        _say(f"forward {length}", plan.chosen, fake)
        _backward(runtime, own, fake)
    single = Tensors(*torch.zeros(3, 1, 300, 4, 64))
    if not frozen:
        plan = runtime.plan(single, Options(True))
        plan.run(single, None)
        _say("forward 300", plan.chosen, fake)
    for batch, keys in ((4, 1024), (3, 1024), (9, 512)):
        cache = torch.zeros(batch * 16, 64, 2, 128, dtype=kind)
        table = torch.zeros(batch, keys // 64, dtype=torch.int32)
        given = CacheTensors(torch.zeros(batch, 1, 8, 128, dtype=kind), cache, cache,
                             torch.ones(batch, dtype=torch.int32), table)  # fmt: skip
        over = runtime.caches.plan(given, CacheOptions(), None)
        over.run(given, None, None)
        _say(f"decode {batch} {keys}", over.chosen, fake)
    print(json.dumps({"what": "imported", "found": sorted(
        name for name in sys.modules if name.partition(".")[0] in BLOCKED and sys.modules[name]
    ), "loaded": fake.loaded}))  # fmt: skip


def _backward(runtime: Any, tensors: Any, fake: Any) -> None:
    import torch

    from tunefa.measure.gradients import Gradients
    from tunefa.runtime.call import Options

    q = tensors.q
    lse = torch.zeros(q.shape[0], q.shape[2], q.shape[1])
    given = Gradients(torch.zeros_like(q), lse, torch.zeros_like(q), None)
    plan = runtime.backward_plan(tensors, Options(True), given)
    plan.gradients(tensors, given, None)
    _say(f"backward {q.shape[1]}", plan.chosen, fake)


def _say(what: str, chosen: Any, fake: Any) -> None:
    print(json.dumps({"what": what, "kernel": chosen.kernel, "how": chosen.how, "why": chosen.why,
                      "config": chosen.config, "started": len(fake.started)}))  # fmt: skip
    fake.started.clear()


def _stand_in() -> Any:
    """Puts a driver that remembers its calls in the place of CUDA's."""
    import torch

    from tests.support.fake_cuda import FakeCuda
    from tunefa.compile.languages import cuda
    from tunefa.compile.launch import driver, host_side
    from tunefa.compile.launch.driver import SeenDevice
    from tunefa.runtime import kernel_plan, tables

    fake, outside = FakeCuda([]), torch._C
    for place, name, value in (
        (driver, "load", lambda: fake.driver),
        (driver, "device", lambda index: SeenDevice("NVIDIA H200", (9, 0), 132, 141 * 2**30)),
        *((module, "apart", _here) for module in (host_side, kernel_plan, tables)),
        (kernel_plan, "_unread", lambda device, elements: torch.empty(elements)),
        (cuda, "_sizes", lambda driver, function, most: None),
        (outside, "_cuda_getDevice", lambda: -1),
        (torch.cuda, "current_stream", lambda device: None),
        (torch.Tensor, "record_stream", lambda self, stream: None),
    ):
        setattr(place, name, value)
    return fake


def _here(device: int, work: Any) -> Any:
    return work()


def _device(runtime: Any) -> None:
    import torch

    from tunefa.compile.launch import driver
    from tunefa.runtime.chip import Chip
    from tunefa.runtime.compiled import Compiler

    planner = runtime.planner
    chip = Chip.of_seen(driver.device(0))
    planner.devices[torch.device("cpu")] = (chip, Compiler(planner.bundles.find))


if __name__ == "__main__":
    main()
