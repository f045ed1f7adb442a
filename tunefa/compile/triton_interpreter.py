"""Triton's interpreter loses most of its time to work that changes no number: it is left out.

Everything here changes the interpreter of this process, and nothing that a kernel computes. Parts
that a version of Triton lacks are passed over.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import importlib
from typing import Any

from tunefa.compile import triton_tools


@functools.cache
def quicken() -> None:
    """Changes the interpreter, once. TRITON_INTERPRET must be set before Triton is imported."""
    name = triton_tools.installed().__name__
    interpreter = importlib.import_module(f"{name}.runtime.interpreter")
    language = importlib.import_module(f"{name}.language")
    gc.collect()
    gc.freeze()  # PyTorch and Triton stay: each run of the collector would look through them
    _drop_unread_conditions(interpreter)
    if hasattr(interpreter, "_LangPatchScope") and hasattr(interpreter, "_patch_lang"):
        _patch_the_language_once(interpreter, language)
    if hasattr(interpreter, "_get_np_dtype"):
        _know_dtypes(interpreter)
    _know_types(language.core)


def _drop_unread_conditions(interpreter: Any) -> None:
    """For each sum and product of integers the interpreter computes whether it overflows, and hands
    that to a device_assert that ignores it unless `debug` is set: a third of the time, for nothing.
    """
    builder: Any = getattr(interpreter, "interpreter_builder", None)
    options: Any = getattr(builder, "options", None)
    if hasattr(options, "sanitize_overflow") and not getattr(options, "debug", True):
        builder.options = dataclasses.replace(options, sanitize_overflow=False)


def _patch_the_language_once(interpreter: Any, language: Any) -> None:
    """The interpreter replaces the functions of triton.language for a launch, and again for each
    call of a jit function inside it. The repetitions change nothing and take a third of the time:
    leaves them out where the launch has replaced those of the same modules."""
    patch, patched = interpreter._patch_lang, set[int]()
    modules = {id(language), id(language.core)}

    def patch_once(function: Any) -> Any:
        seen = modules.intersection(map(id, function.__globals__.values()))
        if seen <= patched:
            return interpreter._LangPatchScope()
        scope = patch(function)
        patched.update(seen)
        restore = scope.restore

        def restored() -> None:  # called at the end of a launch, not of a call inside it
            patched.clear()
            restore()

        scope.restore = restored
        return scope

    interpreter._patch_lang = patch_once


def _know_dtypes(interpreter: Any) -> None:
    """The interpreter makes a table of NumPy's dtypes whenever it looks one up."""
    look_up, found = interpreter._get_np_dtype, dict[str, Any]()

    def known(dtype: Any) -> Any:
        element = dtype.element_ty if dtype.is_block() else dtype
        if element.is_ptr():
            return look_up(dtype)
        if element.name not in found:
            found[element.name] = look_up(element)
        return found[element.name]

    interpreter._get_np_dtype = known


def _know_types(core: Any) -> None:
    """Each operation makes types of blocks and tensors of these. All that they say follows from the
    type of an element and the shape, and takes longer to find than a small product: finds it once.
    """
    _init_once(core.block_type, lambda self, element, shape: (id(element), *shape), ())

    def kind(self: Any, handle: Any, type: Any) -> tuple[Any, ...]:
        return (id(type.element_ty), *type.shape) if type.is_block() else (id(type),)

    _init_once(core.tensor, kind, ("handle", "type"))


def _init_once(made: Any, key: Any, own: tuple[str, ...]) -> None:
    """Lets instances with equal keys share their attributes, but for the `own` ones, which are
    arguments. Keys have the ids of objects that the first instance keeps alive."""
    initialise, known = made.__init__, dict[tuple[Any, ...], tuple[Any, dict[str, Any]]]()

    def init(self: Any, *arguments: Any, **named: Any) -> None:
        found = () if named else key(self, *arguments)
        if named or any(type(each) is not int for each in found):  # such as a constexpr
            initialise(self, *arguments, **named)
        elif found not in known:
            initialise(self, *arguments)
            shared = {name: each for name, each in vars(self).items() if name not in own}
            known[found] = arguments, shared
        else:
            attributes = vars(self)
            attributes.update(known[found][1])
            attributes.update(zip(own, arguments, strict=False))

    made.__init__ = init
