"""The report of `tunefa doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.padding import Padding

from tunefa.cli.reports import compared, text
from tunefa.spec import arch_catalog as archs


def show(report: Mapping[str, Any], out: Console) -> None:
    """Prints the report without the next command; `report` is the data of `--json`."""
    out.print(text.heading("Versions"))
    versions = {name: version or "not found" for name, version in report["versions"].items()}
    out.print(text.facts(versions, indent=2))
    if report["nvrtc_path"]:
        out.print(f"  nvrtc: {report['nvrtc_path']}", style="dim", soft_wrap=True)
    out.print()
    out.print(text.heading("Devices"))
    _show_devices(report, out)
    out.print()
    out.print(text.heading("Folders"))
    for name, place in report["places"].items():
        state = "writable" if place["writable"] else "not writable"
        if not place["exists"]:
            state = "does not exist yet" if place["writable"] else "cannot be created: not writable"
        out.print(f"  {name}, {state}:", style="dim")
        out.print(f"    {place['path']}", soft_wrap=True)
    out.print()
    out.print(text.heading("Records"))
    _show_records(report, out)
    if report["config_hash"]:
        out.print(f"  config hash, to compare with other machines: {report['config_hash']}")
    _show_frozen(report, out)
    _show_ascend(report["ascend"], out)
    for problem in report["problems"]:
        out.print()
        out.print(f"Problem: {problem}", soft_wrap=True)  # paths are there to be copied


def _show_devices(report: Mapping[str, Any], out: Console) -> None:
    for index, device in enumerate(report["devices"]):
        memory = f"{device['memory_bytes'] / 2**30:.0f} GiB"
        what = f"{device['name']}: {device['sms']} SMs, {memory}"
        about = device.get("problem") or f"{device['arch']}, {_features(device['features'])}"
        out.print(text.facts({f"  {index}": f"{what}\n{about}"}))
    if not report["devices"]:
        out.print(f"  none: {report['no_device_because']}")
    target = report["target"]
    if not target["present"]:
        what = f"{target['device']} ({target['arch']}), {_features(target['features'])}"
        out.print(text.facts({"  predictions are for": what}))
        out.print(Padding(compared.sentence(archs.load(target["arch"])), (0, 0, 0, 2)))


def _features(features: Mapping[str, bool]) -> str:
    spelled = {"tma": "TMA", "wgmma": "WGMMA"}
    return ", ".join(
        f"{spelled.get(name, name)} {'yes' if there else 'no'}" for name, there in features.items()
    )


def _show_records(report: Mapping[str, Any], out: Console) -> None:
    counts, target = report["records"], report["target"]
    out.print(f"  {counts['serving']} of {counts['total']} can serve {target['device']}:")
    facts = {
        "measured on it, confirmed": counts["confirmed"],
        "measured on it, unconfirmed": counts["unconfirmed"],
        f"on other {target['arch']} devices": counts["measured_on_others"],
        "predicted": counts["predicted"],
    }
    out.print(text.facts({name: f"{count:,}" for name, count in facts.items()}, indent=4))
    for reason in counts["not_confirmed_because"]:
        out.print(f"  not confirmed: {reason}")
    if counts["unconfirmed"]:
        out.print("  The runtime uses an unconfirmed record if its config compiles.")
    if counts["refused"]:
        out.print(f"  The runtime does not use {text.plural(counts['refused'], 'record')}.")


def _show_ascend(state: Mapping[str, Any], out: Console) -> None:
    out.print()
    out.print(text.heading("Ascend"))
    if state["problem"]:
        out.print(f"  {state['problem']}", soft_wrap=True)
        return
    out.print(f"  {state['front_end']}, {state['compiler']}:")
    out.print(f"    {state['path']}", soft_wrap=True)


def _show_frozen(report: Mapping[str, Any], out: Console) -> None:
    frozen = report["frozen"]
    out.print()
    out.print(text.heading("Lock file"))
    if frozen is None:
        out.print("  none: TUNEFA_FROZEN is not set")
        return
    out.print(f"  TUNEFA_FROZEN is {frozen['path']}", soft_wrap=True)
    records = text.plural(frozen["records"], "record")
    served = text.plural(len(frozen["workloads"]), "workload")
    unconfirmed = f", {len(frozen['unconfirmed'])} unconfirmed" if frozen["unconfirmed"] else ""
    refused = f", {len(frozen['refused'])} refused" if frozen["refused"] else ""
    out.print(f"  {records}; {served} served on {frozen['device']}{unconfirmed}{refused}"
              f"{':' if frozen['workloads'] else ''}")  # fmt: skip
    for workload in frozen["workloads"]:
        out.print(f"    {workload}", soft_wrap=True)
