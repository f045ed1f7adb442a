"""Plans of calls over a cache that differ in the batch, in the size of the cache and in strides
only.

Attention over a cache gets one config for all of them, so what was found for one call of a family
serves the others. Its launches follow the sizes of a call, see `tunefa.compile.launch.resizable`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from tunefa.compile import languages
from tunefa.compile.contract import Compiled, Launch, LaunchSpec
from tunefa.compile.launch import driver
from tunefa.compile.launch import lengths as launch_lengths
from tunefa.compile.launch.lengths import CacheSizes
from tunefa.compile.launch.resizable import AXES
from tunefa.runtime.bounded_cache import BoundedCache
from tunefa.runtime.choice import Chosen
from tunefa.runtime.compiled import Compiler
from tunefa.runtime.decode_call import CacheOptions
from tunefa.runtime.decode_plan import CachePlan, KernelCachePlan
from tunefa.runtime.growth import Growth
from tunefa.runtime.kernel_plan import MAX_SCALES
from tunefa.runtime.resized_cache import CacheLaunches, ResizedCachePlan
from tunefa.spec.family_space import FamilySpace
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload


@dataclass(frozen=True)
class Maker:
    """The things that launches of a family's config are prepared with."""

    kernel: Kernel
    target: Target
    compiled: Compiled
    softcap: float | None

    def launch(self, chosen: Chosen, scale: float, tensors: Sequence[Tensor]) -> Launch:
        """Prepares a launch on a call's tensors, with heads first."""
        assert chosen.workload is not None
        case = Case(self.kernel, chosen.workload, self.target)
        spec = LaunchSpec(case, chosen.config, scale, self.softcap)
        made: Launch = languages.load(self.kernel.language).prepare(spec, self.compiled, tensors)
        return made


@dataclass(frozen=True)
class CacheFamily:
    """A config that serves all calls over a cache of a family."""

    chosen: Chosen
    """The choice for the first call."""
    maker: Maker
    runs: Callable[[dict[str, Any]], bool] | None
    """Whether all rules allow a batch and a number of keys; None where none depends on them."""
    options: CacheOptions
    device: int
    default_scale: float
    launches: CacheLaunches
    """The launches for the default scale."""
    growth: Growth = field(default_factory=Growth)
    _scales: BoundedCache[CacheLaunches] = field(default_factory=lambda: BoundedCache(MAX_SCALES))

    @classmethod
    def of(
        cls, plan: CachePlan, kernels: Sequence[Kernel], made_for: tuple[Target, Compiler],
        sizes: CacheSizes, tensors: int,
    ) -> CacheFamily | None:  # fmt: skip
        """Returns the family of a call with these sizes, so many tensors, and this plan; None where
        the launches of its kernel do not follow sizes."""
        chosen, (target, compiler) = plan.chosen, made_for
        w, kernel = chosen.workload, next((x for x in kernels if x.name == chosen.kernel), None)
        if not isinstance(plan, KernelCachePlan) or w is None or not isinstance(kernel, Kernel):
            return None
        compiled = compiler.known(Case(kernel, w, target), chosen.config, True)
        sms = driver.device(plan.launches.device).sms
        lengths = launch_lengths.load_cache(kernel, w, chosen.config, sms)
        if compiled is None or lengths is None:
            return None
        launches = CacheLaunches.of(lengths, plan.launches.launch, sizes, tensors)
        if launches is None:
            return None
        space = FamilySpace.of(kernel.space, w, target.arch, ("batch", "seqlen_k"))
        runs = space.runs(chosen.config)
        maker = Maker(kernel, target, compiled, plan.options.softcap)
        scale = float(w.head_dim**-0.5)
        return cls(chosen, maker, runs, plan.options, plan.launches.device, scale, launches)

    def plan(self, sizes: CacheSizes) -> ResizedCachePlan | None:
        """The plan for a call of the family; None where a rule refuses the config."""
        runs = self.runs
        if runs is not None and not runs({"batch": sizes.batch, "seqlen_k": sizes.keys}):
            return None
        return ResizedCachePlan(self, sizes)

    def explain(self, sizes: CacheSizes) -> Chosen:
        """Returns the choice for these sizes, with the reason."""
        made = object.__new__(Workload)  # its other fields were checked with the first call
        made.__dict__.update(vars(self.chosen.workload))
        made.__dict__.update(batch=sizes.batch, seqlen_k=sizes.keys)
        return replace(self.chosen, workload=made)

    def of_scale(
        self, scale: float, sizes: CacheSizes, tensors: Callable[[], Sequence[Tensor]]
    ) -> CacheLaunches:
        """Returns the launches for a scale; `tensors` returns a call's, with heads first."""
        found = self._scales.get(scale)
        if found is None:
            given = list(tensors())
            # `empty_like` keeps the stride of q's batch, which may be any where the batch is 1.
            out = sizes.tensors[3]
            given[3] = given[3].as_strided(out[:AXES], out[AXES:])
            launch = self.maker.launch(self.explain(sizes), scale, given)
            found = CacheLaunches.of(self.launches.lengths, launch, sizes, len(given))
            assert found is not None, "it does what the launch for the default scale does"
            self._scales.add(scale, found)
        return found
