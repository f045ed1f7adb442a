"""`tunefa explain`: shows what limits the speed of a config, with the arithmetic."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tunefa.cli import each_workload, looked_up_notes
from tunefa.cli.reports import explanation as reports
from tunefa.cli.reports import npu_explanation as npu_reports
from tunefa.cli.reports import text, work
from tunefa.cli.reports.explanation import Explanation
from tunefa.cli.reports.npu_explanation import NpuExplanation
from tunefa.cli.workload_options import Selection, workload_options
from tunefa.compile import languages
from tunefa.compile.serving import Installed, UsableStore
from tunefa.costmodel.anchor import Anchor
from tunefa.errors import TunefaError, unknown
from tunefa.runtime import choose
from tunefa.spec import kernel as kernels
from tunefa.spec import looked_up
from tunefa.spec.arch import NpuArch
from tunefa.spec.kernel import Kernel
from tunefa.spec.space import Parameter
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Trial
from tunefa.store import lookup
from tunefa.store import results as store
from tunefa.store.lookup import Choice
from tunefa.store.results import Store


@click.command()
@workload_options
@click.option("-c", "--config", "chosen", metavar="CONFIG", help=(
    "Parameters, such as BLOCK_M=128,num_warps=8; the others have their default values.  "
    "[default: the config that the runtime would choose]"))  # fmt: skip
@click.option("--kernel", "name", metavar="NAME", help=(
    "Kernel of the config.  [default: the first one that has these parameters]"))  # fmt: skip
@click.option("--no-compile", is_flag=True, help=(
    "Use lower bounds of registers and shared memory instead of the compiler: faster, less "
    "exact."))  # fmt: skip
@click.option("--plot", "plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Draw the roofline into this PNG file; needs matplotlib.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(selection: Selection, plot: Path | None, as_json: bool, **asked: Any) -> None:
    """Show what limits the speed of a config.

    For a GPU it shows how many CTAs (thread blocks) an SM holds, by threads, registers and shared
    memory, how many cycles a step takes in each pipe, and which of them limits the config. For an
    NPU it shows how much the config needs of each memory of a core. It ends with the work: the
    workload's FLOPs, bytes and FLOPs per byte, with their formulas.

    Of several workloads (-w or --model repeated, a model with several kinds of layers) each is
    explained. Compiles the config for the chip, which takes seconds. Needs no GPU.
    """
    name = asked["name"]
    parts = each_workload.served(selection, [name] if name else [])
    if plot is not None and len(parts) > 1:
        raise click.UsageError(f"--plot draws one workload, and these are {len(parts)}")
    out = text.console()
    documents = []
    for place, part in enumerate(parts):
        each_workload.announce(parts, place)
        if not name and not asked["chosen"]:
            part = _run_as(part)
        explanation, origin = _explained(part, asked["chosen"], name, asked["no_compile"])
        work_data = work.to_data(part.workload, part.target)
        documents.append({"origin": origin, **explanation.to_data(), **work_data})
        if plot is not None:
            _plot(explanation, part, plot)
        if not as_json:
            if isinstance(explanation, NpuExplanation):
                npu_reports.show(explanation, origin, out)
            else:
                reports.show(explanation, origin, out)
            work.show(part.workload, part.target, out)
            text.print_command(out, *_next(explanation, part))
    if as_json:
        text.emit_json({"workloads": documents} if len(parts) > 1 else documents[0])


def _explained(
    selection: Selection, chosen: str | None, name: str | None, no_compile: bool
) -> tuple[Explanation | NpuExplanation, str]:
    """Returns what limits the config for one workload, and where the config comes from."""
    workload, target = selection.workload, selection.target
    target.check_memory(workload)
    serving = kernels.serving(workload, target.arch, [name] if name else ())
    for name, why in languages.without_binary(serving).items():
        raise TunefaError(f"there is no config of {name} to explain: {why}; name another kernel")
    cases = [Case(kernel, workload, target) for kernel in serving]
    case, config, origin = _choose(cases, chosen)
    trial = None if no_compile else _compile(case, config)
    if isinstance(target.arch, NpuArch):
        return npu_reports.explain(case, config, trial), origin
    ranked = lookup.by_trust(store.default_store().records(), workload, target)
    anchor = Anchor.of(ranked, workload, target, serving)
    return reports.explain(case, config, trial, anchor), origin


def _run_as(part: Selection) -> Selection:
    """Returns the selection of the workload that calls of a part's workload run as; says on
    standard error if it is another one."""
    workload = part.workload
    runs = looked_up_notes.run_as(workload, part.target)
    if runs == workload:
        return part
    click.echo(looked_up_notes.of_explanation(workload, runs), err=True)
    return replace(part, texts=(str(runs),))


def _plot(explanation: Explanation | NpuExplanation, part: Selection, path: Path) -> None:
    """Draws the roofline with this config, standard attention and what was measured."""
    from tunefa.experiments import figure

    workload, target = part.workload, part.target
    ranked = lookup.by_trust(store.default_store().records(), workload, target)
    exact = [each for each in ranked if each.workload == workload and each.device is not None]
    own = [each for each in exact if each.device == target.device.name]
    found = work.points(workload, target, explanation.time_us, own[0] if own else None)
    figure.save_png(lambda canvas: work.plot(found, target, canvas), path)
    click.echo(f"plot  {path}", err=True)


def _choose(cases: Sequence[Case], chosen: str | None) -> tuple[Case, dict[str, Any], str]:
    """Returns (one of the cases, the whole config, where it comes from)."""
    serving = {case.kernel.name: case for case in cases}
    if chosen is None:
        kernels = [case.kernel for case in cases]
        known = UsableStore(store.default_store(), Installed(kernels))
        asked = looked_up.of_record(cases[0].workload)
        choice = choose.choose(known, asked, cases[0].target, kernels)
        if serving[choice.kernel].refusal(choice.config) is not None:
            choice = choose.choose(known, cases[0].workload, cases[0].target, kernels)
        passed_over = _passed_over(choice, cases[0], known)
        return serving[choice.kernel], choice.config, choice.why + passed_over
    kernel, given = _recognised(chosen, [case.kernel for case in cases])
    case, names = serving[kernel.name], [parameter.name for parameter in kernel.space.parameters]
    rest = [each for each in names if each not in given]
    if not rest:
        return case, {each: given[each] for each in names}, "given on the command line"
    return case, {**case.default(), **given}, f"{', '.join(rest)} from the default"


def _passed_over(choice: Choice, case: Case, known: Store) -> str:
    """Names the best record that was predicted for this workload if the choice is another one."""
    predicted = [
        record
        for record in known.best(lambda record: record.device is None)
        if (record.arch, record.workload) == (case.arch.name, case.workload)
    ]
    if not predicted or choice.record is None or choice.record.device is None:
        return ""
    first = predicted[0]
    same = (first.kernel, first.config) == (choice.kernel, choice.config)
    config = "the same" if same else f"{first.kernel} {text.config_text(first.config)}"
    return (
        f"; a measured record comes before the one predicted for this workload, which is "
        f"{config}, {text.number(first.median_us, 1)} us"
    )


def _recognised(chosen: str, serving: Sequence[Kernel]) -> tuple[Kernel, dict[str, Any]]:
    """Returns the first kernel that can have this config, and the config.

    If no kernel can, raises the TunefaError of the kernel that has most of the named parameters.
    """
    for kernel in serving:
        with contextlib.suppress(TunefaError):
            return kernel, parse_config(chosen, kernel)
    given = [part.partition("=")[0] for part in _parts(chosen)]
    names = {kernel.name: [p.name for p in kernel.space.parameters] for kernel in serving}
    known = list(dict.fromkeys(name for each in names.values() for name in each))
    for name in given:
        if name not in known:
            raise unknown(f"parameter of {' or '.join(names)}", name, known)
    closest = max(serving, key=lambda kernel: len(set(given).intersection(names[kernel.name])))
    return closest, parse_config(chosen, closest)


def _parts(chosen: str) -> list[str]:
    return [part for each in chosen.replace(" ", ",").split(",") if (part := each.strip())]


def parse_config(chosen: str, kernel: Kernel) -> dict[str, Any]:
    """Reads the parameters in `BLOCK_M=128,num_warps=8`.

    Raises TunefaError for a part that is not `NAME=VALUE`, for a name that is given twice, and for
    a parameter or value that the kernel's space does not have.
    """
    parameters = {parameter.name: parameter for parameter in kernel.space.parameters}
    config: dict[str, Any] = {}
    for part in _parts(chosen):
        name, equals, value = part.partition("=")
        if not equals:
            raise TunefaError(f"config {part!r} is not NAME=VALUE, such as BLOCK_M=128")
        if name not in parameters:
            raise unknown(f"parameter of {kernel.name}", name, parameters)
        if name in config:
            raise TunefaError(f"config gives {name} twice: leave one out")
        config[name] = _value(parameters[name], value)
    return config


def _value(parameter: Parameter, spelled: str) -> Any:
    for value in parameter.values:
        if str(value) == spelled:
            return value
    raise unknown(f"value of {parameter.name}", spelled, map(str, parameter.values))


def _compile(case: Case, config: Config) -> Trial:
    """Compiles the config, in a process of its own, as a compiler may crash.

    Raises TunefaError where there is no compiler for the kernel.
    """
    if why := languages.without_compiler([case.kernel], case.arch).get(case.kernel.name):
        raise TunefaError(f"{why}, or use --no-compile to go on without it")
    from tunefa.compile.pool import CompilePool

    with _waiting("Compiling"), CompilePool(case, 1) as pool:
        return pool.submit(config).trial()


@contextlib.contextmanager
def _waiting(what: str) -> Iterator[None]:
    """Shows on a terminal's standard error that something is in progress."""
    with text.console(stderr=True).status(f"{what} (seconds, rarely a minute)"):
        yield


def _next(explanation: Explanation | NpuExplanation, selection: Selection) -> tuple[str, str]:
    """Returns the next command, with a label that says what it is for."""
    words = [*selection.chip_words, "-w", str(explanation.case.workload)]
    if explanation.compiled or explanation.failure:
        line = text.command("tunefa", "search", *words)
        return "Next: find the best config", line
    config = text.config_text(explanation.config, ",")
    kernel = explanation.case.kernel.name
    line = text.command("tunefa", "explain", *words, "-c", config, "--kernel", kernel)
    return "Next: compile it for exact figures", line
