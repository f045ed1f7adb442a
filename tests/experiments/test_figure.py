"""Plots as PNG files, and as SVG that takes a page's colours."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.support.pictures import pixels
from tunefa.errors import TunefaError
from tunefa.experiments import figure


def line(canvas: Any) -> None:
    """Draws one line."""
    axes = canvas.add_subplot()
    axes.plot([0, 1], [0, 1], color=figure.OURS)
    axes.set_title("a line")


def test_a_png_is_a_picture_of_its_size(tmp_path: Path) -> None:
    figure.save_png(line, tmp_path / "line.png", (6.0, 4.0))
    assert pixels(tmp_path / "line.png").shape[:2] == (480, 720)


def test_an_svg_scales_and_takes_the_colours_of_the_page() -> None:
    text = figure.svg(line)
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg") and "viewBox" in root.attrib
    assert "width" not in root.attrib and "height" not in root.attrib
    assert all(f"var(--{name})" in text for name in ("ink", "paper", "grid"))
    assert figure.OURS in text and text == figure.svg(line)


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TunefaError, match=r"cannot write .*none.plot\.png: No such file"):
        figure.save_png(line, tmp_path / "none" / "plot.png")


def test_without_matplotlib_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(TunefaError, match="pip install 'matplotlib"):
        figure.save_png(line, tmp_path / "plot.png")
    assert not (tmp_path / "plot.png").exists()
