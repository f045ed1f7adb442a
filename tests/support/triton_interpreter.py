"""What Triton's interpreter needs to multiply bf16 and to lose no time, for processes of tests.

TRITON_INTERPRET=1 must be set before Triton is imported.
"""

from __future__ import annotations

import os
from typing import Any


def prepare() -> None:
    """Changes the interpreter of this process."""
    assert os.environ["TRITON_INTERPRET"] == "1"
    _let_it_multiply_bf16()
    _let_it_patch_the_language_once()
    _let_it_drop_unread_conditions()
    _let_it_know_dtypes()
    _let_it_know_types()


def _let_it_multiply_bf16() -> None:
    """The interpreter keeps bf16 in uint16 and multiplies these as integers (triton-lang/triton
    issue 11584, closed as not supported): widens them to fp32 first, which changes no value."""
    import numpy
    import triton.language as tl
    from triton.runtime import interpreter

    builder: Any = interpreter.InterpreterBuilder
    multiply = builder.create_dot

    def widened(matrix: Any) -> Any:
        if matrix.dtype.scalar != tl.bfloat16:
            return matrix
        bits = matrix.data.astype(numpy.uint32) << 16  # bf16 is the upper half of an fp32
        return interpreter.TensorHandle(bits.view(numpy.float32), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return multiply(self, widened(a), widened(b), *rest)

    builder.create_dot = create_dot


def _let_it_patch_the_language_once() -> None:
    """The interpreter replaces the functions of triton.language for a launch, and again for each
    call of a jit function inside it. The repetitions change nothing and take a third of the time:
    leaves them out where the launch has replaced those of the same modules."""
    import triton.language as tl
    from triton.runtime import interpreter

    internal: Any = interpreter
    if not hasattr(internal, "_LangPatchScope"):  # another version of Triton
        return
    patch, patched = internal._patch_lang, set[int]()

    def patch_once(function: Any) -> Any:
        seen = {id(each) for each in function.__globals__.values() if each in (tl, tl.core)}
        if seen <= patched:
            return internal._LangPatchScope()
        scope = patch(function)
        patched.update(seen)
        restore = scope.restore

        def restored() -> None:  # called at the end of a launch, not of a call inside it
            patched.clear()
            restore()

        scope.restore = restored
        return scope

    internal._patch_lang = patch_once


def _let_it_drop_unread_conditions() -> None:
    """For each sum and product of integers the interpreter computes whether it overflows, and hands
    that to a device_assert that ignores it unless `debug` is set: a third of the time, for nothing.
    """
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    internal, semantic = map(vars, (interpreter, TritonSemantic))
    builder, unread = internal["interpreter_builder"], "binary_op_sanitize_overflow_impl"
    if unread in semantic and not builder.options.debug:
        setattr(TritonSemantic, unread, lambda *_: None)


def _let_it_know_dtypes() -> None:
    """The interpreter makes a table of NumPy's dtypes whenever it looks one up."""
    from triton.runtime import interpreter

    internal: Any = interpreter
    look_up, found = internal._get_np_dtype, dict[str, Any]()

    def known(dtype: Any) -> Any:
        element = dtype.element_ty if dtype.is_block() else dtype
        if element.is_ptr():
            return look_up(dtype)
        if element.name not in found:
            found[element.name] = look_up(element)
        return found[element.name]

    internal._get_np_dtype = known


def _let_it_know_types() -> None:
    """Each operation makes types of blocks and tensors of these. All that they say follows from the
    type of an element and the shape, and takes longer to find than a small product: finds it once.
    """
    import triton.language as tl

    internal: Any = tl.core
    _init_once(internal.block_type, lambda self, element, shape: (id(element), *shape), ())

    def kind(self: Any, handle: Any, type: Any) -> tuple[Any, ...]:
        return (id(type.element_ty), *type.shape) if type.is_block() else (id(type),)

    _init_once(internal.tensor, kind, ("handle", "type"))


def _init_once(made: Any, key: Any, own: tuple[str, ...]) -> None:
    """Lets instances with equal keys share their attributes, but for the `own` ones, which are
    arguments. Keys have the ids of objects that the first instance keeps alive."""
    initialise, known = made.__init__, dict[tuple[Any, ...], tuple[Any, dict[str, Any]]]()

    def init(self: Any, *arguments: Any) -> None:
        found = key(self, *arguments)
        if any(type(each) is not int for each in found):  # such as a constexpr
            initialise(self, *arguments)
        elif found not in known:
            initialise(self, *arguments)
            shared = {name: each for name, each in vars(self).items() if name not in own}
            known[found] = arguments, shared
        else:
            vars(self).update(known[found][1])
            for name, argument in zip(own, arguments, strict=False):
                setattr(self, name, argument)

    made.__init__ = init
