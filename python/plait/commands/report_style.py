"""Style sheet and script of the report's page: light, dark and print; screens and phones.

Colours of lines are those of plait.by_size, so that all pictures of sizes look alike.
"""

from __future__ import annotations

from plait.by_size import COLOURS

_LIGHT = """--ink:#1b2026;--paper:#fff;--soft:#f2f4f7;--rule:#d5dae0;--mute:#58626d;
--accent:#0b62a4;--bar:#7fb2dd;--gpu:#e3eef8;--host:#f6efdf;--switch:#e9e6f3;--no:#fdeaea;
--runs:#1b202645;
--idle:#b3bac2"""
_DARK = """--ink:#e7eaee;--paper:#14171b;--soft:#1e2329;--rule:#39414a;--mute:#a0abb6;
--accent:#6db6f2;--bar:#31689b;--gpu:#20364a;--host:#3b3524;--switch:#302c45;--no:#4a2527;
--runs:#e7eaee40;
--idle:#5b6570"""

STYLE = (
    f":root{{color-scheme:light dark;{_LIGHT}}}\n"
    f"@media screen and (prefers-color-scheme:dark){{:root{{{_DARK}}}"
    ".line,.edge{filter:brightness(1.25)}}\n"
    + "".join(f".k{number}{{--line:{colour}}}" for number, colour in enumerate(COLOURS))
    + """
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;max-width:1140px;margin:0 auto;padding:1.2em 20px 3em;
color:var(--ink);background:var(--paper)}
h1{font-size:1.05em;margin:0;color:var(--mute);font-weight:600}
h2{font-size:1.25em;margin:2em 0 .5em;padding-top:.7em;border-top:1px solid var(--rule)}
p,li,h1,h2{overflow-wrap:anywhere}
p{margin:.5em 0;max-width:75ch}.lead{font-size:1.45em;line-height:1.35;margin:.3em 0 .6em;
max-width:46em;font-weight:500}
code{font-size:.92em;background:var(--soft);padding:.05em .3em;border-radius:3px}
.note,.caption{color:var(--mute);font-size:13px;max-width:880px}.mute{color:var(--mute)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));
gap:12px;margin:1em 0;padding:0}
.tiles li{list-style:none;background:var(--soft);border-radius:8px;padding:10px 14px}
.tiles b{display:block;font-size:1.5em;line-height:1.25}
.tiles span{color:var(--mute);font-size:13px}
.beside{display:grid;grid-template-columns:minmax(330px,445px) 1fr;gap:30px;align-items:start}
.beside>div{min-width:0}
.picture{grid-template-columns:minmax(0,2fr) minmax(250px,1fr)}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}
td,th{border-bottom:1px solid var(--rule);padding:4px 8px;text-align:left;vertical-align:middle}
th{color:var(--mute);font-weight:600;font-size:13px}td:first-child,th:first-child{padding-left:0;
white-space:nowrap}
.number{text-align:right;white-space:nowrap}th.number{white-space:normal}
.no td{background:var(--no)}
.wide{overflow-x:auto}.wide td{overflow-wrap:break-word}
.sizes,.ratios,.gains{width:100%}.sizes td{white-space:nowrap}
.bar{display:inline-block;position:relative;width:min(480px,calc(100% - 58px));height:12px;
background:var(--soft);border-radius:2px;vertical-align:-1px;margin-right:6px}
.bar i{display:block;height:100%;background:var(--bar);border-radius:2px;
border-right:2px solid var(--accent)}
.bar+b{white-space:nowrap}
.bar b{position:absolute;top:-4px;bottom:-4px;border-left:2px solid var(--ink)}
.ratios td:last-child{min-width:130px;width:45%}.gains td:last-child{min-width:130px;width:60%}
.gains .bar{width:min(340px,calc(100% - 58px))}
.gains small{white-space:nowrap;color:var(--mute);margin-left:10px}
svg{max-width:100%;height:auto;display:block}svg text{font:12px system-ui,sans-serif;
fill:var(--ink)}
.on-narrow{display:none}.sample{display:inline-block;width:34px;max-width:none;height:12px;
vertical-align:-1px}
.grid{stroke:var(--rule);stroke-width:1}.runs{fill:none;stroke:var(--runs);stroke-width:13;
stroke-linecap:round;stroke-linejoin:round}
.line polyline{fill:none;stroke:var(--line);stroke-width:1.7}.line path{fill:var(--line)}
.band{fill:var(--soft);stroke:var(--rule)}.b1{fill:var(--paper)}
.legend{list-style:none;padding:0;margin:.6em 0;display:flex;flex-wrap:wrap;gap:2px 16px;
font-size:13px}
.edge{fill:none;stroke-linecap:butt}.u0{stroke:var(--idle);stroke-width:1.2;stroke-dasharray:3 4}
.u1{stroke:#56b4e9;stroke-width:2.5}.u2{stroke:#0072b2;stroke-width:4.5}
.u3{stroke:#e69f00;stroke-width:7}.u4{stroke:#d55e00;stroke-width:10}
.box{stroke:var(--mute);stroke-width:1}.box.rank{fill:var(--gpu)}.box.host{fill:var(--host)}
.box.hub,.box.pcie,.box.net{fill:var(--switch)}
.share,.on-line{font-weight:600;paint-order:stroke;stroke:var(--paper);stroke-width:4px;
stroke-linejoin:round}.machine{margin:.6em 0}
.machine .inside{stroke:none}
fieldset{border:0;padding:0;margin:.6em 0;display:flex;flex-wrap:wrap;gap:6px}
legend{float:left;margin-right:8px;padding:4px 0;font-size:13px;color:var(--mute)}
fieldset label{position:relative;font-size:13px}
fieldset span{display:block;padding:4px 10px;border:1px solid var(--rule);border-radius:14px;
cursor:pointer}
fieldset input{position:absolute;opacity:0;width:100%;height:100%;margin:0;cursor:pointer}
fieldset input:checked+span{background:var(--accent);border-color:var(--accent);
color:var(--paper);font-weight:600}
fieldset input:focus-visible+span{outline:3px solid var(--accent);outline-offset:2px}
summary{cursor:pointer;color:var(--accent)}
.timeline text{font-size:11px}
#tip{position:fixed;background:var(--ink);color:var(--paper);padding:3px 8px;border-radius:3px;
font-size:12px;display:none;pointer-events:none;max-width:min(40em,90vw)}
@media screen and (max-width:760px){body{padding:.8em 12px 2em}
.on-wide{display:none}.on-narrow{display:block}
.beside,.picture{display:block}.lead{font-size:1.2em}.tiles{grid-template-columns:1fr 1fr;gap:8px}
.tiles b{font-size:1.25em}.sizes .sample{width:20px}
.sizes td,.sizes th{padding:4px 3px}.sizes :is(td,th):first-child{padding-left:0}
.sizes :is(td,th):last-child{padding-right:0}.sizes th{font-size:12px}
table{font-size:13px}td,th{padding:4px 5px}
.bar{width:calc(100% - 58px);margin-right:3px}
.gains .bar{width:calc(100% - 58px)}.gains small{display:block;margin:0}
.timelines details svg{max-width:none;width:760px}.claims{min-width:820px}}
@media print{body{max-width:none;padding:0;font-size:11pt}fieldset,#tip{display:none}
.beside,.picture{display:block}
h2{break-after:avoid}tr,svg,.tiles,.beside>div{break-inside:avoid}.wide{overflow:visible}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
)
SCRIPT = """
const tip=document.getElementById('tip');
document.querySelectorAll('[data-tip]').forEach(e=>{
e.addEventListener('mousemove',m=>{tip.textContent=e.dataset.tip;tip.style.display='block';
tip.style.left=Math.max(4,Math.min(m.clientX+12,innerWidth-tip.offsetWidth-4))+'px';
tip.style.top=(m.clientY+14)+'px'});
e.addEventListener('mouseleave',()=>{tip.style.display='none'})});
const use=JSON.parse(document.getElementById('use').textContent);
function show(size){const at=use[size];
document.querySelectorAll('[data-use]').forEach(e=>{const part=at.use[e.dataset.use]||0;
if(e.tagName==='text')e.textContent=part?part+' %':'';
else e.setAttribute('class','edge u'+Math.min(4,Math.ceil(part/25)))});
document.getElementById('at').textContent=at.title;
document.getElementById('busiest').textContent=at.said}
document.querySelectorAll('input[name=size]').forEach(e=>{
e.addEventListener('change',()=>show(e.value));if(e.checked&&use[e.value])show(e.value)});
"""
