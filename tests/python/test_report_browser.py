"""Tests the HTML page in a headless browser: layout, script, picture.

Skipped without Chromium (PLAIT_BROWSER names a binary; apt-get install chromium). The picture stays
in the test's folder, which pytest prints on a failure.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import plait
from plait.commands import report_page as report
from plait.evidence import papers

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = os.environ.get("PLAIT_BROWSER") or next(filter(None, map(shutil.which, NAMES)), "")
needs_browser = pytest.mark.skipif(not BROWSER, reason=f"no browser of {', '.join(NAMES)} found")

# Script in the page: returns positions, overflows, and the effect of hovering.
PROBE = """
<script>
const box=e=>{const r=e.getBoundingClientRect();return [r.left,r.top,r.width,r.height]};
const cut=[];
document.querySelectorAll('svg').forEach(svg=>{const s=svg.getBoundingClientRect();
svg.querySelectorAll('text').forEach(t=>{const r=t.getBoundingClientRect();
if(r.left<s.left-1||r.right>s.right+1||r.top<s.top-1||r.bottom>s.bottom+1)
cut.push(t.textContent)})});
const hover=document.querySelector('[data-tip]');
hover.dispatchEvent(new MouseEvent('mousemove',{clientX:50,clientY:50}));
const shown=[tip.style.display,tip.textContent,hover.dataset.tip];
hover.dispatchEvent(new MouseEvent('mouseleave'));
const said={svgs:[...document.querySelectorAll('svg')].map(box),
tables:[...document.querySelectorAll('table')].map(box),
headings:[...document.querySelectorAll('h1,h2')].map(e=>[e.textContent,...box(e)]),
page:[document.documentElement.scrollWidth,innerWidth,document.documentElement.scrollHeight],
smallest:Math.min(...[...document.querySelectorAll('svg text,td,p')].map(
e=>parseFloat(getComputedStyle(e).fontSize))),cut,shown,hidden:tip.style.display};
const pre=document.body.appendChild(document.createElement('pre'));
pre.id='said';pre.textContent=JSON.stringify(said);
</script>
"""


def browse(tmp_path: Path, *options: str) -> str:
    """Returns the browser's output. The profile is in the test's folder; the browser loads
    nothing."""
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--host-resolver-rules=MAP * 0.0.0.0"]
    run = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.fixture
def html(tmp_path: Path) -> Path:
    (tmp_path / "bench.csv").write_text(
        "machine,collective,strategy,bytes,busbw\n"
        "mist,all_reduce,ring,1048576,31.5\nmist,all_reduce,ring,4194304,40\n"
    )
    rows = [papers.PaperRow("M1", "must", "a put over two paths", "120 GB/s", 120.0, 125.0, "GB/s")]
    rows.append(papers.PaperRow("M7", "show", "a ratio", "2x", 2.0, 3.0, reason="not described"))
    file = tmp_path / "report.html"
    file.write_text(report.page(plait.load_topology("mist"), results=tmp_path, evidence=rows))
    return file


@needs_browser
@pytest.mark.timeout(300)
def test_all_is_laid_out_and_fits(html: Path, tmp_path: Path) -> None:
    probed = tmp_path / "probed.html"
    probed.write_text(html.read_text().replace("</body>", PROBE + "</body>"))
    printed = browse(tmp_path, "--window-size=1200,900", "--dump-dom", probed.as_uri())
    told = re.search(r'<pre id="said">(.*?)</pre>', printed, re.DOTALL)
    assert told, "the page's script did not run to its end"
    said: dict[str, Any] = json.loads(unescape(told[1]))
    assert [heading[0].split(":")[0] for heading in said["headings"]][:2] == [
        "plait",
        "Links (GB/s a direction)",
    ]
    assert len(said["svgs"]) == 4  # links, bandwidths, timeline and its lanes
    assert all(width > 400 and height > 60 for _, _, width, height in said["svgs"])
    assert len(said["tables"]) == 1
    width, window, _ = said["page"]
    assert width <= window, "the page must not scroll sideways"
    tops = [heading[2] for heading in said["headings"]]
    assert tops == sorted(tops)
    assert said["cut"] == [], "text that sticks out of its drawing"
    assert said["smallest"] >= 8, "text too small to read"
    display, shown, wanted = said["shown"]
    assert (display, shown, said["hidden"]) == ("block", wanted, "none")


@needs_browser
@pytest.mark.timeout(300)
def test_screenshot_shows_drawings_and_text(html: Path, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    picture = tmp_path / "report.png"
    browse(tmp_path, "--window-size=1200,2600", f"--screenshot={picture}", html.absolute().as_uri())
    seen = image.open(picture).convert("RGB")
    assert seen.size[0] == 1200
    counts = {colour: count for count, colour in seen.getcolors(maxcolors=1 << 24)}
    total = seen.size[0] * seen.size[1]
    assert counts.get((255, 255, 255), 0) < 0.97 * total, "a blank page"

    def drawn(colour: str) -> int:
        return counts.get(tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5)), 0)

    assert drawn("#2e8b57") > 200, "NVLink lines"
    assert drawn("#e8f1f8") > 1000, "GPUs"
    assert drawn("#1b6ca8") > 200, "the first curve"
    assert drawn("#4878a8") > 200, "copies in the timeline"
    assert drawn("#fdeaea") > 500, "the row that does not hold"
    assert sum(count for colour, count in counts.items() if max(colour) < 90) > 3000, "text"
