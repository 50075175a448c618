"""Tests the plug-ins for vLLM and SGLang over stand-ins of both classes, and the messages of `plait
run --bitwise` and `plait doctor`."""

from __future__ import annotations

import os
import sys
import types

import pytest

import plait

torch = pytest.importorskip("torch", reason="wanted torch (make test-torch), found none")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available():
    pytest.skip("wanted torch with torch.distributed, found it without", allow_module_level=True)

from torch_ranks import on_ranks  # noqa: E402

import plait_torch.serving as entry  # noqa: E402
from plait.torch import serving  # noqa: E402

NAME = "vllm.distributed.device_communicators.cuda_communicator"


class CudaCommunicator:
    """vLLM 0.33.0's class, as far as groups and the plug-in use it; sums by gloo."""

    def __init__(self, cpu_group, device=None, device_group=None, unique_name="", **named):
        self.cpu_group, self.device, self.unique_name = cpu_group, device, unique_name
        self.world_size = dist.get_world_size(cpu_group)
        self.own_calls = 0

    def all_reduce(self, input_):
        self.own_calls += 1
        out = input_.clone()
        dist.all_reduce(out, group=self.cpu_group)
        return out

    def reduce_scatter(self, input_, dim=-1):
        self.own_calls += 1
        whole = input_.clone()
        dist.all_reduce(whole, group=self.cpu_group)
        return whole.chunk(self.world_size, dim)[dist.get_rank(self.cpu_group)]

    def destroy(self):
        self.destroyed = True


def stand_in_vllm():
    """Installs stand-ins of the modules that the plug-in imports."""
    for depth in range(1, 5):
        name = ".".join(NAME.split(".")[:depth])
        sys.modules[name] = types.ModuleType(name)
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], leaf, sys.modules[name])
    sys.modules[NAME].CudaCommunicator = CudaCommunicator
    return sys.modules[NAME]


def made_of(parts):
    """Returns a sum in rank order."""
    total = parts[0].clone()
    for part in parts[1:]:
        total = total + part
    return total


def inputs(ranks, shape, dtype):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(ranks)]


def vllm_rank(rank, ranks):
    os.environ["PLAIT_VLLM"] = "1"
    module = stand_in_vllm()
    entry.register_vllm()
    entry.register_vllm()  # vLLM may load plug-ins twice
    assert module.CudaCommunicator.__mro__[1] is CudaCommunicator
    group = module.CudaCommunicator(dist.group.WORLD, torch.device("cpu"), unique_name="tp:0")
    assert isinstance(group, module.CudaCommunicator)
    for shape in ((1,), (3, 64), (1 << 12, 40)):
        given = inputs(ranks, shape, torch.float32)
        mine = given[rank].clone()
        found = group.all_reduce(mine)
        assert torch.equal(found, made_of(given)) and torch.equal(mine, given[rank])
    given = inputs(ranks, (5, 2 * ranks), torch.float32)
    part = group.reduce_scatter(given[rank], dim=-1)
    assert torch.equal(part, made_of(given)[:, 2 * rank : 2 * rank + 2])
    part = group.reduce_scatter(given[rank].T, dim=0)
    assert torch.equal(part, made_of(given).T[2 * rank : 2 * rank + 2])
    assert group.own_calls == 0
    assert group.all_reduce(torch.ones(3, dtype=torch.int64)).tolist() == [ranks] * 3
    assert group.own_calls == 1
    others = module.CudaCommunicator(dist.group.WORLD, torch.device("cpu"), unique_name="dp:0")
    others.all_reduce(torch.ones(1))
    assert others.plait is None and others.own_calls == 1
    group.destroy()
    assert group.destroyed and group.plait is None
    return True


@pytest.mark.parametrize("ranks", [2, 4])
def test_vllm_groups_sum_in_rank_order(ranks):
    assert on_ranks(vllm_rank, ranks, backend="gloo") == [True] * ranks


def half_floats(rank, ranks):
    """Expects a single rounding of the whole sum, unlike pairwise bf16 sums."""
    module = stand_in_vllm()
    serving.into_vllm()
    group = module.CudaCommunicator(dist.group.WORLD, torch.device("cpu"), unique_name="tp:0")
    given = inputs(ranks, (1000,), torch.bfloat16)
    wide = made_of([one.float() for one in given]).to(torch.bfloat16)
    found = [group.all_reduce(given[rank][:count]) for count in (1, 10, 1000)]
    return all(torch.equal(one, wide[: len(one)]) for one in found)


def test_the_bits_do_not_depend_on_the_batch():
    assert on_ranks(half_floats, 4, backend="gloo") == [True] * 4


def off_rank(rank, ranks):
    for name, value in (("PLAIT_VLLM", "0"), ("PLAIT_DISABLE", "1")):
        os.environ.update({"PLAIT_VLLM": "1", "PLAIT_DISABLE": "0", name: value})
        module = stand_in_vllm()
        entry.register_vllm()
        assert module.CudaCommunicator is CudaCommunicator, name
    dist.barrier()  # an early end breaks gloo's set-up on the peer
    return True


def test_being_installed_changes_nothing():
    assert on_ranks(off_rank, 2, backend="gloo") == [True] * 2


def no_room_rank(rank, ranks):
    """If ranks cannot join, all keep vLLM's sums; in strict mode all ranks fail."""
    os.environ["PLAIT_TOPOLOGY"] = "no-such-machine"
    module = stand_in_vllm()
    serving.into_vllm()
    group = module.CudaCommunicator(dist.group.WORLD, torch.device("cpu"), unique_name="tp:0")
    assert group.plait is None and group.all_reduce(torch.ones(1)).item() == ranks
    os.environ["PLAIT_BITWISE_STRICT"] = "1"
    with pytest.raises(plait.Error):
        module.CudaCommunicator(dist.group.WORLD, torch.device("cpu"), unique_name="tp:0")
    return True


def test_where_plait_cannot_join():
    assert on_ranks(no_room_rank, 2, backend="gloo") == [True] * 2


class GroupCoordinator:
    """SGLang 0.5.23's class, as far as the hook uses it."""

    def __init__(self, group):
        self.cpu_group, self.world_size = group, dist.get_world_size(group)
        self.own_calls = 0

    def all_reduce(self, input_):
        self.own_calls += 1
        dist.all_reduce(input_, group=self.cpu_group)
        return input_


class HookRegistry:
    """SGLang's registry; AROUND passes the original function to the hook."""

    @staticmethod
    def register(path, hook, kind):
        assert kind == "around"
        places = {
            "sglang.srt.distributed.parallel_state.GroupCoordinator.all_reduce": GroupCoordinator,
            "sglang.srt.layers.layernorm.RMSNorm.forward_with_allreduce_fusion": RMSNorm,
        }
        owner, name = places[path], path.rsplit(".", 1)[1]
        original = getattr(owner, name)
        wrapped = lambda self, *words, **named: hook(original, self, *words, **named)  # noqa: E731
        setattr(owner, name, wrapped)


class RMSNorm(torch.nn.Module):
    """SGLang's norm, as far as the hook uses it; counts the calls that stay its own."""

    def __init__(self, weight, **facts):
        super().__init__()
        self.weight, self.variance_epsilon = torch.nn.Parameter(weight), 1e-5
        self.own_calls = 0
        for name, value in facts.items():
            setattr(self, name, value)

    def forward_with_allreduce_fusion(
        self, x, residual=None, post_residual_addition=None, use_attn_tp_group=True
    ):
        self.own_calls += 1
        return x, residual


def sglang_rank(rank, ranks):
    os.environ["PLAIT_SGLANG"] = "1"
    registry = types.ModuleType("sglang.srt.plugins.hook_registry")
    registry.HookRegistry, registry.HookType = HookRegistry, types.SimpleNamespace(AROUND="around")
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[registry.__name__] = registry
    entry.register_sglang()
    group = GroupCoordinator(dist.group.WORLD)
    for count in (1, 77, 100_000):
        given = inputs(ranks, (count,), torch.float32)
        mine = given[rank].clone()
        found = group.all_reduce(mine)
        assert found is mine and torch.equal(found, made_of(given))
    assert group.own_calls == 0
    assert group.all_reduce(torch.ones(2, dtype=torch.int32)).tolist() == [ranks] * 2
    assert group.own_calls == 1
    return True


def test_sglangs_hook_sums_in_rank_order():
    assert on_ranks(sglang_rank, 3, backend="gloo") == [True] * 3


def stand_in_sglangs_groups(group, **sizes):
    """Installs sglang.srt.distributed. sizes: ranks of attention and of experts."""
    module = types.ModuleType("sglang.srt.distributed")
    ranks = dist.get_world_size()
    module.get_tp_group = lambda: group
    for name in ("tensor_model_parallel", "attn_tensor_model_parallel", "moe_tensor_parallel"):
        setattr(module, f"get_{name}_world_size", lambda: ranks)
    module.get_moe_expert_parallel_world_size = lambda: 1
    for name, size in sizes.items():
        setattr(module, f"get_{name}_world_size", lambda size=size: size)
    sys.modules["sglang.srt"].distributed = sys.modules[module.__name__] = module


def sglangs_norm_rank(rank, ranks):
    os.environ["PLAIT_SGLANG"] = "1"
    registry = types.ModuleType("sglang.srt.plugins.hook_registry")
    registry.HookRegistry, registry.HookType = HookRegistry, types.SimpleNamespace(AROUND="around")
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[registry.__name__] = registry
    entry.register_sglang()
    group = GroupCoordinator(dist.group.WORLD)
    stand_in_sglangs_groups(group)
    weight = inputs(1, (128,), torch.bfloat16)[0]
    norm = RMSNorm(weight)
    given, before = inputs(ranks, (6, 128), torch.bfloat16), inputs(1, (6, 128), torch.bfloat16)[0]
    mine, residual = given[rank].clone(), before.clone()
    out, new = norm.forward_with_allreduce_fusion(mine, residual, use_attn_tp_group=False)
    total = group.all_reduce(given[rank].clone())
    alone, its = plait.Communicator(0, 1), before.clone()
    wanted = alone.all_reduce_rms_norm(total, its, weight, 1e-5)
    assert torch.equal(out, wanted) and torch.equal(new, its) and norm.own_calls == 0
    rest = [
        (norm, (mine, None), {}),
        (norm, (mine, residual, residual), {}),
        (norm, (mine.float(), residual.float()), {}),
        (norm, (mine[:, :64], residual[:, :64]), {}),
        (RMSNorm(weight, cast_x_before_out_mul=True), (mine, residual), {}),
        (RMSNorm(weight, variance_size_override=64), (mine, residual), {}),
    ]
    for own, words, named in rest:
        before = own.own_calls
        own.forward_with_allreduce_fusion(*words, **named)
        assert own.own_calls == before + 1
    stand_in_sglangs_groups(group, attn_tensor_model_parallel=1, moe_expert_parallel=ranks)
    for used in (True, False):  # sums over a part of the ranks, and over two axes
        before = norm.own_calls
        norm.forward_with_allreduce_fusion(mine, residual, use_attn_tp_group=used)
        assert norm.own_calls == before + 1
    return True


def test_sglangs_fused_norms_are_one_call():
    assert on_ranks(sglangs_norm_rank, 2, backend="gloo") == [True] * 2


def deterministic_rank(rank, ranks):
    """Refuses a machine without a plan that sums in rank order."""
    torch.use_deterministic_algorithms(True)
    os.environ["PLAIT_ALGO"] = "ring"
    with pytest.raises(Exception, match="forbids its sum order"):
        dist.all_reduce(torch.ones(1000))
    return True


def test_use_deterministic_algorithms_is_heard():
    assert on_ranks(deterministic_rank, 3) == [True] * 3


def undecided_rank(rank, ranks):
    os.environ["PLAIT_ALGO"] = "ring"
    dist.all_reduce(ones := torch.ones(1000))
    return ones[0].item()


def test_without_it_other_orders_are_served():
    assert on_ranks(undecided_rank, 3) == [3.0] * 3
