"""examples/generate.py: rows take one request after the other, and tokens are PyTorch's."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from tests.support.tree import TREE

SMALL = "--layers 2 --width 64 --heads 4 --seqlen 40 --rows 3 --requests 8 --vocabulary 97"


@pytest.fixture
def generate(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.syspath_prepend(str(TREE / "examples"))
    import generate  # type: ignore[import-not-found]

    return generate


def test_tokens_are_those_of_pytorch() -> None:
    command = [sys.executable, str(TREE / "examples" / "generate.py"), *SMALL.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    tokens, found, *_ = done.stdout.splitlines()
    count = int(tokens.split()[0])
    assert "of 8 requests in 3 rows" in tokens and count > 40
    assert found == f"{count} are those of PyTorch; the worst of the others is 0.0 roundings below"


def test_pages_go_from_a_complete_text_to_the_next(generate) -> None:  # type: ignore[no-untyped-def]
    options = generate.parsed(SMALL.split())
    server = generate.Server(options, generate.made_model(options, "cpu"))
    free = sorted(server.cache.free)
    requests = generate.made_requests(options)
    server.run(requests)
    assert all(each.is_complete for each in requests)
    assert sorted(server.cache.free) == free and not server.cache.table.any()
    used = server.cache.keys[0].abs().amax(dim=(1, 2, 3)).nonzero().flatten()
    assert generate.IDLE in used.tolist() and len(used) > len(requests), "pages were written"


def test_a_wrong_cache_is_seen(generate, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    options = generate.parsed(SMALL.split())
    server = generate.Server(options, generate.made_model(options, "cpu"))
    take = server.cache.take

    def mixed(row: int, keys: int) -> None:
        take(row, keys)
        server.cache.table[row].copy_(torch.flip(server.cache.table[row], (0,)))

    monkeypatch.setattr(server.cache, "take", mixed)
    requests = generate.made_requests(options)
    server.run(requests)
    generated, equal, worst = generate.compared(generate.made_model(options, "cpu"), requests)
    assert equal < generated and worst > 100


def test_a_context_that_is_too_short_is_refused(generate) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SystemExit):
        generate.parsed(["--seqlen", "3"])
