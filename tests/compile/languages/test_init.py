"""Languages are found by file name, and say what they lack."""

from __future__ import annotations

import pytest

from tunefa.compile import languages
from tunefa.compile.languages import triton as language
from tunefa.errors import TunefaError


def test_languages_are_found_by_file_name() -> None:
    assert "triton" in languages.names()
    assert languages.load("triton") is language
    with pytest.raises(TunefaError, match="unknown language 'tritom': did you mean triton"):
        languages.load("tritom")
