"""A user-defined strategy: verified, simulated, run, and used by plait's commands.

python examples/02_strategy.py
plait plan all_reduce -T dgx1v --load examples/02_strategy.py -s two_level --ops
plait verify --all --load examples/02_strategy.py -s two_level
plait bench all_reduce -g 4 --load examples/02_strategy.py --strategies "two_level;direct"
"""

import plait


@plait.strategy(collectives=["all_reduce"], candidates=[{"groups": 2}, {"groups": 4}])
def two_level(
    topology: plait.Topology, request: plait.Request, *, groups: int = 2, chunks: int = 4
) -> plait.Plan:
    """Reduces each group to its first rank, exchanges the sums, and broadcasts the result in the
    groups."""
    size = request.ranks // groups
    if request.ranks % groups != 0 or size < 2:
        raise plait.UnsupportedError(f"wanted {groups} groups, found {request.ranks} ranks")
    firsts = range(0, request.ranks, size)
    builder = plait.Builder(topology, request, "two_level")
    builder.sum_order("algorithm_order")  # (0+1)+(2+3), not rank order

    def one_chunk(courier: plait.Courier, chunk: plait.Range) -> None:
        for first in firsts:
            others = range(first + 1, first + size)
            for other in others:
                courier.send(other, first, [builder.input(other, chunk)])
            came = [courier.receive(first, other, chunk.bytes) for other in others]
            parts = [builder.input(first, chunk), *(message.region for message in came)]
            courier.reduce(first, builder.output(first, chunk), parts, finish=False)
            for message in came:
                courier.release(message)
        for first in firsts:
            for peer in firsts:
                if peer != first:
                    courier.send(first, peer, [builder.output(first, chunk)])
        for first in firsts:
            sums = {
                peer: courier.receive(first, peer, chunk.bytes) for peer in firsts if peer != first
            }
            mine = builder.output(first, chunk)
            parts = [sums[peer].region if peer != first else mine for peer in firsts]
            courier.reduce(first, mine, parts, finish=True)
            for message in sums.values():
                courier.release(message)
            for other in range(first + 1, first + size):
                courier.send(first, other, [mine])
                message = courier.receive(other, first, chunk.bytes)
                courier.copy(other, builder.output(other, chunk), message.region)
                courier.release(message)

    # Scratch: at most a chunk of every other rank, in two slots.
    room = 2.0 * request.ranks
    plait.in_chunks(builder, "two_level", one_chunk, chunks=chunks, slots=2, scratch_per_byte=room)
    return builder.build()


if __name__ == "__main__":
    for machine in ("dgx1v", "hgx-h200"):
        topology = plait.load_topology(machine)
        request = plait.Request("all_reduce", 1 << 18, "fp32", ranks=8)
        plan = plait.propose_one(topology, request, "two_level")
        print(str(plait.verify(plan)).strip())
        print(f"  {machine}: {plait.simulate(plan, topology).total_ns / 1e3:.0f} us")
