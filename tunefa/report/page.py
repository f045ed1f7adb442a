"""The page: sections as one HTML document, which needs nothing from a network.

Jinja2 escapes every text, as records, journals and documents may come from anyone. Plots are SVG
elements in the page, in which text is drawn as shapes.
"""

from __future__ import annotations

import re
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tunefa.errors import TunefaError
from tunefa.experiments import figure
from tunefa.experiments.table import Table
from tunefa.report import (
    certificates,
    convergence,
    experiments,
    failures,
    heat_maps,
    rooflines,
    winners,
)
from tunefa.report.content import Content
from tunefa.report.part import UNREADABLE, Block, Plot, Section, plural, printable, why_unreadable

TEMPLATES = Path(__file__).parent / "templates"
_LONG = 64
"""Cells with more characters than this are given a wide column."""
_PIXELS = 96
"""Pixels of an inch in CSS."""
_MOST, _LEAST = 1.1, 0.8
"""The largest scale of a plot, and the smallest before it scrolls: its text must stay readable."""


def sections(content: Content) -> list[Section]:
    """Returns the sections of the page in their order."""
    return [
        winners.section(content),
        certificates.section(content),
        convergence.section(content),
        heat_maps.section(content),
        rooflines.section(content),
        failures.section(content),
        experiments.peers(content),
        experiments.section(content),
    ]


def require_libraries() -> None:
    """Raises TunefaError if Jinja2 or matplotlib is missing. Long work asks this first."""
    for module, name, least in (("jinja2", "Jinja2", "3.1"), ("matplotlib", "matplotlib", "3.8")):
        if find_spec(module) is None:
            raise TunefaError(
                f"the page needs {name}, which is not installed: pip install '{name}>={least}', "
                "or print the data with --json and make the page elsewhere with --from"
            )


def render(content: Content) -> str:
    """Returns the HTML of the page. The same content gives the same text.

    Raises TunefaError if a library is missing.
    """
    require_libraries()
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )
    environment.filters |= {"breakable": _breakable, "prose": _prose}
    template = environment.get_template("page.html")
    shown = [_shown(section) for section in sections(content)]
    return template.render(
        sections=shown, content=content, summary=summary(content), styles=_styles()
    )


def summary(content: Content) -> str:
    """Returns what is on the page, in one sentence."""
    parts = [
        plural(len(content.records), "winner"),
        plural(len(content.searches), "search"),
        plural(sum(each.count for each in content.failures), "failed config"),
        f"results of {plural(len(content.experiments), 'experiment')}",
    ]
    return f"{', '.join(parts[:-1])} and {parts[-1]}."


def _shown(section: Section) -> dict[str, Any]:
    """The section for the template, with its plots drawn."""
    parts = [
        {
            "title": part.title,
            "blocks": [
                _block(block, f"{section.name}-{place}-{number}")
                for number, block in enumerate(part.blocks)
            ],
        }
        for place, part in enumerate(section.parts)
    ]
    return {**vars(section), "parts": parts}


def _block(block: Block, prefix: str) -> dict[str, Any]:
    if isinstance(block, str):
        return {"kind": "text", "text": block}
    if isinstance(block, Table):
        return {"kind": "table", "table": block, "heads": _heads(block)}
    try:
        drawn = _svg(block, prefix)
    except UNREADABLE as error:
        return {"kind": "text", "text": f"The plot is left out: {why_unreadable(error)}."}
    width = block.size[0] * _PIXELS
    widths = {"most": round(_MOST * width), "least": round(_LEAST * width)}
    return {"kind": "plot", "svg": drawn, "caption": block.caption, **widths}


def _heads(table: Table) -> list[dict[str, Any]]:
    """The columns of a table: name, unit, and the CSS class of their cells."""
    found = []
    for place, head in enumerate(table.head):
        name, _, unit = head.partition("\n")
        longest = max((len(row[place]) for row in table.rows), default=0)
        kind = ("long" if longest > _LONG else "word") if head in table.words else "figure"
        found.append({"name": name, "unit": unit, "kind": kind})
    return found


def _svg(plot: Plot, prefix: str) -> Any:
    """Draws a plot as an SVG element with its label. Its ids begin with `prefix`, as those of
    another plot may be the same."""
    from markupsafe import Markup

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # characters that the font lacks
        text = figure.svg(plot.draw, plot.size)
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.S)
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', text))
    kept = re.compile(r' id="([^"]*)"')
    text = kept.sub(lambda found: f' id="{prefix}-{found[1]}"' if found[1] in used else "", text)
    text = re.sub(r'(href="|url\()#', rf"\g<1>#{prefix}-", text)
    text = re.sub(r">\s+<", "><", text)
    head = Markup('<svg role="img" aria-label="{}" ').format(printable(plot.label))
    return head + Markup(text.removeprefix("<svg "))


def _finalized(value: Any) -> Any:
    """Replaces the characters that cannot be shown in every text that the template writes."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return printable(value)
    return value


def _breakable(text: str) -> Any:
    """The text, which a browser may break after underscores."""
    from markupsafe import Markup, escape

    return Markup(str(escape(printable(text))).replace("_", "_<wbr>"))


def _prose(text: str) -> Any:
    """The text, in which what stands between backquotes is code."""
    from markupsafe import Markup, escape

    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(printable(text)))))


def _styles() -> Any:
    """The style sheet, which is a file of tunefa's own."""
    from markupsafe import Markup

    return Markup((TEMPLATES / "page.css").read_text(encoding="utf-8"))
