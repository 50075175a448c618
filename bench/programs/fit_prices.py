"""Fits the simulator's prices of kernels and copies on the HGX H200 to recorded rows.

The fit starts from today's values of all parameters of topologies/hgx-h200.json whose source begins
with "fitted". It uses rows of bench/results/engines.csv with every second power of two as size, and
reports the errors of the others. Needs a checkout with plait and scipy installed.
"""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

import plait
from bench.lib.rows import RESULTS, ROOT
from plait.evidence.engines import FAR, NEAR, Recorded, recorded

TOPOLOGY = ROOT / "topologies" / "hgx-h200.json"
TABLE = RESULTS / "engines.csv"
SOURCE = (
    "fitted by python -m bench fit-prices on bench/results/engines.csv, every second power of two"
)


def with_values(data: dict[str, Any], values: dict[str, float]) -> plait.Topology:
    parameters = data["parameters"] | {
        key: {"value": float(value), "source": SOURCE} for key, value in values.items()
    }
    return plait.Topology.from_json(json.dumps(data | {"parameters": parameters}))


def rounded(value: float) -> float:
    """Rounds to three digits."""
    return float(f"{value:.3g}")


def report(name: str, rows: list[Recorded], topology: plait.Topology) -> None:
    off = np.abs([row.deviation(topology) for row in rows])
    print(
        f"{name}: {len(rows)} rows, {100 * np.mean(off <= NEAR):.1f} % within {NEAR:.0%}, "
        f"{np.sum(off > FAR)} beyond {FAR:.0%}, worst {off.max():.1%}"
    )


def run(given: SimpleNamespace) -> None:
    text = TOPOLOGY.read_text()
    data = json.loads(text)
    start = {
        key: parameter["value"]
        for key, parameter in data["parameters"].items()
        if parameter["source"].startswith("fitted")
    }
    rows = recorded(TABLE)
    seen = [row for row in rows if row.fitted]
    keys, values = list(start), np.array(list(start.values()))

    def residuals(scales: np.ndarray) -> np.ndarray:
        topology = with_values(data, dict(zip(keys, values * scales, strict=True)))
        return np.log1p([row.deviation(topology) for row in seen])

    # A large deviation counts little more than a middling one: nodes differ that much.
    found = least_squares(
        residuals, np.ones(len(keys)), bounds=(0.05, 20.0), loss="soft_l1", f_scale=0.05
    )
    fitted = {key: rounded(v) for key, v in zip(keys, values * found.x, strict=True)}
    topology = with_values(data, fitted)
    for key, value in fitted.items():
        print(f"{key} {value:g}")
    report("fitted", seen, topology)
    report("not fitted", [row for row in rows if not row.fitted], topology)
    if given.write:
        for key, value in fitted.items():
            text = re.sub(rf'("{key}": {{"value": )[^,]+', rf"\g<1>{value:g}", text)
        TOPOLOGY.write_text(text)
