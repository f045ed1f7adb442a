"""tunefa/compile/ascend/cache.py: what is kept comes back, what is damaged does not."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from tests.support.plan_recordings import recorded
from tunefa.compile.ascend import cache, compiler_report
from tunefa.compile.ascend.compiler_report import CompilerReport


@pytest.mark.parametrize("name", ["fits", "l0c_and_ub_overflow", "retried_and_fits"])
def test_the_cache_gives_back_what_it_got(name: str) -> None:
    found = compiler_report.from_output(recorded(name))
    cache.save("ab12", found)
    kept = cache.load("ab12")
    assert kept is not None and asdict(kept) == asdict(found)


def test_a_damaged_entry_is_missing() -> None:
    cache.save("ab12", CompilerReport("error", "why"))
    path = cache._path("ab12")
    path.write_text(path.read_text()[:-5])
    assert cache.load("ab12") is None
    path.write_text("[]")
    assert cache.load("ab12") is None
