"""Strict YAML: plain data only, keys are text, no duplicate keys, errors with file and line.

Scalars are read as in YAML 1.1, with two differences: `1e12` is a number, and a date is text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from yaml.constructor import ConstructorError
from yaml.reader import Reader

from tunefa.errors import TunefaError, unknown
from tunefa.spec import regular_file

if TYPE_CHECKING:
    from yaml import SafeDumper as _BaseDumper
    from yaml import SafeLoader as _BaseLoader
else:  # the C versions are ten times faster, but PyYAML may be built without libyaml
    _BaseLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    _BaseDumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

REQUIRED: Any = object()
"""The default of `Fields.take`: the key must be there."""

_TAG = "tag:yaml.org,2002:"
_EXPONENT = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$")
_MAX_DEPTH = 100  # libyaml recurses in C: 100,000 opening brackets crash the process
_TOO_DEEP = f"nested more than {_MAX_DEPTH} levels deep"
_MAX_NUMBER = 1_100
"""Characters of a number: enough for the largest float in binary digits. PyYAML takes a time that
grows with the square of the length of a number in base 60 (`1:30:00`), and Python cannot print a
whole number of more than 4,300 digits."""
_WORDS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "text",
    list: "a list",
    dict: "a mapping",
    type(None): "null",
}


class Located(dict[str, Any]):
    """A mapping read from a file; `lines` has the line of each key, counted from 1."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}


class _Loader(_BaseLoader):
    """Loads the types of JSON only: other tags, merge keys and aliases are errors."""

    depth = 0

    def descend_resolver(self, current_node: Any, current_index: Any) -> None:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise _error(current_node, _TOO_DEEP)
        super().descend_resolver(current_node, current_index)

    def ascend_resolver(self) -> None:
        self.depth -= 1
        super().ascend_resolver()

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node in self.constructed_objects:  # nested aliases can expand to gigabytes
            raise _error(node, "this is used again through an alias: write it out in each place")
        try:
            return super().construct_object(node, deep=True)
        except (ValueError, LookupError, OverflowError):  # `0x_`, `!!bool maybe`, 300 x `60:`
            raise _error(node, f"cannot read this as {node.tag.removeprefix(_TAG)}") from None

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        if len(node.value) > _MAX_NUMBER:
            raise _error(node, f"a number has at most {_MAX_NUMBER:,} characters")
        read = self.construct_yaml_int if node.tag == _TAG + "int" else self.construct_yaml_float
        number: int | float = read(node)
        if isinstance(number, int) and not _finite(number):
            raise _error(node, f"whole numbers beyond {sys.float_info.max:.1e} are not read")
        return number

    def construct_located(self, node: yaml.Node) -> Located:
        if not isinstance(node, yaml.MappingNode):
            raise _error(node, "expected a mapping")
        located = Located()
        for key_node, value_node in node.value:
            if problem := _problem_with_key(key_node, located):
                raise _error(key_node, problem)
            located.lines[key_node.value] = key_node.start_mark.line + 1
            located[key_node.value] = self.construct_object(value_node)
        return located

    def construct_refused(self, node: yaml.Node) -> None:
        raise _error(node, f"only plain data is read, not {node.tag.replace(_TAG, '!!')}")


def _error(node: yaml.Node, problem: str) -> ConstructorError:
    return ConstructorError(None, None, problem, node.start_mark)


def _problem_with_key(node: yaml.Node, located: Located) -> str:
    """Returns why the key at `node` cannot be added to `located`; an empty text if it can."""
    if not isinstance(node, yaml.ScalarNode):
        return "a mapping key must be text, not a list or a mapping"
    if node.tag != _TAG + "str":
        return f"mapping key {node.value!r} is not text: put it in quotes"
    if node.value in located:
        first = located.lines[node.value]
        return f"key {node.value!r} is already on line {first}: remove one of the two"
    return ""


class _Dumper(_BaseDumper):
    """Dumps the types of JSON only, without aliases for values that occur twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_plain(self, data: dict[str, Any]) -> yaml.MappingNode:
        for key in data:
            if not isinstance(key, str):
                raise TypeError(f"mapping key {key!r} is not a str")
        return self.represent_dict(data)


_READERS: dict[Any, Any] = {
    tag: yaml.SafeLoader.yaml_constructors[tag]
    for tag in (_TAG + name for name in ("null", "bool", "str", "seq"))
}
_READERS[_TAG + "int"] = _READERS[_TAG + "float"] = _Loader.construct_number
_READERS[_TAG + "map"] = _Loader.construct_located
_READERS[_TAG + "timestamp"] = _READERS[_TAG + "str"]
_READERS[None] = _Loader.construct_refused
_Loader.yaml_constructors = _READERS

_WRITERS: dict[Any, Any] = {
    kind: write
    for kind, write in yaml.SafeDumper.yaml_representers.items()
    if kind in (type(None), bool, int, float, str, list, tuple, None)
}
_WRITERS[dict] = _WRITERS[Located] = _Dumper.represent_plain
_Dumper.yaml_representers = _WRITERS

for _each in (_Loader, _Dumper):  # also the dumper, so that it quotes the *text* "1e12"
    _each.add_implicit_resolver(_TAG + "float", _EXPONENT, list("-+.0123456789"))


def load(text: str, where: str) -> Any:
    """Returns the document in `text`, with mappings as `Located`; None if `text` is empty.

    Raises TunefaError, which begins with `where:line: `, if it is not well-formed plain data.
    """
    if odd := Reader.NON_PRINTABLE.search(text):
        line = text.count("\n", 0, odd.start()) + 1
        raise TunefaError(
            f"{where}:{line}: YAML does not allow the character {odd[0]!r}: remove it"
        )
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{where}:{mark.line + 1}" if mark else where
        problem = ", ".join(filter(None, (error.context, error.problem)))
        if "maximum nesting depth" in problem:  # libyaml of PyYAML 6.0.4 has a limit of its own
            problem = _TOO_DEEP
        raise TunefaError(f"{place}: {problem}") from None
    finally:
        loader.dispose()


def load_file(path: Path) -> Any:
    """Returns the document in the file at `path`.

    Raises TunefaError, with the path, if the file is missing, unreadable, not UTF-8, empty, or not
    what `load` accepts.
    """
    return load_text(read_text(path), str(path))


def read_text(path: Path) -> str:
    """Returns the text of the file at `path`.

    Raises TunefaError, with the path, if the file is missing, unreadable or not UTF-8.
    """
    try:
        return regular_file.text(path)
    except OSError as error:
        raise TunefaError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise TunefaError(
            f"{path}: not UTF-8 text (byte {error.start}): save it as UTF-8"
        ) from None


def load_text(text: str, where: str) -> Any:
    """Returns the document in `text`, which is a whole file. `where` names it in messages.

    Raises TunefaError if the file has no document, or not one that `load` accepts.
    """
    data = load(text, where)
    if data is None:
        raise TunefaError(f"{where}: the file is empty: delete it or restore its content")
    return data


def dump(data: Any) -> str:
    """Returns the document that `load` reads back as `data`; tuples become lists.

    Raises TypeError for a key that is not a str, and yaml.YAMLError for a type that JSON does not
    have. Both are bugs.
    """
    text = yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)
    return str(text)


class Fields:
    """Reads one mapping: each key must be taken, and have the expected type."""

    def __init__(self, data: Any, where: str) -> None:
        """Reads `data`. `where` begins each message; if `load` made `data`, a line number follows.

        Raises TunefaError if `data` is not a mapping.
        """
        if not isinstance(data, Mapping):
            raise TunefaError(f"{where}: expected a mapping of keys to values, not {_shown(data)}")
        self._data: Mapping[str, Any] = data
        self._where = where
        self._taken: dict[str, None] = {}

    def at(self, key: str) -> str:
        """Returns the place of `key`: `file:line`, or only the file if the line is not known."""
        line = self._data.lines.get(key) if isinstance(self._data, Located) else None
        return f"{self._where}:{line}" if line else self._where

    def take(self, key: str, kind: type | tuple[type, ...], default: Any = REQUIRED) -> Any:
        """Returns the value of `key`, or `default` if the key is missing.

        `kind` is one or several of bool, int, float, str, list, dict and NoneType. A bool does not
        count as an int. An int is converted where a float is expected; a float must be finite.
        Raises TunefaError if the key is missing and has no default, or its value has another type.
        """
        kinds = kind if isinstance(kind, tuple) else (kind,)
        self._taken[key] = None
        if key not in self._data:
            if default is REQUIRED:
                raise TunefaError(
                    f"{self._where}: key {key!r} is missing: add it ({_words(kinds)})"
                )
            return default
        value = self._data[key]
        if type(value) is int and int not in kinds and float in kinds and _finite(value):
            return float(value)
        fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
        if not fits or (isinstance(value, float) and not _finite(value)):
            raise TunefaError(
                f"{self.at(key)}: {key!r} must be {_words(kinds)}, not {_shown(value)}"
            )
        return value

    def done(self) -> None:
        """Raises TunefaError if there are keys that were not taken, with the nearest known key."""
        extra = [key for key in self._data if key not in self._taken]
        if extra:
            errors = (f"{self.at(key)}: {unknown('key', key, self._taken)}" for key in extra)
            raise TunefaError("; ".join(errors))


def _finite(value: float) -> bool:
    return abs(value) <= sys.float_info.max


def _words(kinds: Iterable[type]) -> str:
    return " or ".join(_WORDS.get(kind, kind.__name__) for kind in kinds)


def _shown(value: Any) -> str:
    """Returns `value` for a message: the value if it is short, else its type in words."""
    text = repr(value)
    return text if len(text) <= 60 else _WORDS.get(type(value), "a mapping")
