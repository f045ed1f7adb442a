"""README.md and docs/: every path, link, command, option, module and parameter in them exists."""

from __future__ import annotations

import functools
import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import tunefa
from tests.support.tree import TREE
from tunefa.cli import COMMANDS, main

PAGES = [TREE / "README.md", *sorted((TREE / "docs").glob("*.md"))]
README_LINES = 150

_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
_FOLDERS = "tunefa|kernels|search_spaces|docs|tests|scripts|benchmarks|results"
_PATH = re.compile(rf"(?<![\w/.~-])((?:{_FOLDERS})/[\w./-]*\w)(?![\w<{{*-])")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_MODULE = re.compile(r"\b(?:python -m (benchmarks[\w.]*)|(tunefa(?:\.[a-z]\w*)+))")
_PARAMETER = re.compile(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]*[A-Z0-9]\b")
_EXAMPLE = re.compile(r"\bmy_")
"""The beginning of a name that a reader is to replace with a name of his own."""


def code(page: Path) -> Iterator[str]:
    """The lines of a page's code blocks, and its code between backquotes."""
    text = page.read_text(encoding="utf-8")
    for block in _FENCED.findall(text):
        yield from block.splitlines()[1:-1]
    text = _FENCED.sub("", text)
    yield from (line.strip() for line in text.splitlines() if line.startswith("    "))
    yield from (" ".join(span.split()) for span in _INLINE.findall(text))


def missing_paths(text: str) -> list[str]:
    """The paths in a text that the tree does not have."""
    paths = [path for path in _PATH.findall(text) if not _EXAMPLE.search(path)]
    return [path for path in paths if not (TREE / path).exists()]


def anchors(page: Path) -> set[str]:
    """The anchors that links may name in a page: its headings, as GitHub spells them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each).strip().lower().replace(" ", "-") for each in headings}


def broken_links(page: Path) -> list[str]:
    """The links of a page to files, or to headings in them, that are not there."""
    broken = []
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith("http"):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


def mistakes(line: str) -> list[str]:
    """The mistakes in a line of code that calls tunefa: its command, or an option of it."""
    words = shlex.split(line, comments=True)
    command: click.Command | None = main
    for index, word in enumerate(words[1:], start=1):
        if not isinstance(command, click.Group):
            break
        if word.startswith("-"):
            continue
        found = command.get_command(click.Context(command), word)
        if found is None:
            return [f"tunefa has no command {' '.join(words[1 : index + 1])}"]
        command = found
    assert command is not None
    known = {name for each in command.params for name in each.opts + each.secondary_opts}
    own = words[: words.index("--")] if "--" in words else words  # the rest is another program's
    used = {word.partition("=")[0] for word in own if re.match(r"--?[a-z]", word)}
    return [f"{line}: no option {name}" for name in sorted(used - known - {"-h", "--help"})]


def exists(name: str) -> bool:
    """Whether there is a module of that name, or a function or class in a module."""
    module, _, last = name.rpartition(".")
    file = TREE.joinpath(*module.split(".")).with_suffix(".py")
    if not file.is_file():
        return importlib.util.find_spec(name) is not None
    text = file.read_text(encoding="utf-8")
    return re.search(rf"^(?:def|class) {last}\b", text, re.MULTILINE) is not None


def all_options() -> set[str]:
    """The options of all commands."""
    commands: list[click.Command] = [main]
    options: set[str] = set()
    for command in commands:
        options |= {name for each in command.params for name in each.opts + each.secondary_opts}
        if isinstance(command, click.Group):
            context = click.Context(command)
            found = [command.get_command(context, name) for name in command.list_commands(context)]
            commands += [each for each in found if each is not None]
    return options


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_and_links_exist(page: Path) -> None:
    assert not missing_paths(page.read_text(encoding="utf-8"))
    assert not broken_links(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_exist(page: Path) -> None:
    calls = [line for line in code(page) if re.match(r"tunefa [a-z-]", line)]
    assert not [mistake for line in calls for mistake in mistakes(line)]
    options = {line.split()[0] for line in code(page) if line.startswith("--")}
    assert options <= all_options()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_exist(page: Path) -> None:
    makefile = (TREE / "Makefile").read_text(encoding="utf-8")
    targets = {found for line in code(page) for found in re.findall(r"^make ([a-z-]+)", line)}
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_and_names_exist(page: Path) -> None:
    for benchmark, name in _MODULE.findall("\n".join(code(page))):
        if name and name.split(".")[1] in (*tunefa.__all__, "lock"):
            continue  # what users call; tunefa.lock.yaml is a file of theirs
        assert exists(benchmark or name), benchmark or name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_parameters_and_constants_exist(page: Path) -> None:
    names = set(_PARAMETER.findall(page.read_text(encoding="utf-8")))
    assert names <= known_parameters()


@functools.cache
def known_parameters() -> set[str]:
    """The names in the sources that look like a parameter or a constant."""
    folders = ("tunefa", "kernels", "search_spaces", "benchmarks", "scripts")
    suffixes = {".py", ".yaml", ".cu", ".cuh"}
    files = [path for folder in folders for path in (TREE / folder).rglob("*.*")]
    sources = [path.read_text(encoding="utf-8") for path in files if path.suffix in suffixes]
    return set(_PARAMETER.findall("\n".join([*sources, (TREE / "Makefile").read_text()])))


def test_every_command_is_in_the_readme() -> None:
    text = (TREE / "README.md").read_text(encoding="utf-8")
    assert all(f"tunefa {command}" in text for command in COMMANDS)
    assert len(text.splitlines()) <= README_LINES


def test_what_pip_is_told_to_install_is_there() -> None:
    """No index has tunefa: pip takes a checkout, or the wheel that is built from one."""
    wheel = f"'dist/tunefa-{tunefa.__version__}-py3-none-any.whl[cuda]'"
    assert wheel in (TREE / "README.md").read_text(encoding="utf-8")
    sources = [*PAGES, *(TREE / "tunefa").rglob("*.py")]
    named = [path for path in sources if "install 'tunefa[" in path.read_text(encoding="utf-8")]
    assert not named


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        ("tunefa serch --seqlen 8192", "no command serch"),
        ("tunefa search --seqlne 8192", "no option --seqlne"),
        ("tunefa bench tile", "no command bench tile"),
        ("tunefa search --seqlen 8192 --causal -w b1  # a comment --with-words", ""),
    ],
)
def test_a_mistake_is_found(line: str, mistake: str) -> None:
    found = mistakes(line)
    assert bool(found) == bool(mistake)
    assert all(mistake in each for each in found)


def test_a_missing_path_is_found() -> None:
    assert missing_paths("see tunefa/model.py and kernels/my_kernel.py") == ["tunefa/model.py"]
    assert not missing_paths("~/.local/share/tunefa/results/x.yaml, tunefa/spec/, docs/search.md")
