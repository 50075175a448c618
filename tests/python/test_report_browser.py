"""Tests the HTML page in a headless browser: layout, script, pictures, at a screen's and a phone's
width, light and dark, on paper.

Skipped without Chromium: `make browser` installs one, and CHROME_BIN names another binary. The
pictures stay in the test's folder, which pytest prints on a failure.
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
from plait import by_size
from plait.commands import report_page as report
from plait.evidence import papers

NAMES = (
    *("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome"),
    *("google-chrome-stable", "chrome"),
)
BROWSER = os.environ.get("CHROME_BIN") or next(filter(None, map(shutil.which, NAMES)), "")
needs_browser = pytest.mark.skipif(not BROWSER, reason=f"no browser of {', '.join(NAMES)} found")
HEIGHTS = {1200: 2600, 390: 3600}  # of pictures, by width
SCHEMES = {"light": 1, "dark": 0}  # Chromium's preferredColorScheme
MACHINES = ("mist", "hgx-h200", "mist-2")

# Script in the page: returns positions, overflows, the effect of hovering and of picking a size.
PROBE = """
<script>
const seen=e=>e.checkVisibility();
const box=e=>{const r=e.getBoundingClientRect();return [r.left,r.top,r.width,r.height]};
const cut=[],near=[];
const all=[...document.querySelectorAll('svg')].filter(seen);
all.forEach(svg=>{const s=svg.getBoundingClientRect();
const texts=[...svg.querySelectorAll('text')].filter(t=>seen(t)&&t.textContent);
texts.forEach((t,k)=>{const r=t.getBoundingClientRect();
if(r.left<s.left-1||r.right>s.right+1||r.top<s.top-1||r.bottom>s.bottom+1)cut.push(t.textContent);
texts.slice(k+1).forEach(o=>{const q=o.getBoundingClientRect();
const w=Math.min(r.right,q.right)-Math.max(r.left,q.left);
const h=Math.min(r.bottom,q.bottom)-Math.max(r.top,q.top);
if(w>3&&h>5)near.push(t.textContent+' | '+o.textContent)})})});
const hover=[...document.querySelectorAll('[data-tip]')].find(seen);
hover.dispatchEvent(new MouseEvent('mousemove',{clientX:50,clientY:50}));
const shown=[tip.style.display,tip.textContent,hover.dataset.tip];
hover.dispatchEvent(new MouseEvent('mouseleave'));
const pick=()=>[document.getElementById('at').textContent,
document.getElementById('busiest').textContent,
[...document.querySelectorAll('path.edge[data-use]')].map(e=>e.getAttribute('class')).join()];
const first=pick();
const small=document.querySelector('input[name=size]');
small.focus();const focused=document.activeElement===small;
small.checked=true;small.dispatchEvent(new Event('change'));
const scale=e=>{const s=e.closest('svg');return s?s.getBoundingClientRect().width/
s.viewBox.baseVal.width:1};
const said={headings:[...document.querySelectorAll('h1,h2')].map(e=>[e.textContent,...box(e)]),
lead:box(document.querySelector('.lead')),svgs:all.map(box),
tables:[...document.querySelectorAll('table')].filter(seen).map(box),
page:[document.documentElement.scrollWidth,innerWidth,document.documentElement.scrollHeight],
smallest:Math.min(...[...document.querySelectorAll('svg text,td,p,li')].filter(seen).map(
e=>scale(e)*parseFloat(getComputedStyle(e).fontSize))),cut,near,shown,hidden:tip.style.display,
focused,first,second:pick()};
const pre=document.body.appendChild(document.createElement('pre'));
pre.id='said';pre.textContent=JSON.stringify(said);
</script>
"""


def browse(tmp_path: Path, *options: str) -> tuple[str, str]:
    """Returns the page as printed, and the lines of the console. The profile is in the test's
    folder; the browser loads nothing."""
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--host-resolver-rules=MAP * 0.0.0.0"]
    command += ["--enable-logging=stderr", "--v=0"]
    run = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return run.stdout, "\n".join(line for line in run.stderr.splitlines() if "CONSOLE" in line)


def probed(tmp_path: Path, page: Path, width: int) -> dict[str, Any]:
    """Returns what PROBE says at a width. A frame sets it: windows have a least width."""
    inner = tmp_path / f"probed{width}.html"
    inner.write_text(page.read_text().replace("</body>", PROBE + "</body>"))
    outer = tmp_path / f"frame{width}.html"
    outer.write_text(
        f"<body style='margin:0'><iframe src='{inner.name}' width={width} height=900 "
        "style='border:0' onload=\"const p=document.createElement('pre');p.id='told';"
        "p.textContent=this.contentDocument.getElementById('said').textContent;"
        'document.body.append(p)"></iframe></body>'
    )
    printed, console = browse(
        *(tmp_path, f"--window-size={max(width, 600)},900", "--allow-file-access-from-files"),
        *("--dump-dom", outer.as_uri()),
    )
    assert console == ""
    told = re.search(r'<pre id="told">(.*?)</pre>', printed, re.DOTALL)
    assert told, "the page's script did not run to its end"
    return json.loads(unescape(told[1]))


@pytest.fixture(params=MACHINES)
def page(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "bench.csv").write_text(
        "machine,collective,strategy,bytes,busbw\n"
        "mist,all_reduce,ring,1048576,31.5\nmist,all_reduce,ring,4194304,40\n"
    )
    rows = [papers.PaperRow("M1", "must", "a put over two paths", "120 GB/s", 120.0, 125.0, "GB/s")]
    rows.append(papers.PaperRow("M7", "show", "a ratio", "2x", 2.0, 3.0, reason="not described"))
    file = tmp_path / "report.html"
    machine = plait.load_topology(request.param)
    file.write_text(report.page(machine, results=tmp_path, evidence=rows))
    return file


@needs_browser
@pytest.mark.timeout(300)
@pytest.mark.parametrize("width", HEIGHTS)
def test_all_is_laid_out_and_fits(page: Path, tmp_path: Path, width: int) -> None:
    said = probed(tmp_path, page, width)
    titles = [heading[0].split(":")[0].replace("would run", "runs") for heading in said["headings"]]
    assert titles[:6] == [
        *("plait", "What a call of each size runs", "Beside NCCL", "The machine at work"),
        *("What is left to gain", "A call of 64 MiB over time"),
    ]
    scrolled, window, _ = said["page"]
    assert window == width and scrolled <= window, "the page must not scroll sideways"
    left, top, across, high = said["lead"]
    assert top + high < 500 and left + across <= width, "the first screen says what there is"
    tops = [heading[2] for heading in said["headings"]]
    assert tops == sorted(tops)
    large = [(across, high) for _, _, across, high in said["svgs"] if across > 60]
    assert len(large) >= 3  # sizes, machine, timeline
    assert all(0.5 * min(width, 700) < across <= width and high > 60 for across, high in large)
    assert len(said["tables"]) >= 3
    assert said["cut"] == [], "text that sticks out of its drawing"
    assert said["near"] == [], "texts that lie on each other"
    assert said["smallest"] >= 10, "text too small to read"
    display, shown, wanted = said["shown"]
    assert (display, shown, said["hidden"]) == ("block", wanted, "none")
    assert said["focused"], "a keyboard reaches the sizes"
    (at, busiest, edges), (new_at, new_busiest, new_edges) = said["first"], said["second"]
    assert at.startswith("64 MiB:") and new_at.startswith("1 KiB:")
    assert busiest != new_busiest and edges != new_edges


def shot(tmp_path: Path, page: Path, width: int, scheme: str) -> Any:
    """Returns the picture of a page, without its end, after the console was silent."""
    image = pytest.importorskip("PIL.Image")
    picture = tmp_path / f"{width}_{scheme}.png"
    _, console = browse(
        *(tmp_path, f"--window-size={width},{HEIGHTS[width]}", f"--screenshot={picture}"),
        *(f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}", page.absolute().as_uri()),
    )
    assert console == ""
    return image.open(picture).convert("RGB")


def colours_of(seen: Any) -> dict[tuple[int, int, int], int]:
    return {colour: count for count, colour in seen.getcolors(maxcolors=1 << 24)}


@needs_browser
@pytest.mark.timeout(300)
@pytest.mark.parametrize("width", HEIGHTS)
def test_screenshots_show_drawings_and_text_light_and_dark(
    page: Path, tmp_path: Path, width: int
) -> None:
    paper = {}
    for scheme in SCHEMES:
        seen = shot(tmp_path, page, width, scheme)
        assert seen.size == (width, HEIGHTS[width])
        counts = colours_of(seen)
        total = seen.size[0] * seen.size[1]
        paper[scheme], most = max(counts.items(), key=lambda item: item[1])
        ink = 1 - most / total
        assert 0.05 < ink < 0.6, f"{ink:.0%} of the page is drawn on"
        assert len(counts) > 100
        if scheme == "light":
            for number in range(3):  # of the size picture's lines
                assert counts.get(_rgb(by_size.COLOURS[number]), 0) > 20, number
            assert counts.get(_rgb("#e3eef8"), 0) > 1000, "GPUs"
            assert counts.get(_rgb("#7fb2dd"), 0) > 200, "bars"
            dark = sum(count for colour, count in counts.items() if max(colour) < 90)
            assert dark > 3000, "text"
    assert min(paper["light"]) > 240 and max(paper["dark"]) < 60


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))


@needs_browser
@pytest.mark.timeout(300)
def test_the_page_prints(page: Path, tmp_path: Path) -> None:
    file = tmp_path / "page.pdf"
    _, console = browse(tmp_path, f"--print-to-pdf={file}", page.absolute().as_uri())
    assert console == ""
    content = file.read_bytes()
    assert content.startswith(b"%PDF-")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", content)) <= 12


@needs_browser
def test_errors_of_a_script_would_be_seen(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.html"
    wrong.write_text("<script>missing()</script>")
    _, console = browse(tmp_path, "--dump-dom", wrong.as_uri())
    assert "missing is not defined" in console
