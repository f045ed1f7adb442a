"""Runs a warp-specialised Gluon kernel on the CPU: a thread for each partition of a CTA.

Layouts are ignored. What the hardware does in the background happens as late as it may: a product
reads shared memory when it is waited for, and a TMA store when its buffer is. So a buffer that is
overwritten too early gives wrong numbers, and a wait that nobody ends is a timeout.
"""

from __future__ import annotations

import importlib
import math
import random
import threading
import time
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tests.support.gluon_pointers import pointer

TIMEOUT_S = 10.0
NOTHING = (
    *("wgmma_layout", "operand_layout", "row_layout", "contiguous_layout"),
    *("fence_async_shared", "gdc_wait", "gdc_launch_dependents"),
)
"""Functions that have nothing to do here."""


class Registers(torch.Tensor):
    """A tensor in registers."""

    type: Any = SimpleNamespace(layout=None)


def registers(value: Any) -> Any:
    return value.as_subclass(Registers) if isinstance(value, Tensor) else value


class Shared:
    """A view of shared memory."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.dtype, self.shape = tensor, tensor.dtype, list(tensor.shape)

    def index(self, place: int) -> Shared:
        assert 0 <= place < self.shape[0]
        return Shared(self.tensor[place])

    def slice(self, start: int, length: int, dim: int = 0) -> Shared:
        return Shared(self.tensor.narrow(dim, start, length))

    def permute(self, places: tuple[int, ...]) -> Shared:
        return Shared(self.tensor.permute(places))

    def reshape(self, shape: list[int]) -> Shared:
        return Shared(self.tensor.view(shape))

    def load(self, layout: Any) -> Any:
        return registers(self.tensor.clone())

    def store(self, value: Any) -> None:
        assert value.dtype == self.dtype and list(value.shape) == self.shape
        self.tensor.copy_(value)


class Barrier:
    """An mbarrier: a phase ends when all arrivals and all bytes are there."""

    def __init__(self, arrivals: int) -> None:
        self.arrivals, self.left, self.bytes, self.phases = arrivals, arrivals, 0, 0
        self.changed = threading.Condition()

    def update(self, arrivals: int, count: int) -> None:
        with self.changed:
            self.left, self.bytes = self.left - arrivals, self.bytes + count
            assert self.left >= 0
            if self.left == self.bytes == 0:
                self.left, self.phases = self.arrivals, self.phases + 1
                self.changed.notify_all()

    def wait(self, parity: int) -> None:
        with self.changed:
            done = self.changed.wait_for(lambda: self.phases & 1 != parity, TIMEOUT_S)
        assert done, "a barrier is never completed"


class Barriers:
    """An array of barriers."""

    def __init__(self, count: int, arrivals: int) -> None:
        self._barriers = [Barrier(arrivals) for _ in range(count)]

    def index(self, place: int) -> Barrier:
        return self._barriers[place]


class Descriptor:
    """A TMA descriptor: zeros are read beyond the tensor, and nothing is written there."""

    def __init__(self, tensor: Tensor, box: tuple[int, ...]) -> None:
        self.tensor, self.dtype = tensor, tensor.dtype
        nbytes = math.prod(box) * tensor.element_size()
        self.block_type = SimpleNamespace(shape=list(box), nbytes=nbytes)

    def parts(self, coordinates: tuple[int, ...], tile: Tensor) -> tuple[Tensor, Tensor]:
        """The parts of the tensor and of a tile that lie on each other."""
        part = self.tensor
        for axis, (start, size) in enumerate(zip(coordinates, tile.shape, strict=True)):
            inside = max(0, min(size, part.shape[axis] - start))
            part = part.narrow(axis, min(start, part.shape[axis]), inside)
            tile = tile.narrow(axis, 0, inside)
        return part, tile


class Product:
    """A matrix product in flight."""

    def __init__(self, a: Any, b: Any, sums: Any, use_acc: bool) -> None:
        self.a, self.b, self.sums, self.use_acc = a, b, sums, use_acc
        self.value: Any = None

    def finish(self) -> None:
        a, b = (x.tensor if isinstance(x, Shared) else x for x in (self.a, self.b))
        made = a.float() @ b.float()
        if self.use_acc:
            made = made + (self.sums.value if isinstance(self.sums, Product) else self.sums)
        self.value = registers(made)


class Cta(threading.local):
    """The copies and products that a partition has in flight."""

    def __init__(self) -> None:
        self.products: list[Product] = []
        self.stores: list[Any] = []


class Device:
    """The functions of Gluon that a kernel calls, for one CTA at a time."""

    def __init__(self) -> None:
        self.cta, self.ctas = 0, 1
        self.in_flight = Cta()
        self._modules: dict[str, dict[str, Any]] = {}

    def names(self) -> dict[str, Any]:
        """Stand-ins for the names of Gluon and of kernels/gluon that touch the hardware."""
        gl = SimpleNamespace(
            constexpr=object, tensor=object, float32=torch.float32, float16=torch.float16,
            static_range=range, exp2=torch.exp2, sum=torch.sum, maximum=max, minimum=min,
            zeros=lambda shape, dtype, layout: registers(torch.zeros(shape, dtype=dtype)),
            arange=lambda start, end, layout: registers(torch.arange(start, end)),
            where=lambda which, a, b: (a if which else b) if isinstance(which, bool)
            else torch.where(which, a, b),
            convert_layout=lambda x, layout, assert_trivial=False: x,
            load=lambda at, mask=None, other=0.0: registers(at.load(mask, other)),
            store=lambda pointers, value, mask: pointers.store(value, mask),
            SliceLayout=lambda *_: None, DistributedLinearLayout=lambda *_: None,
            NVMMASharedLayout=SimpleNamespace(get_default_for=lambda *_: None),
            program_id=lambda axis: self.cta, num_programs=lambda axis: self.ctas,
            allocate_shared_memory=lambda dtype, shape, layout: self.memory(shape, dtype),
            warp_specialize=self.warp_specialize,
        )  # fmt: skip
        return {
            "gl": gl,
            "mbarrier": SimpleNamespace(
                wait=lambda barrier, parity, pred=True: barrier.wait(parity) if pred else None,
                arrive=self.arrive,
                expect=lambda barrier, count: barrier.update(1, count),
            ),
            "tma": SimpleNamespace(store_wait=self.store_wait),
            "warpgroup_mma": self.start_product,
            "warpgroup_mma_wait": self.wait_products,
            "copy_in": self.copy_in,
            "copy_out": lambda *store: self.in_flight.stores.append(store),
            "new_barriers": Barriers,
            "new_tiles": lambda desc, count: self.memory(
                [count, *desc.block_type.shape], desc.dtype
            ),
            **dict.fromkeys(NOTHING, lambda *_: None),
        }

    def memory(self, shape: list[int], dtype: torch.dtype) -> Shared:
        return Shared(torch.full(shape, math.nan, dtype=dtype))

    def arrive(self, barrier: Barrier, count: int) -> None:
        if random.random() < 0.2:  # lets partitions overtake one another
            time.sleep(random.random() * 1e-3)
        barrier.update(count, 0)

    def start_product(
        self, a: Any, b: Any, sums: Any, use_acc: bool = True, is_async: bool = False
    ) -> Product:
        assert is_async
        made = Product(a, b, sums, use_acc)
        self.in_flight.products.append(made)
        return made

    def wait_products(self, left: int, products: list[Product]) -> Any:
        waiting = self.in_flight.products
        while len(waiting) > left:
            waiting.pop(0).finish()
        (product,) = products
        assert product.value is not None, "it is still in flight"
        return product.value

    def copy_in(self, desc: Descriptor, at: tuple[int, ...], barrier: Barrier, to: Shared) -> None:
        to.tensor.zero_()
        part, tile = desc.parts(at, to.tensor)
        tile.copy_(part)
        barrier.update(0, -desc.block_type.nbytes)

    def store_wait(self, left: int) -> None:
        waiting = self.in_flight.stores
        while len(waiting) > left:
            desc, at, tile = waiting.pop(0)
            to, value = desc.parts(at, tile.tensor)
            to.copy_(value)

    def warp_specialize(self, partitions: list[Any], warps: list[int], numbers: list[int]) -> None:
        failures: list[BaseException] = []

        def run(function: Any, arguments: tuple[Any, ...]) -> None:
            try:
                function(*arguments)
                self.store_wait(0)
                assert not self.in_flight.products
            except BaseException as error:  # any of them is raised below
                failures.append(error)

        threads = [threading.Thread(target=run, args=each, daemon=True) for each in partitions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * TIMEOUT_S)
        if failures:
            raise failures[0]
        assert not any(thread.is_alive() for thread in threads), "a partition never ends"

    # ------------------------------------------------------------- device code as plain Python

    def of_module(self, name: str) -> dict[str, Any]:
        """The names of a module of device code."""
        if name not in self._modules:
            made = self._modules[name] = {}
            values = vars(importlib.import_module(name))
            made |= {key: self._plain(value) for key, value in values.items()} | self.names()
        return self._modules[name]

    def _plain(self, value: Any) -> Any:
        if isinstance(value, type) and value.__module__.startswith("tunefa.kernels"):
            return self._plain_class(value)
        if type(value).__name__ == "constexpr":
            return value.value
        function = getattr(value, "fn", None)
        if not isinstance(function, FunctionType):
            return value
        if not function.__module__.startswith("tunefa.kernels"):
            return value
        names = self.of_module(function.__module__)
        return FunctionType(function.__code__, names, function.__name__, function.__defaults__)

    def _plain_class(self, value: Any) -> type:
        """A class with an aggregate's methods. The compiler keeps its `__init__` aside."""
        named = {name: getattr(value, name) for name in dir(value)}
        methods = {
            name: self._plain(each)
            for name, each in {**named, "__init__": value.hash_attrs[0]}.items()
            if isinstance(getattr(each, "fn", None), FunctionType)
        }
        return type(value.__name__, (), methods)


def launch(variant: dict[str, Any], grid: tuple[int, ...], arguments: list[Any], seed: int) -> None:
    """Runs all CTAs of a grid, one after the other."""
    random.seed(seed)
    device, function = Device(), variant["function"]().fn
    kernel = device.of_module(function.__module__)[function.__name__]
    (device.ctas, _, _) = grid
    made = [_passed(each) for each in arguments]
    for cta in range(device.ctas):
        device.cta = cta
        kernel(*made)


def _passed(argument: Any) -> Any:
    """A launch's argument as the kernel gets it."""
    if isinstance(argument, dict):
        return Descriptor(argument["map"], argument["box"])
    return pointer(argument) if isinstance(argument, Tensor) else argument
