"""The paths of tunefa's data folders, and of the user's data and caches.

The data folders `kernels`, `search_spaces` and `results` are at the top of the source tree, and
inside the package once it is installed. `importlib.resources` does not find them in an editable
install, so the file system is searched.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path

from tunefa.errors import TunefaError

FOLDERS = ("kernels", "search_spaces", "results")
_DAY_S = 86_400


def root(name: str) -> Path:
    """The data folder `name`, in an installed wheel, an editable install or a bare checkout.

    Raises ValueError for a name that is not in `FOLDERS`, and TunefaError if the folder is missing,
    which means that the installation is damaged.
    """
    if name not in FOLDERS:
        raise ValueError(f"no data folder {name!r}: there are {', '.join(FOLDERS)}")
    package = Path(__file__).resolve().parent
    if (package / name).is_dir():
        return package / name
    tree = package.parent
    # In site-packages a folder called "kernels" beside tunefa would belong to another project.
    if (tree / "pyproject.toml").is_file() and (tree / name).is_dir():
        return tree / name
    raise TunefaError(
        f"the folder {name!r} of tunefa is neither in {package} nor beside it: install tunefa again"
    )


def home() -> Path:
    """The folder of the user's data: `TUNEFA_HOME` if it is set, else the platform's usual one."""
    chosen = os.environ.get("TUNEFA_HOME")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs  # takes 15 ms, and most imports of tunefa do not need it

    return platformdirs.user_data_path("tunefa")


def cache() -> Path:
    """The folder of caches: in `TUNEFA_HOME` if it is set, else the platform's usual one."""
    if os.environ.get("TUNEFA_HOME"):
        return home() / "cache"
    import platformdirs

    return platformdirs.user_cache_path("tunefa")


def make_folder(path: Path) -> None:
    """Makes a folder and its parents, which other users cannot write, whatever the umask is.

    Raises OSError if that fails.
    """
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(mode=0o775, exist_ok=True)


def keep(path: Path, data: bytes) -> None:
    """Writes a file of the cache, and renames it at the end, so that several processes may write
    it.

    If the folder cannot be written, nothing is kept. It does not wait for the disk: after a power
    failure the file may be damaged, and readers have to notice that.
    """
    import tempfile  # every start of tunefa imports this module, and few write a file

    with contextlib.suppress(OSError):
        make_folder(path.parent)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):  # it was renamed
                os.unlink(temporary)
        clean(path.parent)


def clean(folder: Path, pattern: str = ".*") -> None:
    """Removes the temporary files of writers that were killed: those more than a day old."""
    for left in folder.glob(pattern):
        with contextlib.suppress(OSError):
            if left.stat().st_mtime < time.time() - _DAY_S:
                left.unlink()
