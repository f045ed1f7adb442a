"""tunefa/report/page.py in a browser: nothing overflows, no plot is empty, nothing is fetched.

The browser is headless Chromium, whose windows are at least 500 pixels wide. So the page is in a
frame of the wanted width. A copy of it gets a script, which measures the page and tells the outer
document, which Chromium prints.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from tests.support import sample_report
from tunefa.report import page
from tunefa.report.content import Content

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
pytestmark = pytest.mark.skipif(not BROWSER, reason="Chromium is not installed")

DARK, LIGHT = 0, 1
"""Values of Blink's setting preferredColorScheme, on which prefers-color-scheme depends."""
PROBE = """
<script>
addEventListener("load", () => {
  const root = document.documentElement;
  if (location.hash === "#print")
    for (const rule of document.styleSheets[0].cssRules)
      if (rule.media?.mediaText === "print") rule.media.mediaText = "all";
  const inside = (each) => each.closest(".scroll, .plot, .skip");
  const wide = [...document.body.querySelectorAll("*")].filter((each) => !inside(each)
    && each.getBoundingClientRect().right > root.clientWidth + 1);
  const boxes = [...document.querySelectorAll(".scroll, .plot")];
  const plots = [...document.querySelectorAll(".plot > svg")].map((svg) => {
    const box = svg.getBoundingClientRect(), out = [];
    let shapes = 0;
    for (const each of svg.querySelectorAll("path, use, rect, line, polygon")) {
      if (each.closest("defs")) continue;
      const own = each.getBoundingClientRect();
      if (!own.width && !own.height) continue;
      shapes += 1;
      const clipped = each.closest("[clip-path]");
      const over = Math.max(box.left - own.left, own.right - box.right,
                            box.top - own.top, own.bottom - box.bottom);
      if (over > 1 && !clipped) out.push([each.tagName, over]);
    }
    return {label: svg.getAttribute("aria-label"), width: box.width, height: box.height,
            shapes, out};
  });
  const style = getComputedStyle(document.body);
  const found = {
    page: [root.scrollWidth, root.clientWidth],
    wide: wide.map((each) => [each.tagName, each.className, each.textContent.slice(0, 40)]),
    boxes: boxes.filter((each) => each.scrollWidth > each.clientWidth + 1).length,
    plots,
    nav: getComputedStyle(document.querySelector("nav")).display,
    colours: [style.color, style.backgroundColor],
    fetched: performance.getEntriesByType("resource").map((each) => each.name),
    title: document.title,
    scripts: document.scripts.length,
    images: document.images.length,
    anchors: [...document.querySelectorAll("nav a")].map(
      (each) => document.querySelector(each.getAttribute("href")) !== null),
    levels: [...document.querySelectorAll("h1, h2, h3, h4")].map((each) => +each.tagName[1]),
    scopes: [...document.querySelectorAll("th")].every((each) => each.hasAttribute("scope")),
  };
  parent.postMessage(JSON.stringify(found), "*");
});
</script>
"""
FRAME = """<!doctype html>
<html lang="en">
<meta name="color-scheme" content="light dark">
<style>body {{ margin: 0 }} iframe {{ display: block; border: 0 }}</style>
<body>
<script>
addEventListener("message", (event) => {{
  const found = document.createElement("pre");
  found.textContent = event.data;
  document.body.append(found);
}});
</script>
<iframe src="page.html{anchor}" width="{width}" height="1200"></iframe>
</body>
</html>
"""


def chromium(folder: Path, colours: int, *arguments: str) -> str:
    """Runs Chromium with a profile in `folder`, and returns what it prints."""
    command = [BROWSER, "--headless=new", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
               f"--user-data-dir={folder / 'profile'}", "--window-size=1280,1200",
               f"--blink-settings=preferredColorScheme={colours}"]  # fmt: skip
    if os.geteuid() == 0:
        command.append("--no-sandbox")
    done = subprocess.run([*command, *arguments], capture_output=True, timeout=120)
    return done.stdout.decode("utf-8")


def written(folder: Path, content: Content, more: str = "") -> Path:
    """The page of a content as a file, with `more` at its end."""
    path = folder / "page.html"
    path.write_text(page.render(content).replace("</body>", f"{more}</body>"), encoding="utf-8")
    return path


def framed(folder: Path, width: int, anchor: str = "") -> Path:
    """A document that shows the page in `folder` in so many pixels."""
    path = folder / "frame.html"
    path.write_text(FRAME.format(width=width, anchor=anchor), encoding="utf-8")
    return path


def probed(
    folder: Path, content: Content, width: int, colours: int = LIGHT, anchor: str = ""
) -> dict[str, Any]:
    """Returns what the probe finds in the page, at a width in pixels; with #print, as it prints."""
    written(folder, content, PROBE)
    said = chromium(folder, colours, "--dump-dom", framed(folder, width, anchor).as_uri())
    found = re.search(r"<pre>(.*)</pre>", said, re.DOTALL)
    assert found is not None, said[:2000]
    text = found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return dict(json.loads(text))


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("which", ["content", "hostile"])
def test_nothing_overflows_and_no_plot_is_empty(tmp_path: Path, which: str, width: int) -> None:
    content: Content = getattr(sample_report, which)()
    found = probed(tmp_path, content, width)
    scrolled, visible = found["page"]
    assert visible == width and scrolled <= width
    assert not found["wide"]
    # Convergence and a heat map, a roofline by chip and dtype, certificates, experiments.
    assert len(found["plots"]) >= 6
    for plot in found["plots"]:
        assert plot["label"] and plot["shapes"] > 20, plot
        assert plot["width"] > 200 and plot["height"] > 60, plot
        assert not plot["out"], plot
    assert not found["fetched"]


def test_a_hostile_text_is_text(tmp_path: Path) -> None:
    found = probed(tmp_path, sample_report.hostile(), 1280)
    assert found["title"].startswith("tunefa report, <script>")
    assert found["scripts"] == 1  # the probe
    assert found["images"] == 0


def test_the_outline_is_in_order(tmp_path: Path) -> None:
    found = probed(tmp_path, sample_report.content(), 1280)
    levels = found["levels"]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(then <= now + 1 for now, then in itertools.pairwise(levels))
    assert len(found["anchors"]) == 8 and all(found["anchors"])
    assert found["scopes"]


def test_wide_tables_scroll_in_their_own_box(tmp_path: Path) -> None:
    assert probed(tmp_path, sample_report.content(), 400)["boxes"] > 0


def brightness(colour: str) -> float:
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 3


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("colours", [DARK, LIGHT])
def test_the_page_follows_the_colour_scheme(tmp_path: Path, colours: int, width: int) -> None:
    found = probed(tmp_path, sample_report.content(), width, colours)
    ink, paper = map(brightness, found["colours"])
    assert (ink > 180 and paper < 60) if colours == DARK else (ink < 60 and paper > 240)
    written(tmp_path, sample_report.content())
    picture = tmp_path / "page.png"
    chromium(tmp_path, colours, f"--screenshot={picture}", framed(tmp_path, width).as_uri())
    pixels = imread(picture)[:, :width, :3]
    assert pixels.shape[:2] == (1200, width)
    mean = float(pixels.mean())
    assert mean < 0.3 if colours == DARK else mean > 0.85  # most of it is paper
    assert float(pixels.std()) > 0.01  # and something is on it


def test_the_style_for_print_is_light_and_cuts_nothing(tmp_path: Path) -> None:
    """On A4 across, less the margins, 1032 pixels are left."""
    found = probed(tmp_path, sample_report.content(), 1032, DARK, "#print")
    ink, paper = map(brightness, found["colours"])
    assert ink < 60 and paper > 240
    assert found["nav"] == "none"
    assert found["boxes"] == 0 and found["page"] == [1032, 1032]


def test_it_can_be_printed(tmp_path: Path) -> None:
    path, printed = written(tmp_path, sample_report.content()), tmp_path / "page.pdf"
    chromium(tmp_path, DARK, "--no-pdf-header-footer", f"--print-to-pdf={printed}",
             path.as_uri())  # fmt: skip
    whole = printed.read_bytes()
    assert whole.startswith(b"%PDF-") and len(whole) > 20_000
    pages = len(re.findall(rb"/Type\s*/Page\b", whole))
    assert 2 <= pages <= 30
