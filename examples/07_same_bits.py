"""Why results differ from run to run: a sum of floats in several orders, over plait's ranks.

python examples/07_same_bits.py
"""

import hashlib
import itertools

import numpy as np

import plait

RANKS, COUNT = 8, 100_000


def digest(result: np.ndarray) -> str:
    return hashlib.sha256(result.tobytes()).hexdigest()[:8]


def summed(inputs: list[np.ndarray], strategy: str, params: dict[str, int]) -> tuple[str, str]:
    """Returns (order of the sums, digest of the bits) of the strategy's plan."""
    request = plait.Request("all_reduce", inputs[0].size, "fp32", ranks=RANKS)
    plan = plait.propose_one(plait.local_cpu(RANKS), request, strategy, params)
    outputs = [np.empty_like(one) for one in inputs]
    plait.run_reference(plan, inputs, outputs)
    assert len({digest(one) for one in outputs}) == 1, "ranks differ"
    orders = plait.verify(plan).orders
    return orders[0] if len(orders) == 1 else f"{len(orders)} orders", digest(outputs[0])


def main() -> None:
    random = np.random.default_rng(0)
    inputs = [random.standard_normal(COUNT, np.float32) for _ in range(RANKS)]
    print("one sum of eight ranks, by strategy:")
    ways = (
        ("ring", {"segments": 1}),
        ("ring", {"segments": 4}),
        ("rabenseifner", {}),
        ("recursive_doubling", {}),
        ("direct", {"pieces": 1}),
        ("direct", {"pieces": 4}),
        ("one_shot", {}),
    )
    for strategy, params in ways:
        order, bits = summed(inputs, strategy, params)
        label = ",".join([strategy, *(f"{name}={value}" for name, value in params.items())])
        print(f"  {label:<20} {bits}  {order}")

    print("the same row alone and in a batch of sixteen:")
    row = [one[:1000].copy() for one in inputs]
    batch = [np.concatenate([one[:1000], one[1000:16000]]) for one in inputs]
    for strategy in ("ring", "direct"):
        bits = set()
        for arrays in (row, batch):
            request = plait.Request("all_reduce", arrays[0].size, "fp32", ranks=RANKS)
            plan = plait.propose_one(plait.local_cpu(RANKS), request, strategy)
            outputs = [np.empty_like(one) for one in arrays]
            plait.run_reference(plan, arrays, outputs)
            bits.add(digest(outputs[0][:1000]))
        print(f"  {strategy:<20} {'the same bits' if len(bits) == 1 else 'other bits'}")

    halves = [sum(inputs[1:4], inputs[0]), sum(inputs[5:8], inputs[4])]
    other = digest(halves[0] + halves[1])
    whole = digest(list(itertools.accumulate(inputs))[-1])
    print(f"rank order over eight ranks {whole}, over two of four partial sums each {other}")


if __name__ == "__main__":
    main()
