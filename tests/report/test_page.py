"""tunefa/report/page.py: the HTML of a page, without a browser."""

from __future__ import annotations

import re
import sys
from collections import Counter
from html.parser import HTMLParser

import pytest

from tests.support import sample_report
from tunefa.errors import TunefaError
from tunefa.experiments import figure
from tunefa.report import page
from tunefa.report.content import Content

NAMES = ["winners", "certificates", "convergence", "heat-maps", "roofline", "failures", "peers",
         "experiments"]  # fmt: skip


class Reader(HTMLParser):
    """Reads the tags of a page, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.ids += [value for name, value in attrs if name == "id" and value]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def html() -> str:
    return page.render(sample_report.content())


def test_every_section_is_there_and_linked(html: str) -> None:
    assert [section.name for section in page.sections(Content())] == NAMES
    for name in NAMES:
        assert f'<section id="{name}"' in html and f'href="#{name}"' in html


def test_it_is_one_file_without_scripts_or_addresses(html: str) -> None:
    read = Reader(html)
    assert not read.tags.keys() & {"script", "img", "link", "iframe", "object", "embed"}
    assert "@import" not in html
    # Names of SVG's own namespaces are no addresses that a browser fetches.
    addresses = re.findall(r'(?:href|src|url)\s*[=(]\s*"?([^"#)\s]+)', html)
    assert not addresses
    assert len(html) < 500_000


def test_no_id_is_there_twice(html: str) -> None:
    ids = Counter(Reader(html).ids)
    assert not [name for name, count in ids.items() if count > 1]
    used = re.findall(r'(?:href="|url\()#([^")]+)', html)
    assert used and set(used) <= ids.keys()


def test_a_hostile_text_is_text() -> None:
    read = Reader(page.render(sample_report.hostile()))
    assert not read.tags.keys() & {"script", "img"}
    assert read.text.count("<script>document.title='x'</script>") > 10


def test_control_characters_and_half_characters_are_replaced() -> None:
    made = Content(remarks={"store": ["a\x00b\ud800\u202ec"]})
    html = page.render(made)
    html.encode("utf-8")
    assert "a\ufffdb\ufffd\ufffdc" in html


def test_plots_have_labels_and_the_colours_of_the_page(html: str) -> None:
    plots = re.findall(r"<svg [^>]*>", html)
    assert len(plots) >= 6
    assert all('role="img" aria-label="' in plot for plot in plots)
    assert "var(--ink)" in html and "var(--paper)" in html


def test_measured_and_predicted_are_words(html: str) -> None:
    text = Reader(html).text
    assert "measured, graph" in text and "predicted" in text


def test_an_empty_page_says_why_each_section_is_empty() -> None:
    html = page.render(Content())
    assert html.count('<p class="empty">') == len(NAMES)
    assert "<code>tunefa search</code>" in html
    assert not Reader(html).tags["svg"]


def test_the_same_content_gives_the_same_page(html: str) -> None:
    assert page.render(sample_report.content()) == html


def test_a_plot_that_cannot_be_drawn_costs_itself_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def svg(*_: object) -> str:
        raise ValueError("no such colour")

    monkeypatch.setattr(figure, "svg", svg)
    html = page.render(sample_report.content())
    assert "The plot is left out" in html and "no such colour" in html and "<table>" in html


@pytest.mark.parametrize(("module", "name"), [("jinja2", "Jinja2"), ("matplotlib", "matplotlib")])
def test_a_missing_library_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(TunefaError, match=f"the page needs {name}, which is not installed"):
        page.render(Content())


def test_the_summary_counts() -> None:
    assert page.summary(sample_report.content()) == (
        "3 winners, 1 search, 3 failed configs and results of 2 experiments."
    )
