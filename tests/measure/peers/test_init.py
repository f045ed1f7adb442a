"""tunefa/measure/peers: every peer is found in the folder, and says whether it is there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.tree import TREE
from tunefa.errors import TunefaError
from tunefa.measure import peers


def test_peers_of_pytorch_come_last_and_are_there() -> None:
    names = peers.names()
    assert names[-6:] == ["sdpa", "cudnn", "fa2", "efficient", "math", "operators"]
    assert len(set(names)) == len(names)
    assert all(peers.load(name).why_absent() is None for name in names[-6:])


@pytest.mark.parametrize("name", peers.names())
def test_a_peer_has_the_names_that_tables_need(name: str) -> None:
    peer = peers.load(name)
    assert peer.name == name and peer.title and peer.needs and peer.package
    absent = peer.why_absent()
    assert (
        absent is None or absent == f"{peer.package} is not installed: pip install {peer.package}"
    )


def test_an_unknown_peer_is_a_users_mistake() -> None:
    with pytest.raises(TunefaError, match="unknown peer 'cudn': did you mean cudnn"):
        peers.load("cudn")


LISTING = """
import sys
from tunefa.measure import peers
print([peers.load(name).why_absent() for name in peers.names()])
sys.exit("torch" in sys.modules)
"""


def test_listing_imports_no_library() -> None:
    done = subprocess.run([sys.executable, "-c", LISTING], cwd=TREE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
