"""Finds wgmma descriptors that one path through a kernel leaves unset: a fault of ptxas.

ptxas 12.8, which Triton 3.6 and 3.7 bring along, may compute the descriptors of an operand that two
loops read only before the first loop, even where that loop has no steps and is jumped over. The
second loop then reads shared memory at any address. Such a kernel is right in every call that does
not jump over the first loop, so that no test of other calls finds it; ptxas 13.0 compiles the same
PTX correctly.

A descriptor is 64 bits in two uniform registers. The upper half has the swizzle and the stride
(PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout"), so ptxas makes it of a
constant, or copies it. An analysis of data flow over the disassembled kernel follows which uniform
registers may hold something else, along all paths, up to the wgmma instructions.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

FORMAT = 1
"""Changes with this analysis: binaries that an earlier one passed are looked at again."""
MENDED = (13, 0)
"""The first version of ptxas that is known not to have the fault."""
_FUNCTION = re.compile(r"^\s*Function : (\S+)$", re.MULTILINE)
_INSTRUCTION = re.compile(
    r"^\s+/\*(?P<at>[0-9a-f]{4,})\*/\s+(?P<predicate>@!?U?P\w+\s+)?"
    r"(?P<op>[A-Z0-9_.]+) *(?P<operands>[^;]*?) *;",
    re.MULTILINE,
)
_JUMPS = frozenset({"BRA", "JMP", "CALL", "BRX", "BRXU", "JMX", "EXIT", "RET", "KILL"})
_INDIRECT = frozenset({"BRX", "BRXU", "JMX"})
_ENDS = frozenset({"EXIT", "RET", "KILL"})
_ADDRESS = re.compile(r"0x([0-9a-f]+)$")
_REGISTER = re.compile(r"\bUR(\d+)")
_CONSTANT = re.compile(r"(?:^|, *)-?0x([0-9a-f]+)")
_WRITTEN = re.compile(r"^(?:U?P\w+, *)*UR(\d+)")
_WITH_RESULT = ("U", "R2UR", "S2UR", "CS2UR", "REDUX", "VOTEU", "LDCU")
_WITHOUT_RESULT = ("UTMA", "UBLK", "UCGABAR", "UISETP", "UFSETP", "UPLOP3", "USETMAXREG")
_ANYTHING = ("R2UR", "ULDC", "LDCU")
"""Instructions whose results may be whole descriptors, from other registers or from memory."""
_PASSING_ON = ("UMOV", "UIADD3.X", "ULOP3", "USEL")
"""Instructions whose result is the upper half of a descriptor if an operand is one, or a
constant."""
_LARGE = 2**29
"""Constants from here on have swizzle bits: a result with one is the upper half of a descriptor."""
_ALL = 2**64 - 1


@dataclass
class _Step:
    """One instruction that jumps, writes a uniform register, or is a wgmma."""

    at: int
    op: str
    operands: str
    predicated: bool
    next: list[int] = field(default_factory=list)
    """The places of those that may follow."""


def unset(sass: str) -> str | None:
    """Returns which wgmma reads a descriptor that may be unset, such as `UR21 of the wgmma at
    0xbf30 of key_gradients`; None if there is none. `sass` is what `cuobjdump --dump-sass`
    prints."""
    starts = [(match[1], match.end()) for match in _FUNCTION.finditer(sass)]
    ends = [start for _, start in starts[1:]] + [len(sass)]
    for (name, start), end in zip(starts, ends, strict=True):
        steps = _connected(list(_steps(sass[start:end])))
        for step, register in _unset(steps):
            return f"UR{register} of the wgmma at {step.at:#x} of {name}"
    return None


def _steps(text: str) -> Iterator[_Step]:
    for match in _INSTRUCTION.finditer(text):
        op, operands = match["op"], match["operands"]
        if op.split(".")[0] in _JUMPS or "GMMA" in op or _writes(op, operands) is not None:
            yield _Step(int(match["at"], 16), op, operands, match["predicate"] is not None)


def _writes(op: str, operands: str) -> int | None:
    """Returns the first uniform register that an instruction writes; None if it writes none."""
    if not op.startswith(_WITH_RESULT) or op.startswith(_WITHOUT_RESULT):
        return None
    match = _WRITTEN.match(operands)
    return int(match[1]) if match else None


def _connected(steps: list[_Step]) -> list[_Step]:
    """Fills in which instructions may follow. Those that no other one leads to are where indirect
    jumps go."""
    places = [step.at for step in steps]
    for place, step in enumerate(steps):
        kind = step.op.split(".")[0]
        target = _ADDRESS.search(step.operands)
        if kind in _JUMPS - _ENDS - _INDIRECT and target:
            step.next.append(bisect.bisect_left(places, int(target[1], 16)))
        may_pass = step.predicated or "," in step.operands or kind == "CALL"
        if may_pass or kind not in _JUMPS:
            step.next.append(place + 1)
        step.next = [each for each in step.next if each < len(steps)]
    seen: set[int] = set()
    _reach(steps, 0, seen)
    indirect = [step for step in steps if step.op.split(".")[0] in _INDIRECT]
    for place in range(len(steps) if indirect else 0):
        if place not in seen:
            for step in indirect:
                step.next.append(place)
            _reach(steps, place, seen)
    return steps


def _reach(steps: Sequence[_Step], place: int, seen: set[int]) -> None:
    """Adds all places to `seen` that come after one."""
    waiting = [place]
    while waiting:
        place = waiting.pop()
        if place < len(steps) and place not in seen:
            seen.add(place)
            waiting += steps[place].next


def _unset(steps: Sequence[_Step]) -> Iterator[tuple[_Step, int]]:
    """Yields each wgmma with a register that may not hold the upper half of a descriptor."""
    if not any("GMMA" in step.op for step in steps):
        return
    before: list[int | None] = [None] * len(steps)  # bit r: UR r may hold something else
    before[0] = _ALL
    waiting = [0]
    while waiting:
        place = waiting.pop()
        known = before[place]
        assert known is not None
        after = _after(steps[place], known)
        for each in steps[place].next:
            old = before[each]
            joined = after if old is None else old | after
            if joined != old:
                before[each] = joined
                waiting.append(each)
    for step, bits in zip(steps, before, strict=True):
        if "GMMA" in step.op and bits is not None:
            for register in _upper_halves(step.operands):
                if bits >> register & 1:
                    yield step, register


def _upper_halves(operands: str) -> list[int]:
    """Returns the registers with the upper halves of a wgmma's descriptors: of both operands, or of
    the second one if the first is in registers."""
    first = operands.find("gdesc[")
    if first < 0:
        return []
    register = int(_REGISTER.findall(operands[first:])[0])
    left_in_registers = operands[:first].count(",") > 1
    return [register + 3] if left_in_registers else [register + 1, register + 3]


def _after(step: _Step, bits: int) -> int:
    """Returns which registers may hold something else after an instruction. One that is predicated
    counts as executed: compilers write both sides of a choice so."""
    first = _writes(step.op, step.operands)
    if first is None:
        return bits
    operands = step.operands.partition(f"UR{first}")[2]
    sources = [int(each) for each in _REGISTER.findall(operands)]
    if step.op.startswith("UIADD3.64"):  # pairs of registers, and constants for the lower half
        good = any(not bits >> register + 1 & 1 for register in sources)
        return _with(bits | 1 << first, first + 1, good)
    constants = [int(each, 16) for each in _CONSTANT.findall(operands)]
    good = step.op.startswith(_ANYTHING) or any(each >= _LARGE for each in constants)
    if step.op.startswith(_PASSING_ON):
        good = good or bool(constants) or any(not bits >> each & 1 for each in sources)
    width = 2 if re.search(r"\.64|\.WIDE", step.op) else 4 if ".128" in step.op else 1
    for register in range(first, first + width):
        bits = _with(bits, register, good)
    return bits


def _with(bits: int, register: int, good: bool) -> int:
    return bits & ~(1 << register) if good else bits | 1 << register
