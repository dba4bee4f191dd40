"""The page in a real browser: run with ``-m long`` where a Chromium is installed."""

import html
import json
import re
import shutil
import subprocess

import pytest
from report_runs import Attempt, usual_attempt, write_run

from minigpt.report.page import page
from minigpt.report.run import read_run

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)

# The page stands in a frame as wide as a screen; what is found is left in the outer page.
OUTER = """<!doctype html><body><iframe style="width:{width}px;height:800px;border:0"
srcdoc="{page}"></iframe><pre id="found"></pre><script>
const errors = [];
addEventListener("load", () => {{
  const frame = document.querySelector("iframe").contentWindow, inner = frame.document;
  frame.addEventListener("error", (event) => errors.push(event.message));
  const chart = inner.querySelector("svg.chart"), box = chart.getBoundingClientRect();
  const at = {{clientX: box.left + box.width * 0.97, clientY: box.top + 50, bubbles: true}};
  chart.dispatchEvent(new frame.PointerEvent("pointermove", at));
  const readout = chart.parentElement.querySelector(".readout").textContent;
  chart.dispatchEvent(new frame.PointerEvent("pointerleave", at));
  document.getElementById("found").textContent = JSON.stringify({{
    errors, readout,
    cleared: chart.parentElement.querySelector(".readout").textContent,
    overflow: inner.documentElement.scrollWidth - frame.innerWidth,
    paper: frame.getComputedStyle(inner.body).backgroundColor,
    ink: frame.getComputedStyle(inner.body).color,
    columns: frame.getComputedStyle(inner.querySelector(".charts")).gridTemplateColumns,
    empty: [...inner.querySelectorAll("svg, figure, .tile")]
      .filter((element) => element.getBoundingClientRect().width === 0).length,
  }});
}});
</script>"""


@pytest.fixture
def opened(tmp_path):
    """What a browser finds in the page of a made-up run, on a screen of so many pixels."""

    def open_page(width, *options):
        attempts = [usual_attempt(), Attempt(9000.0).ready(20).end("signal")]
        text = page(read_run(write_run(tmp_path, attempts=attempts)))
        outer = tmp_path / "outer.html"
        outer.write_text(OUTER.format(width=width, page=html.escape(text)), encoding="utf-8")
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", *options]
        sizes = ["--window-size=1400,1000", "--virtual-time-budget=3000", "--dump-dom"]
        dom = subprocess.run(
            [*command, *sizes, outer.as_uri()],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        (found,) = re.findall(r'<pre id="found">(.*?)</pre>', dom)
        return json.loads(html.unescape(found))

    return open_page


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium or chrome")
@pytest.mark.parametrize(("width", "columns"), [(1200, 2), (390, 1), (320, 1)])
def test_the_page_fits_the_screen(opened, width, columns):
    found = opened(width)
    assert found["errors"] == []
    assert found["overflow"] <= 0
    assert len(found["columns"].split()) == columns
    assert found["empty"] == 0
    assert found["readout"] == "step 20: training 2.5, validation 3"
    assert found["cleared"] == ""


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium or chrome")
def test_the_page_is_dark_where_the_reader_wants_it(opened):
    def brightness(colour):
        return sum(map(int, re.findall(r"\d+", colour)[:3])) / 765

    light = opened(1200, "--blink-settings=preferredColorScheme=1")
    dark = opened(1200, "--blink-settings=preferredColorScheme=0")
    assert brightness(light["paper"]) > 0.9 > 0.3 > brightness(light["ink"])
    assert brightness(dark["paper"]) < 0.2 < 0.8 < brightness(dark["ink"])
