"""Inline PTX as C++: each `asm` of a preprocessed source becomes a block that calls functions.

    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");

becomes

    do { auto&& ptx_0 = barrier; auto&& ptx_1 = count;
         ptx::mbarrier_init_shared_cta_b64(ptx_0, ptx_1); } while (0);

so the C++ compiler sees every instruction with its operands, and names an instruction that `ptx.h`
does not have. Registers, labels, branches and predicates become variables, labels, `goto` and `if`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

_ASM = re.compile(r"\basm\s*(?:volatile)?\s*\(")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_BRACKET = re.compile(_STRING.pattern + r"|[()\[\]{}]")
_BRACKET_OR = {each: re.compile(_BRACKET.pattern + f"|{each}") for each in ",:"}
_OPERAND = re.compile(r'"[^"]*"\s*\((.*)\)', re.DOTALL)
_PLACE = re.compile(r"%(\d+)")
_NAME = re.compile(r"\b(?=[A-Za-z_])")
_LABEL = re.compile(r"(\w+):(?!:)\s*")
_GUARD = re.compile(r"@(!?)(\w+)\s+")
_REGISTERS = {"pred": "bool", "b16": "unsigned short", "b32": "unsigned", "b64": "u64"}
# A matrix product's shape and types become an argument, else there would be a function for each.
_PRODUCT = re.compile(r"(.*?)\.(m\d+n\d+k\d+\..*)")


def translated(source: str) -> str:
    """Returns preprocessed C++ with a block in place of each `asm`."""
    parts, done = [], 0
    for found in _ASM.finditer(source):
        end = _closing(source, found.end() - 1)
        parts += [source[done : found.start()], _block(source[found.end() : end])]
        done = end + 1
    return "".join([*parts, source[done:]])


def _closing(text: str, start: int) -> int:
    """The place of the bracket that closes the one at `start`."""
    for place, depth in _brackets(text, _BRACKET, start):
        if depth == 0:
            return place
    raise ValueError(f"nothing closes {text[start : start + 80]!r}")


def _split(text: str, separator: str) -> list[str]:
    """The parts of a text between separators that stand in no bracket and in no string."""
    parts, begin = [], 0
    for place, depth in _brackets(text, _BRACKET_OR[separator]):
        if depth == 0 and text[place] == separator:
            parts.append(text[begin:place])
            begin = place + 1
    return [part.strip() for part in [*parts, text[begin:]]]


def _brackets(text: str, found: re.Pattern[str], start: int = 0) -> Iterator[tuple[int, int]]:
    """Each place outside strings that the pattern finds, and how deep it is behind that."""
    depth = 0
    for each in found.finditer(text, start):
        if each[0][0] != '"':
            depth += (each[0] in "([{") - (each[0] in ")]}")
            yield each.start(), depth


@functools.cache  # the programs of a test session share most of their instructions
def _block(inside: str) -> str:
    """The block for what stands between the brackets of an `asm`. It is one statement."""
    template, *sections = _split(inside, ":")
    operands: list[str] = []
    lines = []
    for is_read, section in enumerate(sections[:2]):
        for operand in filter(None, _split(section, ",")):
            found = _OPERAND.fullmatch(operand)
            assert found, operand
            name = f"ptx_{len(operands)}"
            if is_read:  # of any type; constants have no address
                lines.append(f"auto&& {name} = {found[1]};")
            operands.append(name if is_read else found[1])
    text = "".join(_STRING.findall(template)).replace("\\n", " ").replace("\\t", " ")
    statements = list(_statements(text))
    labels = [f"__label__ {found[1]};" for found in map(_LABEL.match, statements) if found]
    lines += [
        _PLACE.sub(lambda found: operands[int(found[1])], _statement(each)) for each in statements
    ]
    return f"do {{ {' '.join([*labels, *lines])} }} while (0)"


def _statements(text: str) -> Iterator[str]:
    """Each instruction, without the brackets around a scope."""
    for part in text.split(";"):
        each = part.strip()
        while each.startswith("{") or each == "}":
            each = each[1:].strip()
        if each:
            yield each.removesuffix("}").strip() if each.count("{") < each.count("}") else each


def _statement(text: str) -> str:
    """One instruction of PTX, or a declaration, in C++."""
    label = _LABEL.match(text)
    if label:
        return f"{label[1]}: {_statement(text[label.end() :])}"
    guard = _GUARD.match(text)
    if guard:
        return f"if ({guard[1]}{_argument(guard[2])}) {_statement(text[guard.end() :])}"
    opcode, _, rest = text.partition(" ")
    if opcode == "":
        return ";"
    if opcode == ".reg":
        kind, _, names = rest.strip().partition(" ")
        return f"{_REGISTERS[kind[1:]]} {_argument(names)};"
    if opcode == "bra":
        return f"goto {rest.strip()};"
    arguments = [_argument(each) for each in _split(rest, ",") if each not in ("", "_")]
    product = _PRODUCT.fullmatch(opcode)
    if product:
        opcode, arguments = product[1], [f'"{product[2]}"', *arguments]
    return f"ptx::{re.sub('[.:]+', '_', opcode)}({', '.join(arguments)});"


def _argument(text: str) -> str:
    """An operand: `[address]`, `[map, {coordinates}]`, `{registers}`, a register or a number."""
    if text.startswith("["):
        return ", ".join(map(_argument, _split(text[1:-1], ",")))
    if text.startswith("{"):
        return f"{{{', '.join(f'&{_argument(each)}' for each in _split(text[1:-1], ','))}}}"
    return _NAME.sub("ptx_", text)
