"""Makes .venv with tunefa (editable), its tools, and versions of torch and Triton that fit
together.

`make` runs it with the Python to use. If this Python has a torch, exactly that version is used;
otherwise the versions in constraints.txt are installed. Needs the standard library only.
"""

# No `from __future__ import annotations`: Python 3.6 must be able to print the message below.
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

if sys.version_info < (3, 10):  # noqa: UP036
    sys.exit(
        f"tunefa needs Python 3.10 or newer and {sys.executable} is {sys.version.split()[0]}:"
        " name a newer one, as in: make PYTHON=/path/to/python3.12"
    )

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
READY = VENV / "ready"
"""The file that is written last. It holds the folder that the environment was made for."""

OLDEST_TORCH = (2, 8)
OLDEST_TRITON, NEWEST_TRITON = (3, 6), (3, 9)
"""The same versions as in pyproject.toml."""

PROBE = """
import importlib.metadata, json, os, torch
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
requires = importlib.metadata.requires("torch") or []
folder = os.path.dirname(os.path.dirname(torch.__file__))
print(json.dumps([importlib.metadata.version("torch"), version("triton"), requires, folder]))
"""

REPORT = """
import platform, torch
try:
    from triton import __version__ as triton
except ImportError:
    triton = "missing"
print(f"Python {platform.python_version()}, torch {torch.__version__}, triton {triton}")
"""

TROUBLES = {
    r"Retrying \(Retry|Max retries exceeded|ProxyError|ConnectionError|[Tt]imed out": (
        "the package index could not be reached: connect this machine to the network (HTTPS_PROXY"
        " names a proxy, PIP_INDEX_URL a mirror) and run make again"
    ),
    r"No space left on device": (
        f"the disk of {ROOT} or of the temporary folder is full: make room (torch with CUDA takes"
        " several GB) and run make again"
    ),
}
"""Messages of pip when it fails (regular expressions), and their meanings."""


class Torch(NamedTuple):
    """The torch of the Python that runs this script."""

    version: str
    triton: str
    """The version of Triton that is installed with it; empty if there is none."""
    requires: list[str]
    folder: str
    """The site-packages folder of this torch."""


def say(text: str) -> None:
    """Prints a line of progress on standard error; standard output is for what make runs next."""
    print(text, file=sys.stderr, flush=True)


def release(version: str) -> tuple[int, int]:
    """Returns (2, 8) for "2.8.0+cpu"; a pre-release of x.y.0 is older than x.y, as for pip."""
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?(a|b|rc|\.dev)?", version)
    if not found:
        return (0, 0)
    early = found[4] is not None and int(found[3] or 0) == 0
    return int(found[1]), int(found[2]) - early


def serves(triton: str) -> bool:
    """Whether tunefa runs on this version of Triton."""
    return OLDEST_TRITON <= release(triton) <= NEWEST_TRITON


def probe() -> Torch | None:
    """The torch that this Python imports, if any."""
    if find_spec("torch") is None:
        return None
    # In another process, as a torch that was built for another machine may crash it.
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        say(f"not reusing the torch of {sys.executable}: it does not import ({reason})")
        return None
    return Torch(*json.loads(done.stdout.splitlines()[-1]))


def unfit(torch: Torch) -> str:
    """The reason that tunefa cannot run with this torch; empty if it can."""
    if release(torch.version) < OLDEST_TORCH:
        return f"it is older than {OLDEST_TORCH[0]}.{OLDEST_TORCH[1]}"
    for requirement in torch.requires:
        exact = re.match(r"triton\s*\(?==\s*([^\s;,)]+)", requirement)
        if exact and not serves(exact[1]):
            return f"it requires triton {exact[1]}, and tunefa requires 3.6 to 3.9"
    return ""


def constraints(torch: Torch | None) -> str:
    """The text of constraints.txt, with the versions of `torch` instead of its torch and triton."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    if torch is None:
        return text
    lines = [f"torch=={torch.version}"]
    if serves(torch.triton):
        lines.append(f"triton=={torch.triton}")
        if release(torch.triton) < (3, 7):
            lines.append("numpy<2.4")  # newer ones break the interpreter of Triton 3.6
    lines += [line for line in text.splitlines() if not re.match(r"(torch|triton)==|#", line)]
    return "\n".join(lines) + "\n"


def stale() -> bool:
    """Whether .venv must be made again: it was made for another folder or by another Python."""
    if READY.is_file() and READY.read_text(encoding="utf-8") != os.getcwd():
        return True
    made = VENV / "pyvenv.cfg"
    home = os.path.dirname(sys._base_executable)  # type: ignore[attr-defined]  # as venv writes it
    return made.is_file() and f"home = {home}\n" not in made.read_text(encoding="utf-8")


def create(torch: Torch | None) -> None:
    """Makes the environment .venv, in which `torch` can be imported."""
    try:
        import ensurepip  # noqa: F401
        import venv
    except ImportError:
        sys.exit(
            f"{sys.executable} cannot make virtual environments: install its venv module"
            " (Debian, Ubuntu: apt install python3-venv) and run make again"
        )
    builder = venv.EnvBuilder(
        system_site_packages=torch is not None, clear=stale(), symlinks=True, with_pip=True
    )
    try:
        builder.create(VENV)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"{VENV} could not be made with {sys.executable}: {error}")
    if torch is not None and sys.prefix != sys.base_prefix:
        # This Python is a virtual environment itself; the new one does not see its packages.
        asked = [str(PYTHON), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        folder = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
        Path(folder, "outer_venv.pth").write_text(torch.folder + "\n", encoding="utf-8")


def install(limits: Path) -> None:
    """Installs tunefa and its tools into .venv; if pip fails, exits with one sentence."""
    command = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install"]
    command += ["--constraint", str(limits), "--no-compile", "--editable", f"{ROOT}[dev,cuda]"]
    # pip may be configured to install into the user's folder, which does not work in .venv.
    env = {**os.environ, "PIP_USER": "0"}
    said = []
    with subprocess.Popen(
        command, env=env, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as pip:
        for line in pip.stderr or ():
            sys.stderr.write(line)
            said.append(line)
    if pip.returncode:
        for sign, meaning in TROUBLES.items():
            if re.search(sign, "".join(said)):
                sys.exit(meaning)
        sys.exit("pip could not install what tunefa needs: its last lines above say why")
    compile_packages()


def compile_packages() -> None:
    """Compiles what was installed to bytecode on all cores; pip would use one of them.

    Some packages hold templates that are no Python: these are left as they are.
    """
    command = [str(PYTHON), "-m", "compileall", "-q", "-j", "0", str(VENV / "lib")]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> None:
    """Makes or updates .venv."""
    if Path(sys.prefix).resolve() == VENV.resolve():
        # .venv is activated in this shell: use the Python that .venv was made with.
        base = Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")
        os.execv(base, [str(base), *sys.argv])
    torch = probe()
    why = unfit(torch) if torch else ""
    if torch and why:
        say(f"not reusing torch {torch.version} of {sys.executable}: {why}")
        torch = None
    source = f"torch {torch.version} of {torch.folder}" if torch else "the pair in constraints.txt"
    say(f"making {VENV} with {sys.executable} and {source}")
    create(torch)
    limits = VENV / "constraints.txt"
    limits.write_text(constraints(torch), encoding="utf-8")
    install(limits)
    done = subprocess.run([PYTHON, "-c", REPORT], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stderr}torch was installed in {VENV} but does not import: see above")
    READY.write_text(os.getcwd(), encoding="utf-8")
    say(f"{VENV} is ready: {done.stdout.strip()}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
