"""Stand-ins for the modules of vLLM 0.33 that tunefa's plugin imports, with the names it uses.

The base classes have what vLLM's have and the plugin calls, and no attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import ModuleType
from typing import Any

BACKEND, REGISTRY = "vllm.v1.attention.backend", "vllm.v1.attention.backends.registry"


class AttentionType(str, Enum):
    DECODER = "decoder"
    ENCODER_ONLY = "encoder_only"


class AttentionCGSupport(Enum):
    ALWAYS = 3
    UNIFORM_BATCH = 2
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    NEVER = 0


@dataclass(frozen=True)
class MultipleOf:
    base: int


class AttentionBackend:
    pass


class AttentionImpl:
    pass


class AttentionMetadataBuilder:
    reorder_batch_threshold: int | None = None

    def __init__(self, kv_cache_spec: Any, layer_names: Any, vllm_config: Any, device: Any) -> None:
        self.vllm_config = vllm_config

    def _init_reorder_batch_threshold(
        self, reorder_batch_threshold: int | None = 1, supports_spec_as_decode: bool = False
    ) -> None:
        """With speculation, a request that decodes has as many tokens more as are speculated."""
        speculated = self.vllm_config.num_speculative_tokens if supports_spec_as_decode else 0
        self.reorder_batch_threshold = (reorder_batch_threshold or 0) + speculated


def backend() -> ModuleType:
    """The module with the base classes."""
    made: Any = ModuleType(BACKEND)
    for each in (AttentionType, AttentionCGSupport, MultipleOf, AttentionBackend, AttentionImpl):
        setattr(made, each.__name__, each)
    made.AttentionMetadataBuilder = AttentionMetadataBuilder
    return made  # type: ignore[no-any-return]


def registry() -> ModuleType:
    """The module with the registry: an Enum that gets members, as vLLM's does, and refuses a name
    that it has. `register_backend` is the module's function."""
    made: Any = ModuleType(REGISTRY)

    class AttentionBackendEnum(Enum):
        FLASH_ATTN = "vllm.v1.attention.backends.flash_attn.FlashAttentionBackend"

    def register_backend(name: str, path: str) -> None:
        known: Any = AttentionBackendEnum
        if name in known.__members__:
            raise ValueError(f"Backend {name} already exists in AttentionBackendEnum")
        member = object.__new__(known)
        member._name_, member._value_ = name, path
        known._member_map_[name] = member
        known._value2member_map_[path] = member

    made.AttentionBackendEnum, made.register_backend = AttentionBackendEnum, register_backend
    return made  # type: ignore[no-any-return]


def packages(*modules: ModuleType) -> dict[str, ModuleType]:
    """The modules by name, with the packages that they are in."""
    found = {module.__name__: module for module in modules}
    for name in list(found):
        parts = name.split(".")
        for end in range(1, len(parts)):
            within = ".".join(parts[:end])
            found.setdefault(within, ModuleType(within)).__path__ = []
    return found
