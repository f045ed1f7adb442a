"""Plans of calls with few queries that differ in batch and keys only.

Attention over a cache gets one config for all numbers of keys, so what was found for one call of a
family serves the others. What is left for a new one is to prepare its launches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from tunefa.compile import languages
from tunefa.compile.contract import Compiled, CompileError, Launch, LaunchSpec
from tunefa.errors import TunefaError
from tunefa.runtime.call import Options, Tensors, heads_first
from tunefa.runtime.cells import Lengths
from tunefa.runtime.choice import Chosen
from tunefa.runtime.compiled import Compiler
from tunefa.runtime.decode_call import CacheCall, CacheOptions
from tunefa.runtime.decode_plan import Decode
from tunefa.runtime.family_call import FamilyCall
from tunefa.runtime.few_queries import FewQueries, FewQueriesPlan, with_lengths
from tunefa.runtime.kernel_plan import Launches
from tunefa.runtime.tables import TableCache
from tunefa.spec.family_space import FamilySpace
from tunefa.spec.kernel import Kernel
from tunefa.spec.space import Space
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload


@dataclass(frozen=True)
class FewFamily:
    """A config that serves all calls of a family with one number of queries."""

    chosen: Chosen
    """The choice for the first call."""
    kernel: Kernel
    target: Target
    compiled: Compiled
    tables: TableCache
    runs: Callable[[dict[str, Any]], bool] | None
    """Whether all rules allow a batch and a number of keys; None where none depends on them."""
    options: Options

    @classmethod
    def of(
        cls,
        plan: FewQueriesPlan,
        kernels: Sequence[Kernel],
        target: Target,
        made: tuple[Compiler, TableCache],
        options: Options,
    ) -> FewFamily | None:
        """Returns the family of a plan; None where a library runs it."""
        chosen, workload = plan.over_cache.chosen, plan.over_cache.chosen.workload
        kernel = next(each for each in kernels if each.name == chosen.kernel)
        if kernel.is_library or not isinstance(kernel.space, Space) or workload is None:
            return None
        compiled = made[0].known(Case(kernel, workload, target), chosen.config, True)
        if compiled is None:
            return None
        space = FamilySpace.of(kernel.space, workload, target.arch)
        runs = space.runs(chosen.config)
        return cls(chosen, kernel, target, compiled, made[1], runs, options)

    def plan(self, tensors: Tensors, call: FamilyCall) -> FewQueriesPlan | None:
        """The plan for a call of the family; None where a rule refuses the config."""
        batch, rows, keys = call.lengths
        env = {"batch": batch, "seqlen_q": rows, "seqlen_k": keys}
        if self.runs is not None and not self.runs(env):
            return None
        options, workload = self.options, self._workload(call.lengths)
        case, config = Case(self.kernel, workload, self.target), self.chosen.config
        language, compiled = languages.load(self.kernel.language), self.compiled

        def prepare(given: Sequence[Tensor], scale: float, tables: Any = None) -> Launch:
            spec = LaunchSpec(case, config, scale, options.softcap, tables=tables)
            launch: Launch = language.prepare(spec, compiled, given)
            return launch

        job = self._job(tensors, float(workload.head_dim**-0.5))
        given = job.tensors()
        try:
            usual = prepare(given, job.call.scale, self.tables)
        except (CompileError, TunefaError):  # planning it anew says why
            return None
        launches = Launches(given[0].get_device(), usual, prepare)
        over_cache = Decode.plan(job, replace(self.chosen, workload=workload), launches)
        return FewQueriesPlan(over_cache, options.layout)

    def _job(self, tensors: Tensors, scale: float) -> FewQueries:
        """The job of a call whose tensors fit, as those of its family do."""
        layout = self.options.layout
        over = CacheOptions(
            self.options.causal, self.options.window_left, self.options.softcap, layout
        )
        q, k, v, seqlens = with_lengths(tensors, layout)[:4]
        q, k, v = heads_first(q, layout), heads_first(k, layout), heads_first(v, layout)
        return FewQueries(CacheCall(q, k, v, seqlens, None, None, None, None, scale, over), None)

    def _workload(self, asked: Lengths) -> Workload:
        """The workload of a call, whose other fields were checked with the first one."""
        made = object.__new__(Workload)
        made.__dict__.update(vars(self.chosen.workload))
        made.__dict__.update(zip(Lengths._fields, asked, strict=True))
        return made
