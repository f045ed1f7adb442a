"""Pinned versions of front end and compiler, with the hashes of their wheels."""

from __future__ import annotations

from dataclasses import dataclass

FRONT_END = "3.2.0"
COMPILERS = ("1.1.0", "1.2.0")
"""Versions of ascendnpu-ir. The first is the default, which triton-ascend 3.2.1 includes."""
PYTHON = (3, 11)
"""The only CPython that both packages have wheels for."""


@dataclass(frozen=True)
class Wheel:
    """One version of a package, with the SHA-256 of its wheels by machine, or for `any` machine."""

    name: str
    version: str
    sha256: dict[str, str]
    megabytes: int

    def of(self, machine: str) -> str | None:
        """Returns the hash of the wheel for a machine; None if there is no wheel."""
        return self.sha256.get("any") or self.sha256.get(machine)

    def requirement(self, machine: str) -> str:
        """Returns the requirement for pip, with the hash."""
        return f"{self.name}=={self.version} --hash=sha256:{self.of(machine)}"


_TRITON = Wheel(
    "triton-ascend",
    FRONT_END,
    {
        "x86_64": "17c8d7161eed1e96a286281963fe04d3113ee85affaa5d82c7dd0c35803962f0",
        "aarch64": "69a9aecd6fa8b0beb798d16989bb24bc8a1ad61ded71526d6099d4179c428043",
    },
    54,
)
_PYBIND11 = Wheel(
    "pybind11",
    "3.0.1",
    {"any": "aa8f0aa6e0a94d3b64adfc38f560f33f15e589be2175e103c0a33c6bce55ee89"},
    1,
)
_COMPILERS = {
    "1.1.0": Wheel(
        "ascendnpu-ir",
        "1.1.0",
        {
            "x86_64": "b1726fe74952b2a6c3c0d8d001c500441db6f4d36239217f5c6809480d1a7318",
            "aarch64": "3a4321110af5cc3aae854a69f2184292016237f09d79944c5e8b552cbc844347",
        },
        143,
    ),
    "1.2.0": Wheel(
        "ascendnpu-ir",
        "1.2.0",
        {
            "x86_64": "d4e5bfab877ee4ba7b312885f4f5bf646072fd47c88d5aa96f6a11f67d3e8522",
            "aarch64": "76aaaedd3c4a08148a690f1bdddf2e2668f484989ab261fdb7e19cdba5d0f957",
        },
        161,
    ),
}
FRONT_END_WHEELS = (_TRITON, _PYBIND11)


def compiler(version: str) -> Wheel:
    """Returns the wheel of one version of the compiler."""
    return _COMPILERS[version]
