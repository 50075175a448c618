"""Tests plait.torch.all_reduce_rms_norm: eager, under torch.compile, and by both kinds of
groups."""

from __future__ import annotations

import operator
import types

import pytest

torch = pytest.importorskip("torch", reason="wanted torch (make test-torch), found none")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available():
    pytest.skip("wanted torch with torch.distributed, found it without", allow_module_level=True)

from torch_ranks import on_ranks  # noqa: E402

import plait  # noqa: E402
from plait.torch import all_reduce_rms_norm  # noqa: E402
from plait.torch import rms_norm as module  # noqa: E402


def rows(seed, shape, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


def program_in_double(rank, ranks, shape):
    """Returns the residual and the result of a plain program in double precision."""
    total = sum(rows(other, shape).double() for other in range(ranks))
    new = rows(50, shape).double() + total
    norm = torch.rsqrt(new.square().mean(-1, keepdim=True) + 1e-6)
    return new, new * norm * rows(51, shape[-1:]).double()


def group_rank(rank, ranks):
    shape = (3, 128)
    mine, residual, weight = rows(rank, shape), rows(50, shape), rows(51, shape[-1:])
    out = all_reduce_rms_norm(mine, residual, weight)
    new, wanted = program_in_double(rank, ranks, shape)
    torch.testing.assert_close(residual.double(), new, rtol=2**-6, atol=2**-6)
    torch.testing.assert_close(out.double(), wanted, rtol=2**-5, atol=2**-5)
    total = mine.clone()
    dist.all_reduce(total)
    alone = plait.Communicator(0, 1)
    its, behind = rows(50, shape), torch.empty_like(total)
    alone.all_reduce_rms_norm(total, its, weight, out=behind)
    assert torch.equal(out, behind) and torch.equal(residual, its)
    scale = torch.tensor([0.5])
    small = all_reduce_rms_norm(mine, rows(50, shape), weight, 1e-6, dist.group.WORLD, scale)
    assert small.dtype == torch.float8_e4m3fn
    torch.testing.assert_close(small.double(), wanted / 0.5, rtol=0.13, atol=2**-5)
    return True


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_group_of_plait_gives_the_bits_of_its_calls_one_behind_the_other(ranks):
    assert on_ranks(group_rank, ranks) == [True] * ranks


def wrong_weight_rank(rank, ranks):
    """Rank 1 passes a short weight, and goes on with the next call."""
    shape = (3, 128)
    mine, weight = rows(rank, shape), rows(51, shape[-1:])
    with pytest.raises(RuntimeError, match="weight"):
        all_reduce_rms_norm(mine, rows(50, shape), weight[:64] if rank == 1 else weight)
    residual = rows(50, shape)
    all_reduce_rms_norm(2 * mine, residual, weight)
    new = rows(50, shape).double() + 2 * sum(rows(other, shape).double() for other in range(ranks))
    torch.testing.assert_close(residual.double(), new, rtol=2**-6, atol=2**-5)
    return True


def test_wrong_arguments_of_one_rank_are_an_error_on_all():
    assert on_ranks(wrong_weight_rank) == [True, True]


def batch_rank(rank, ranks):
    shape = (3, 64)
    mine, residual, weight = rows(rank, shape), rows(50, shape), rows(51, shape[-1:])
    wanted = all_reduce_rms_norm(mine, rows(50, shape), weight)
    total = torch.ones(4)
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.all_reduce(total)
        out = all_reduce_rms_norm(mine, residual, weight)
        assert torch.equal(out, wanted)  # before the batch ends
        dist.all_reduce(total)
    manager.wait()
    assert total.tolist() == [ranks**2] * 4
    return True


def test_a_result_is_there_at_once_inside_a_coalescing_batch():
    assert on_ranks(batch_rank, 2) == [True] * 2


def gloo_rank(rank, ranks):
    shape = (2, 64)
    with pytest.raises(plait.UnsupportedError, match="a process group with backend plait, found"):
        all_reduce_rms_norm(rows(rank, shape), rows(50, shape), rows(51, shape[-1:]))
    return True


def test_a_group_of_another_backend_is_refused():
    assert on_ranks(gloo_rank, 2, backend="gloo") == [True] * 2


def test_the_operator_passes_the_checks_of_torch():
    comm = plait.Communicator(0, 1)
    name = module.name_of(comm)
    assert module.name_of(comm) == name
    given = (rows(0, (2, 3, 64)), rows(1, (2, 3, 64)), rows(2, (64,)), 1e-6, name)
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.plait.all_reduce_rms_norm, given, test_utils=tests)
    with_scale = (*given, torch.tensor([2.0]))
    torch.library.opcheck(torch.ops.plait.all_reduce_rms_norm, with_scale, test_utils=tests)


def test_compiled_programs_hold_the_operator_and_update_the_residual():
    comm = plait.Communicator(0, 1)
    weight = rows(2, (64,))

    def layer(x, residual):
        out = all_reduce_rms_norm(x * 2, residual, weight, 1e-6, name)
        return out + 1

    name = module.name_of(comm)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    mine, its = rows(1, (4, 64)), rows(1, (4, 64))
    x = rows(3, (4, 64))
    assert torch.equal(compiled(x, mine), layer(x, its))
    assert torch.equal(mine, its) and not torch.equal(mine, rows(1, (4, 64)))


def vllms_operators():
    """Defines the operators of vLLM's graphs, as far as the pass knows them."""
    library = torch.library.Library("vllm", "FRAGMENT")
    library.define("all_reduce(Tensor x, str group_name) -> Tensor")
    norms = torch.library.Library("vllm_ir", "FRAGMENT")
    norms.define(
        "fused_add_rms_norm(Tensor x, Tensor residual, Tensor weight, float epsilon, "
        "int? variance_size=None) -> (Tensor, Tensor)"
    )

    def sum_of_one_rank(x, group_name):
        return x.clone()

    def norm(x, residual, weight, epsilon, variance_size=None):
        new = residual + x
        wide = new.float()
        factor = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
        return (wide * factor * weight.float()).to(x.dtype), new

    for key in ("CompositeExplicitAutograd", "Meta"):
        library.impl("all_reduce", sum_of_one_rank, key)
        norms.impl("fused_add_rms_norm", norm, key)
    return library, norms


def vllm_layer(name, variance_size=None):
    def layer(x, residual, weight):
        total = torch.ops.vllm.all_reduce(x * 2, name)
        out, new = torch.ops.vllm_ir.fused_add_rms_norm(
            total, residual, weight, 1e-6, variance_size
        )
        return out + 1, new

    return layer


def test_vllms_graphs_get_the_operator_where_it_serves():
    from torch.fx.experimental.proxy_tensor import make_fx

    from plait.torch import vllm_fusion

    libraries = vllms_operators()
    comm = plait.Communicator(0, 1)
    module.register("tp:0", comm)
    given = (rows(1, (3, 64)), rows(2, (3, 64)), rows(3, (64,)))
    for dtype, name, size, served in (
        (torch.bfloat16, "tp:0", None, 1),
        (torch.float16, "tp:0", None, 1),
        (torch.float32, "tp:0", None, 0),
        (torch.bfloat16, "dp:0", None, 0),  # no communicator of plait
        (torch.bfloat16, "tp:0", 32, 0),
    ):
        mine = [one.to(dtype) for one in given]
        traced = make_fx(vllm_layer(name, size), tracing_mode="fake")(*mine)
        wanted = traced(*mine)
        assert vllm_fusion.fuse(traced.graph) == served
        traced.graph.lint()
        traced.recompile()
        found = traced(*mine)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=2**-6, atol=2**-6)
        assert torch.equal(mine[1], given[1].to(dtype))  # functional: the input residual stays
        targets = [node.target for node in traced.graph.nodes]
        assert (torch.ops.vllm.all_reduce.default in targets) == (not served)
        assert operator.getitem in targets
    del libraries


def test_vllms_pass_manager_runs_the_pass_where_fusion_is_asked():
    from plait.torch import vllm_fusion

    class PostGradPassManager:
        def __init__(self):
            self.passes = []

        def configure(self, config):
            self.passes += ["own"]

    managers = types.SimpleNamespace(PostGradPassManager=PostGradPassManager)
    for _ in range(2):  # vLLM may load plug-ins twice
        vllm_fusion.into_pass_manager(managers, object)
    for is_on in (True, False):
        passes = types.SimpleNamespace(fuse_allreduce_rms=is_on)
        config = types.SimpleNamespace(compilation_config=types.SimpleNamespace(pass_config=passes))
        manager = PostGradPassManager()
        manager.configure(config)
        assert len(manager.passes) == 1 + is_on and manager.passes[-1] == "own"
    manager = PostGradPassManager()
    passes.fuse_allreduce_rms = True
    manager.configure(config)
    assert manager.passes[0].uuid() == "plait.all_reduce_rms_norm.1"
