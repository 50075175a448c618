"""Reruns experiments of papers on the simulator: claim, simulated figure, deviation.

Machines are topologies/*.json, one parameter set each, with sources. Other libraries run the
algorithm that the paper states or shows. `python -m plait.evidence.papers --write FILE` writes all.
Sources: Micro 2021 (M), the collaborative all-reduce (C), WOTIR (W), the direct-sendrecv talk (D).
"""

from plait.evidence.papers.page import experiments, markdown, paper_rows, recommended
from plait.evidence.papers.rows import PaperRow

__all__ = ["PaperRow", "experiments", "markdown", "paper_rows", "recommended"]
