"""Timing and checking: collectives on CPU ranks and on GPUs, copies, links, the tuner, NCCL."""
