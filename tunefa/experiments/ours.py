"""tunefa as a contestant: the call that a user makes, or the default config of one kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tunefa.errors import TunefaError
from tunefa.measure.peer import Call, Tensors, Unserved
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case
from tunefa.spec.workload import Workload

if TYPE_CHECKING:  # it imports PyTorch, which takes seconds
    from tunefa.measure.contest import Maker
    from tunefa.store.lookup import Choice

_LIBRARY = "library"
"""The language of kernels that call an installed library."""


def maker() -> Maker:
    """Returns what makes a user's call: the config is the one that the runtime chooses.

    `ran` says afterwards which one it was, and why. Of the op `bwd` it makes the launches of the
    best kernel of tunefa's own, see `backward_choice`.
    """
    return _call


def _call(workload: Workload, tensors: Tensors) -> Call:
    if workload.op == "bwd":
        return _backward_call(workload, tensors)
    return _users_call(workload, tensors)


def _backward_call(workload: Workload, tensors: Tensors, kernel: str | None = None) -> Call:
    """The launches of a backward pass: of the best kernel of ours, or of a kernel's default."""
    import torch

    from tunefa.measure import launches, ops

    device = tensors[0].device
    if kernel is None:
        choice = backward_choice(workload, device)
        case, config = case_of(choice.kernel, workload, device), choice.config
    else:
        case = case_of(kernel, workload, device)
        config = case.default()
    launch, outputs = launches.launch(case, config, tensors), tensors[ops.of(workload).OUTPUTS]

    def call() -> Any:
        launch()
        return outputs

    torch.cuda.synchronize()
    return call


def backward_choice(workload: Workload, device: Any) -> Choice:
    """Returns the kernel and config that is chosen for a backward pass among tunefa's own kernels:
    those of installed libraries are peers here. Raises Unserved where none serves it."""
    from tunefa.compile.serving import Installed, UsableStore
    from tunefa.runtime import choose
    from tunefa.runtime.chip import Chip
    from tunefa.store import results

    chip = Chip.of(device)
    if chip.target is None:
        raise Unserved(chip.why_not)
    try:
        serving = kernels.serving(workload, chip.target.arch)
    except TunefaError as error:
        raise Unserved(str(error)) from error
    own = [kernel for kernel in serving if kernel.language != _LIBRARY]
    if not own:
        raise Unserved("no kernel of tunefa's own serves it")
    known = UsableStore(results.default_store(), Installed(own))
    return choose.choose(known, workload, chip.target, own)


def backward_ran(workload: Workload, device: Any) -> dict[str, Any]:
    """Returns what `maker` ran for a backward pass, as `ran` does."""
    choice = backward_choice(workload, device)
    return {"kernel": choice.kernel, "config": choice.config, "why": choice.why}


def _users_call(workload: Workload, tensors: Tensors) -> Call:
    from tunefa.measure.check import softcap
    from tunefa.runtime import api, api_varlen, process

    process.current().leave_out_libraries()
    # Their overloads take no dictionaries.
    dense: Any = api.flash_attention
    packed: Any = api_varlen.flash_attention_varlen
    mask: dict[str, Any] = {"causal": workload.causal, "softcap": softcap(workload)}
    if workload.window_left is not None or workload.window_right is not None:
        mask["window"] = workload.band
    if workload.varlen:
        lengths = workload.seqlen_q, workload.seqlen_k
        return lambda: packed(*tensors, *lengths, **mask)
    q, k, v = (tensor.transpose(1, 2) for tensor in tensors[:3])
    names = ("q_descale", "k_descale", "v_descale")
    descales: dict[str, Any] = dict(zip(names, tensors[3:], strict=False))
    return lambda: dense(q, k, v, **mask, **descales).transpose(1, 2)


def ran() -> dict[str, Any] | None:
    """Returns what the user's last call ran, as plain data: `kernel` ("pytorch" where no kernel
    serves it), `config` and `why`. None before the first call."""
    from tunefa.runtime.process import last_choice

    chosen = last_choice()
    if chosen is None:
        return None
    return {"kernel": chosen.kernel, "config": chosen.config, "why": chosen.why}


def default_of(kernel: str) -> Maker:
    """Returns what makes launches of a kernel's default config, for any workload it serves."""

    def make(workload: Workload, tensors: Tensors) -> Call:
        import torch

        if workload.op == "bwd":
            return _backward_call(workload, tensors, kernel)

        from tunefa.measure import launches

        case = case_of(kernel, workload, tensors[0].device)
        out, lse = _outputs(workload, tensors)
        launch = launches.launch(case, case.default(), (*tensors[:3], out, lse, *tensors[3:]))

        def call() -> Any:
            launch()
            return out

        torch.cuda.synchronize()
        return call

    return make


def case_of(kernel: str, workload: Workload, device: Any) -> Case:
    """Returns the case of a kernel on a PyTorch device. Raises Unserved if it does not serve it."""
    from tunefa.runtime.chip import Chip

    chip = Chip.of(device)
    if chip.target is None:
        raise Unserved(chip.why_not)
    case = Case(kernels.load(kernel), workload, chip.target)
    why_not = case.why_not()
    if why_not is not None:
        raise Unserved(why_not)
    return case


def _outputs(workload: Workload, tensors: Tensors) -> tuple[Any, Any]:
    """The output and the logsumexp that a kernel writes, full of NaN, so that what it does not
    write is seen."""
    import torch

    q = tensors[0]
    dtype = torch.bfloat16 if workload.dtype == "e4m3" else q.dtype
    stored = q if workload.varlen else q.transpose(1, 2)
    shape = (*stored.shape[:-1], workload.head_dim_v)
    out = torch.full(shape, float("nan"), dtype=dtype, device=q.device)
    rows = (q.shape[1], q.shape[0]) if workload.varlen else q.shape[:3]
    lse = torch.full(rows, float("nan"), dtype=torch.float32, device=q.device)
    return (out if workload.varlen else out.transpose(1, 2)), lse
