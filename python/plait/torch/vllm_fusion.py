"""A pass over vLLM's graphs that replaces a tensor-parallel sum and the norm behind it by
plait::all_reduce_rms_norm.

vLLM's pass manager runs the pass where the program asks for such a fusion (`fuse_allreduce_rms`),
before the pass of FlashInfer's kernel.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._higher_order_ops.auto_functionalize import auto_functionalized

from plait import _core
from plait.torch.rms_norm import is_named


def _is_served(x: Any, residual: Any, weight: Any) -> bool:
    """Whether the operator takes these values of a trace."""
    hidden = x.shape[-1]
    return (
        x.dtype in (torch.bfloat16, torch.float16)
        and x.dtype == residual.dtype == weight.dtype
        and isinstance(hidden, int)
        and hidden % 8 == 0
        and hidden <= _core.MOST_HIDDEN
        and weight.numel() == hidden
        and len(x.shape) == len(residual.shape)
    )


def _replace(graph: Any, norm: Any, total: Any) -> None:
    """Puts the operator in the place of the norm, whose first argument is the sum `total`."""
    residual, weight, epsilon = norm.args[1:4]
    with graph.inserting_before(norm):
        fused = graph.call_function(
            auto_functionalized,
            (torch.ops.plait.all_reduce_rms_norm.default,),
            {
                "x": total.args[0],
                "residual": residual,
                "weight": weight,
                "epsilon": epsilon,
                "group": total.args[1],
                "scale": None,
            },
        )
    fused.meta["val"] = norm.meta["val"]
    norm.replace_all_uses_with(fused)  # both give (rows, residual)
    graph.erase_node(norm)
    graph.erase_node(total)


def fuse(graph: Any) -> int:
    """Replaces all sums with a norm alone behind them; returns how many."""
    sums = torch.ops.vllm.all_reduce.default
    norms = torch.ops.vllm_ir.fused_add_rms_norm.default
    count = 0
    for norm in [node for node in graph.nodes if node.target is norms]:
        total = norm.args[0]
        values = [getattr(one, "meta", {}).get("val") for one in norm.args[:3]]
        has_more = len(norm.args) > 4 and norm.args[4] is not None  # squares of a part of the row
        if (
            getattr(total, "target", None) is not sums
            or len(total.users) != 1
            or len(total.args) != 2
            or not is_named(total.args[1])
            or any(value is None for value in values)
            or any(user.target is not operator.getitem for user in norm.users)
            or norm.kwargs
            or has_more
            or not _is_served(*values)
        ):
            continue
        _replace(graph, norm, total)
        count += 1
    return count


def into_pass_manager(module: Any, pass_class: Any) -> None:
    """Makes vLLM's pass manager run the pass first. pass_class: vLLM's InductorPass."""

    class PlaitFusion(pass_class):
        def __call__(self, graph: Any) -> None:
            fuse(graph)

        def uuid(self) -> str:
            return "plait.all_reduce_rms_norm.1"

    manager = module.PostGradPassManager
    if hasattr(manager, "configure_of_vllm"):
        return
    manager.configure_of_vllm = manager.configure

    def configure(self: Any, config: Any) -> None:
        self.configure_of_vllm(config)
        if getattr(config.compilation_config.pass_config, "fuse_allreduce_rms", False):
            self.passes.insert(0, PlaitFusion())

    manager.configure = configure
