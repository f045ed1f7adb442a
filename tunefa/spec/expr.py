"""Expressions of search spaces: arithmetic with an allow-list of syntax.

An expression is parsed once, into a tree of Python closures. Nothing is evaluated as Python, so a
search space from an unknown source can compute values but cannot do anything else.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from tunefa.errors import TunefaError, unknown
from tunefa.spec.folding import folded
from tunefa.spec.rounding import ceil_div, next_pow2, round_up

_Run = Callable[[Mapping[str, Any]], Any]

_NUMBER = (int, float)
_MAX_POWER_BITS = 1024
"""The limit for powers: `9**9**9` would fill the memory."""


def _power(base: Any, exponent: Any) -> Any:
    if not isinstance(exponent, int):
        raise TypeError(f"the exponent {exponent} is not a whole number")
    if abs(exponent) * math.log2(max(2, abs(base))) > _MAX_POWER_BITS:
        raise OverflowError(f"a power above 2**{_MAX_POWER_BITS} is not computed")
    return base**exponent


_FUNCTIONS: dict[str, tuple[Callable[..., Any], int, int]] = {
    "abs": (abs, 1, 1),
    "ceil_div": (ceil_div, 2, 2),
    "log2": (math.log2, 1, 1),
    "max": (max, 1, 255),
    "min": (min, 1, 255),
    "next_pow2": (next_pow2, 1, 1),
    "round_up": (round_up, 2, 2),
}
"""By name: the function, and the least and most arguments that it takes."""
_ALLOWED = f"+ - * / // % **, comparisons, and/or/not, if/else, {', '.join(_FUNCTIONS)}"
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, group: item in group,
    ast.NotIn: lambda item, group: item not in group,
}


class Expr:
    """One expression, such as `ceil_div(seqlen_q, BLOCK_M) * 2 if causal else 1`.

    Allowed are numbers, text, True, False, None, names, and tuples (a list is read as a tuple);
    `+ - * / // % **`; comparisons, also chained, and `in` a tuple; `and or not`; `a if c else b`;
    calls of abs, ceil_div(value, divisor), log2, max, min, next_pow2, round_up(value, multiple).
    """

    names: frozenset[str]
    """The names that the expression reads."""
    run: _Run
    """Computes the value as a call does, and raises what Python raises."""

    def __init__(self, source: str, where: str = "") -> None:
        """Parses `source`. `where` (such as `file:line`) begins each error message.

        Raises TunefaError for syntax that is not allowed, and for an unknown function.
        """
        self.source = source.strip()
        self.where = where
        try:
            tree = ast.parse(self.source, mode="eval").body
            self._tree, self.run = tree, _build(tree)
        except SyntaxError as error:
            raise self._error(str(error.msg)) from None
        except (ValueError, RecursionError, MemoryError):  # a null byte; a thousand brackets
            raise self._error("it cannot be parsed") from None
        self.names = _names(tree)

    def __call__(self, env: Mapping[str, Any]) -> Any:
        """Returns the value, with names taken from `env`; raises TunefaError if there is none."""
        try:
            return self.run(env)
        except KeyError as error:
            raise self._error(str(unknown("name", str(error.args[0]), env))) from None
        except (ArithmeticError, TypeError, ValueError, RecursionError) as error:
            used = ", ".join(f"{name}={env[name]!r}" for name in sorted(self.names & env.keys()))
            raise self._error(f"{error}{', with ' if used else ''}{used}") from None

    def given(self, known: Mapping[str, Any]) -> Expr:
        """Returns the expression that is left where these names have these values: the parts that
        read nothing else are computed once. Its `names` are empty where nothing is left to read."""
        if self.names.isdisjoint(known):
            return self
        made = object.__new__(Expr)
        made._tree = folded(self._tree, known, lambda node: _build(node)({}))
        made.source, made.where = ast.unparse(made._tree), self.where
        made.run, made.names = _build(made._tree), _names(made._tree)
        return made

    @property
    def is_constant(self) -> bool:
        """Whether it is one value, so that nothing is left to compute."""
        return isinstance(self._tree, ast.Constant)

    def __repr__(self) -> str:
        return f"Expr({self.source!r})"

    def __reduce__(self) -> tuple[type[Expr], tuple[str, str]]:
        return Expr, (self.source, self.where)  # closures cannot be pickled

    def _error(self, problem: str) -> TunefaError:
        place = f"{self.where}: in" if self.where else "in"
        return TunefaError(f"{place} {self.source!r}: {problem}")


def _names(tree: ast.expr) -> frozenset[str]:
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return frozenset(names - _FUNCTIONS.keys())


def _build(node: ast.expr) -> _Run:
    """Returns a closure that computes `node`. Raises SyntaxError if `node` is not allowed."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return lambda env: value
        case ast.Name(id=name) if name not in _FUNCTIONS:
            return operator.itemgetter(name)
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            items = [_build(element) for element in elements]
            if all(isinstance(element, ast.Constant) for element in elements):
                values = tuple([item({}) for item in items])
                return lambda env: values
            return lambda env: tuple([item(env) for item in items])
        case ast.UnaryOp(op=ast.USub() | ast.Not() as op, operand=operand):
            act = operator.neg if isinstance(op, ast.USub) else operator.not_
            run = _build(operand)
            return lambda env: act(run(env))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            compute, run = _ARITHMETIC[type(op)], _build(left)
            if _is_number(right):
                return _arithmetic_with(compute, run, _build(right)({}))
            return _arithmetic(compute, run, _build(right))
        case ast.BoolOp(op=op, values=values):
            return _logic(isinstance(op, ast.Or), [_build(value) for value in values])
        case ast.Compare():
            return _comparison(node)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            condition, yes, no = _build(test), _build(body), _build(orelse)
            return lambda env: yes(env) if condition(env) else no(env)
        case ast.Call():
            return _call(node)
    raise SyntaxError(f"{ast.unparse(node)!r} is not allowed here: use {_ALLOWED}")


def _arithmetic(act: Callable[[Any, Any], Any], left: _Run, right: _Run) -> _Run:
    def run(env: Mapping[str, Any]) -> Any:
        a, b = left(env), right(env)
        # With text, '%9999d' % 1 would be formatting.
        if not (isinstance(a, _NUMBER) and isinstance(b, _NUMBER)):
            raise TypeError(f"arithmetic needs numbers, not {a!r} and {b!r}")
        return act(a, b)

    return run


def _arithmetic_with(act: Callable[[Any, Any], Any], left: _Run, b: Any) -> _Run:
    """Returns `_arithmetic` with a number on the right: one check less for each config."""

    def run(env: Mapping[str, Any]) -> Any:
        a = left(env)
        if not isinstance(a, _NUMBER):
            raise TypeError(f"arithmetic needs numbers, not {a!r} and {b!r}")
        return act(a, b)

    return run


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, _NUMBER)


def _logic(stop: bool, parts: list[_Run]) -> _Run:
    """Returns `or` if `stop` is True, which ends at the first true part; else `and`."""

    def run(env: Mapping[str, Any]) -> Any:
        for part in parts:
            value = part(env)
            if bool(value) is stop:
                break
        return value

    return run


def _comparison(node: ast.Compare) -> _Run:
    links = []
    for op, right in zip(node.ops, node.comparators, strict=True):
        if type(op) not in _COMPARISONS:
            raise SyntaxError("'is' is not allowed: write == or !=")
        if isinstance(op, ast.In | ast.NotIn) and not isinstance(right, ast.Tuple | ast.List):
            raise SyntaxError(f"'in' needs a tuple such as (64, 128), not {ast.unparse(right)!r}")
        links.append((_COMPARISONS[type(op)], _build(right)))
    first = _build(node.left)
    if len(links) == 1:
        ((compare_once, second),) = links
        if isinstance(node.comparators[0], ast.Constant):
            value = second({})
            return lambda env: compare_once(first(env), value)
        return lambda env: compare_once(first(env), second(env))

    def run(env: Mapping[str, Any]) -> bool:
        left = first(env)
        for compare, build_right in links:
            right = build_right(env)
            if not compare(left, right):
                return False
            left = right
        return True

    return run


def _call(node: ast.Call) -> _Run:
    if not isinstance(node.func, ast.Name) or node.keywords:
        raise SyntaxError(f"{ast.unparse(node)!r} is not allowed: call a function by its name")
    name = node.func.id
    if name not in _FUNCTIONS:
        raise SyntaxError(str(unknown("function", name, _FUNCTIONS)))
    function, least, most = _FUNCTIONS[name]
    if not least <= len(node.args) <= most:
        raise SyntaxError(f"{name} cannot take {len(node.args)} argument(s)")
    arguments = [_build(argument) for argument in node.args]
    if len(arguments) == 1:  # faster than what follows, as is the case of two
        only = arguments[0]
        return lambda env: function(only(env))
    if len(arguments) == 2:
        first, second = arguments
        return lambda env: function(first(env), second(env))
    return lambda env: function(*[argument(env) for argument in arguments])
