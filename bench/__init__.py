"""Measurements of plait: `python -m bench` (bench/README.md). The product imports nothing of it."""
