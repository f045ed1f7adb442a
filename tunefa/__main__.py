"""`python -m tunefa`."""

from __future__ import annotations

from tunefa.cli import main

if __name__ == "__main__":  # compiling in worker processes imports this module again
    main(prog_name="tunefa")
