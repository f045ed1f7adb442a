"""Folding: the parts of an expression that read only known names are computed once.

A search space has some hundred expressions, and few of them read a length. Where all else is known,
what is left of a rule takes about a microsecond.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

_PLAIN = (bool, int, float, str, type(None))
Compute = Callable[[ast.expr], Any]
"""Returns the value of a tree that reads no names."""


def folded(node: ast.expr, known: Mapping[str, Any], compute: Compute) -> ast.expr:
    """Returns the tree with the values of `known`, and with each part computed that reads nothing
    else. A part whose computing fails stays as it is, and fails when the expression is asked."""

    def fold(part: ast.expr) -> ast.expr:
        return folded(part, known, compute)

    match node:
        case ast.Name(id=name) if name in known and type(known[name]) in _PLAIN:
            return ast.Constant(known[name])
        case ast.Constant() | ast.Name():
            return node
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return ast.Tuple([*map(fold, parts)], ast.Load())
        case ast.IfExp(test=test, body=body, orelse=orelse):
            condition = fold(test)
            if isinstance(condition, ast.Constant):
                return fold(body if condition.value else orelse)
            return ast.IfExp(condition, fold(body), fold(orelse))
        case ast.BoolOp(op=op, values=values):
            return _logic(op, [*map(fold, values)])
        case ast.UnaryOp(op=sign, operand=operand):
            made: ast.expr = ast.UnaryOp(sign, fold(operand))
        case ast.BinOp(left=left, op=sign, right=right):
            made = ast.BinOp(fold(left), sign, fold(right))
        case ast.Compare(left=left, ops=signs, comparators=rights):
            made = ast.Compare(fold(left), signs, [*map(fold, rights)])
        case ast.Call(func=function, args=arguments):
            made = ast.Call(function, [*map(fold, arguments)], [])
        case _:
            return node
    return _computed(made, compute)


def _logic(op: ast.boolop, parts: list[ast.expr]) -> ast.expr:
    """Returns `and` or `or` of the parts without those that do not decide."""
    stop, left = isinstance(op, ast.Or), list[ast.expr]()
    for number, part in enumerate(parts):
        if isinstance(part, ast.Constant):
            if bool(part.value) is stop:  # the value, if the parts before do not decide
                left.append(part)
                break
            if number < len(parts) - 1:
                continue
        left.append(part)
    return left[0] if len(left) == 1 else ast.BoolOp(op, left)


def _computed(node: ast.expr, compute: Compute) -> ast.expr:
    """Returns the value of a tree that reads no names, if it has one; else the tree."""
    operands = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
    if isinstance(node, ast.Call):
        operands = node.args
    if not all(map(_is_known, operands)):
        return node
    try:
        value = compute(node)
    except (ArithmeticError, TypeError, ValueError, RecursionError):
        return node
    return ast.Constant(value) if type(value) in _PLAIN else node


def _is_known(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple):
        return all(map(_is_known, node.elts))
    return isinstance(node, ast.Constant)
