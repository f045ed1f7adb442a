"""Where the data folders are: kernels, search_spaces, results.

They lie at the top of the tree and inside the package once it is installed. `importlib.resources`
does not find them in an editable install, so this looks at the file system.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tunefa.errors import TunefaError

FOLDERS = ("kernels", "search_spaces", "results")


def root(name: str) -> Path:
    """The folder `name` of this tunefa: in a wheel, an editable install or a bare checkout.

    Raises ValueError for a name that is not in `FOLDERS` and TunefaError where the folder is
    missing, which is a broken installation.
    """
    if name not in FOLDERS:
        raise ValueError(f"no data folder {name!r}: there are {', '.join(FOLDERS)}")
    package = Path(__file__).resolve().parent
    if (package / name).is_dir():
        return package / name
    tree = package.parent
    # In site-packages a neighbour called "kernels" belongs to another project.
    if (tree / "pyproject.toml").is_file() and (tree / name).is_dir():
        return tree / name
    raise TunefaError(
        f"the folder {name!r} of tunefa is neither in {package} nor beside it: install tunefa again"
    )


def home() -> Path:
    """The folder of this user's data: `TUNEFA_HOME` if it is set, else the platform's own."""
    chosen = os.environ.get("TUNEFA_HOME")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs  # 15 ms that most imports of tunefa need not pay

    return platformdirs.user_data_path("tunefa")


def cache() -> Path:
    """The folder of what can be made again: in `TUNEFA_HOME` if it is set, else the platform's."""
    if os.environ.get("TUNEFA_HOME"):
        return home() / "cache"
    import platformdirs

    return platformdirs.user_cache_path("tunefa")


def keep(path: Path, data: bytes) -> None:
    """Puts a file into the cache by a rename: any number of processes may write the same.

    Where the folder cannot be written nothing is kept. Nothing waits for the disk: what a power
    failure leaves may be damaged, which readers have to notice.
    """
    import tempfile  # every start of tunefa imports this module, few keep anything

    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):  # it has got its name
                os.unlink(temporary)
