"""File systems that only a child process sees: for tests of full and read-only disks."""

from __future__ import annotations

import shutil
import subprocess

import pytest


def own_mounts() -> bool:
    """Whether this user may mount a file system that only a child process sees."""
    if shutil.which("unshare") is None:
        return False
    trial = 'd=$(mktemp -d) && mount -t tmpfs -o size=16k tmpfs "$d"'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", trial]
    return subprocess.run(command, capture_output=True).returncode == 0


needs_mounts = pytest.mark.skipif(not own_mounts(), reason="needs unshare and user namespaces")
