"""Parameters that kernels got after records were made.

A record from before has a config without them. It ran what the value here gives, so it is read with
that value. The machine code has not changed: see `tunefa.store.source_hashes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ADDED: Mapping[str, Mapping[str, Any]] = {
    "attention_fwd_cuda_sm90": {"DEPENDENT_LAUNCH": 0, "FP16_PV": 0},
    "attention_decode_cuda_sm90": {"LAST_CTA_COMBINES": 0},
}
"""By kernel, the parameters and their values in earlier records: the first ones of the space."""


def completed(kernel: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a kernel's config with the parameters that it lacks."""
    added = ADDED.get(kernel, {})
    return {**{name: value for name, value in added.items() if name not in config}, **config}


def of_record(
    kernel: str, config: Mapping[str, Any], certificate: Mapping[str, Any] | None, **_: Any
) -> dict[str, Any]:
    """Returns the config of a record and its certificate, in which the runner-up has one, too."""
    second = certificate and certificate.get("runner_up")
    if certificate and isinstance(second, Mapping) and isinstance(second.get("config"), Mapping):
        second = {**second, "config": completed(kernel, second["config"])}
        certificate = {**certificate, "runner_up": second}
    return {"config": completed(kernel, config), "certificate": certificate}
