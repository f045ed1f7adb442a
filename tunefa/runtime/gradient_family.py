"""Makes plans of gradients that differ in batch and lengths only.

It does for gradients what `tunefa.runtime.family_plans` does for the forward pass: the choice is
that of `tunefa.runtime.family`, the binaries are some that were loaded before, and the launches
follow the lengths. Where a call needs other binaries, it is planned as one without a family, and
its launches serve other lengths from then on.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any, NamedTuple

from tunefa.compile.launch import driver
from tunefa.compile.launch import lengths as launch_lengths
from tunefa.compile.launch.lengths import GradientSizes
from tunefa.compile.launch.resizable import AXES, Sizes
from tunefa.compile.launch.steps import Steps
from tunefa.errors import TunefaError
from tunefa.runtime.backward import BackwardPlan, KernelGradients
from tunefa.runtime.bounded_cache import BoundedCache
from tunefa.runtime.call import Options
from tunefa.runtime.cells import Lengths
from tunefa.runtime.compiled import Compiler
from tunefa.runtime.family import Family
from tunefa.runtime.family_call import MAX_STRIDE, family_call, of_heads
from tunefa.runtime.family_facts import FamilyFacts
from tunefa.runtime.resized import Tables
from tunefa.runtime.resized_gradients import (
    GradientBinary,
    GradientConfig,
    ResizedGradientPlan,
    StepLaunches,
    own_tables,
)
from tunefa.runtime.tables import TableCache
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case
from tunefa.spec.trial import identity
from tunefa.store.lookup import Choice

MAX_CONFIGS = 64
"""The most choices of a family that are kept with what is prepared for them."""


class GradientCall(NamedTuple):
    """Gradients of a family, without their tensors."""

    family: Hashable
    """Equal for calls of one family."""
    lengths: Lengths
    sizes: tuple[Sizes, ...]
    """The sizes of q, k, v, out, lse, dout, dlse, dq, dk and dv, with heads first."""


def gradient_call(key: Any, options: Options) -> GradientCall | None:
    """Returns what plans of a family need of gradients with this `backward.key`; None for those
    that are planned one by one: see `family_call`, and those whose `out` or its gradient kernels
    could not read by TMA."""
    _, of_inputs, out_steps, grad_steps, aligned, dlse_steps, _ = key
    call = family_call(of_inputs, options) if aligned else None
    if call is None:
        return None
    (batch, heads, rows, head_dim, *_), _, (_, _, _, head_dim_v, *_) = call.sizes
    of_rows = (heads, rows) if options.layout == "bhsd" else (rows, heads)
    shape = batch, *of_rows, head_dim_v
    # The gradients are as dense as can be, so their steps are multiples of the head dimensions.
    if head_dim % 16 or not (_is_readable(shape, out_steps) and _is_readable(shape, grad_steps)):
        return None
    steps = (0, 0, 0) if dlse_steps is None else dlse_steps
    if len(steps) != 3 or max(steps[1:]) >= MAX_STRIDE:
        return None
    out, grad = (of_heads(shape, each, options.layout) for each in (out_steps, grad_steps))
    lse = batch, heads, rows, heads * rows, rows, 1
    given = *call.sizes, out, lse, grad, (batch, heads, rows, *steps)
    grads = [like(each) for each in call.sizes]
    return GradientCall((call.family, dlse_steps is None), call.lengths, (*given, *grads))


def like(sizes: Sizes) -> Sizes:
    """Returns the sizes of `torch.empty_like` of a tensor whose axes all have strides: its own if
    it is dense, else those of a dense tensor whose axes follow one another in memory as its own do.

    It is what PyTorch does on a device (`infer_dense_strides` in ATen/ExpandUtils.cpp).
    """
    batch, heads, rows, columns, of_batch, *others = sizes
    # Most are contiguous in the layout "bshd". The stride of an axis of length 1 does not count.
    if others == [columns, heads * columns, 1] and (
        batch == 1 or of_batch == heads * rows * columns
    ):
        return sizes
    shape, steps = sizes[:AXES], sizes[AXES:]
    ascending = sorted(zip(steps, shape, range(AXES), strict=True))
    found, count, is_dense = [0] * AXES, 1, True
    for step, length, axis in ascending:
        if length > 1:
            is_dense = is_dense and step == count
        found[axis] = count
        count *= length
    return sizes if is_dense else (*shape, *found)


def _is_readable(shape: tuple[int, ...], steps: tuple[int, ...]) -> bool:
    if len(steps) != 4 or 0 in steps or steps[3] != 1 or shape[3] % 16:
        return False
    of_batch, first, second, _ = steps
    return (of_batch | first | second) % 16 == 0 and (first | second) < MAX_STRIDE


class GradientFamily:
    """The plans of a family on one device."""

    def __init__(
        self, family: Family, of_device: tuple[Compiler, TableCache], options: Options
    ) -> None:
        """Makes a family's plans on a device."""
        self._family, (self._compiler, self._tables) = family, of_device
        self.facts = FamilyFacts.of(family, self._tables.device, options)
        self._of_choice: BoundedCache[tuple[Choice, GradientConfig | None]] = BoundedCache(
            MAX_CONFIGS
        )
        """By the identity of a choice: the choice, and its config."""

    def plan(self, call: GradientCall) -> ResizedGradientPlan | None:
        """The plan for gradients of the family; None where something must be compiled or prepared
        first, and where no kernel serves them."""
        asked = call.lengths
        try:
            choice = self._choice(asked)
        except TunefaError:  # planning it anew says why
            return None
        config = None if choice is None else self._config(choice)
        if choice is None or config is None:
            return None
        binary = config.binaries.get(config.lengths.variant(asked[1], asked[2]))
        if binary is None:
            return None
        known = choice, config.lengths, binary, self._tables_of(config, asked)
        return ResizedGradientPlan(self.facts, known, asked, call.sizes)

    def learn(self, call: GradientCall, plan: BackwardPlan) -> None:
        """Lets the launches of a plan, which was made for these gradients, serve other lengths."""
        asked = call.lengths
        try:
            choice = self._choice(asked)
        except TunefaError:
            return
        config = None if choice is None else self._config(choice)
        if config is None or not isinstance(plan, KernelGradients):
            return
        chosen, launch = plan.chosen, plan.launches.launch
        is_same = chosen.kernel == config.kernel.name and chosen.config == config.config
        if not is_same or chosen.workload is None or not isinstance(launch, Steps):
            return
        case = Case(config.kernel, chosen.workload, self._family.target)
        compiled = self._compiler.known(case, chosen.config, True)
        sizes = GradientSizes(*asked, call.sizes, self.facts.default_scale)
        launches = StepLaunches.of(launch, config.lengths, sizes)
        if launches is None or compiled is None:
            return
        whole = self._family.whole_kernel(config.kernel.name)
        binary = GradientBinary(launches, partial(self.facts.preparing, whole, compiled))
        config.binaries[config.lengths.variant(asked[1], asked[2])] = binary
        config.tables.add(config.lengths.decides(*asked), own_tables(launch))

    def _choice(self, asked: Lengths) -> Choice | None:
        return self._family.remembered(asked) or self._family.general(self._family.workload(asked))

    def _config(self, choice: Choice) -> GradientConfig | None:
        """The config of a choice; None where its kernel does not say what follows the lengths."""
        found = self._of_choice.get(id(choice))
        if found is None or found[0] is not choice:
            made = None
            kernel = self._family.kernel(choice.kernel)
            if isinstance(kernel, Kernel) and not kernel.is_library:  # else a test's
                made = self._made_config(choice, kernel)
            self._of_choice.add(id(choice), found := (choice, made))
        return found[1]

    def _made_config(self, choice: Choice, kernel: Kernel) -> GradientConfig | None:
        workload = self._family.workload(Lengths(1, 1, 1))
        sms = driver.device(self.facts.device).sms
        lengths = launch_lengths.load_gradients(kernel, workload, choice.config, sms)
        if lengths is None:
            return None
        same = next(
            (
                each
                for _, each in self._of_choice.values()
                if each is not None and each.kernel is kernel and each.config == choice.config
            ),
            None,
        )
        return same or GradientConfig(choice.config, kernel, lengths)

    def _tables_of(self, config: GradientConfig, asked: Lengths) -> Tables:
        key = config.lengths.decides(*asked)
        found = config.tables.get(key)
        if found is None:
            # Other families share the cache: those with other heads have other tiles.
            family = self._family.workload(Lengths(1, 1, 1))
            whole = "gradients", config.kernel.name, family, identity(config.config), key
            place = self._tables.place
            made = self._tables(whole, lambda: config.lengths.tables(*asked, place))
            config.tables.add(key, found := Tables({}, made))
        return found
