"""Writes copies of kernels, and of an engine, with faults that a test switches on singly:
mutants.py OUT -> OUT/mutants/*.

A fault is a piece of a file's text and its replacement, in which {} tells whether the fault is on.
A piece that does not occur exactly once stops the build, to keep the table in step with the code.
"""

from __future__ import annotations

import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "gpu"
FILES = {
    "fused": Path("ll/fused.cuh"),
    "escaped": Path("ll/escaped.cuh"),
    "direct_ll": Path("ll/direct_ll.cuh"),
    "ll_chain": Path("ll/ll_chain.cuh"),
    "long_chain": Path("ll/long_chain.cuh"),
    "long_two_shot": Path("ll/long_two_shot.cuh"),
    "scatter_ring": Path("copy/scatter_ring.cpp"),
}
RECEIVED = "a.lo >> 32 == call && a.hi >> 32 == call && b.lo >> 32 == call && b.hi >> 32 == call"
SENTINEL_HERE = "is_word<kType>(packet.lo) && is_word<kType>(packet.hi)"
HALF = "half = part_of_call(args, number, args.half_bytes);"
MISSING = "EscapedPacket::kMissing, EscapedPacket::kMissing"
OWN_PACKET = "packet(args.rank, one.at)"
SCATTER = "scatter_->enqueue({input, mine, buffers.scalars}, stream);"
GATHER = "gather_->enqueue({mine, output, {}}, stream);"
GATHER_THERE = "gather_->enqueue(CallBuffers{mine, output, buffers.scalars}, stream);"

# (file, fault, text of the kernel, text with the fault)
FAULTS = [
    (
        "fused",
        "halves of inboxes are not used by turns",
        HALF,
        HALF.replace("number", "{} ? 0 : number"),
    ),
    (
        "fused",
        "a call does not count",
        "if (gridDim.x == 1)",
        "if ({}) return;\n  if (gridDim.x == 1)",
    ),
    (
        "fused",
        "NaN-sentinel packets are not waited for",
        f"return {SENTINEL_HERE};",
        f"return {{}} || ({SENTINEL_HERE});",
    ),
    (
        "fused",
        "flag packets are not waited for",
        f"return {RECEIVED};",
        f"return {{}} || ({RECEIVED});",
    ),
    (
        "fused",
        "a flag of any call is good enough",
        RECEIVED,
        f"({{}} ? a.lo >> 32 != 0 && b.hi >> 32 != 0 : {RECEIVED})",
    ),
    (
        "fused",
        "after the last number of a call comes 0",
        "number != 0 ? number : 1;",
        "number != 0 || ({}) ? number : 1;",
    ),
    (
        "fused",
        "packets stay in the inbox",
        "clear(char* at) { store_pair(",
        "clear(char* at) { if (!({})) store_pair(",
    ),
    (
        "fused",
        "packets are cleared before they are taken",
        "typename Packet::LoadedPacket got = Packet::load(at);",
        "if ({}) Packet::clear(at);\n    typename Packet::LoadedPacket got = Packet::load(at);",
    ),
    (
        "fused",
        "rank 0 is not waited for",
        "if (slot(i).is_wanted && !Packet::template is_here",
        "if (slot(i).is_wanted && !({} && slot(i).from == 0) && !Packet::template is_here",
    ),
    (
        "fused",
        "no rank is waited for in its turn",
        "(got, flag()) && !give_up(peer, unit))",
        "(got, flag()) && !({}) && !give_up(peer, unit))",
    ),
    (
        "fused",
        "two_shot: the result goes to the rank after the root",
        "return send_to(call.args.root);",
        "return send_to({} ? rank_after(call.args.root, 1, ranks) : call.args.root);",
    ),
    (
        "fused",
        "two_shot: a result for the root in the packet of another unit",
        "rank, slot_units, packet + u * stride);\n            Packet",
        "rank, slot_units, {} ? first : packet + u * stride);\n            Packet",
    ),
    (
        "fused",
        "two_shot: the root does not take results",
        "args.rank == args.root)) shot.gather(s);",
        "(args.rank == args.root && !({})))) shot.gather(s);",
    ),
    (
        "fused",
        "one_shot: peers in another order",
        "rank_after(args.rank, k, ranks);",
        "rank_after(args.rank, {} ? ranks - k : k, ranks);",
    ),
    (
        "fused",
        "one_shot: the last peer gets nothing",
        "k < ranks; ++k) {\n            const",
        "k < ranks - ({} ? 1 : 0); ++k) {\n            const",
    ),
    (
        "fused",
        "one_shot: into another sender's slot",
        "call.packet(peer, Call::kParts, args.rank,",
        "call.packet(peer, Call::kParts, {} ? rank_after(peer, 1, ranks) : args.rank,",
    ),
    (
        "fused",
        "one_shot: another unit's packet",
        "at + u * stride), mine[u],\n                call.flag());",
        "at + u * stride), mine[{} ? 0 : u],\n                call.flag());",
    ),
    (
        "fused",
        "one_shot: the sum of another unit",
        "call.put(at + u * stride, sum);",
        "call.put(at + ({} ? 0 : u) * stride, sum);",
    ),
    (
        "fused",
        "two_shot: peers in another order",
        "const int at = call.args.rank + k;",
        "const int at = call.args.rank + ({} ? call.ranks() - k : k);",
    ),
    (
        "fused",
        "two_shot: shards beyond the end",
        "min(shard, call.units - begin)",
        "({} ? shard : min(shard, call.units - begin))",
    ),
    (
        "fused",
        "two_shot: another owner's shard",
        "call.own(shard * to +",
        "call.own(shard * ({} ? call.args.rank : to) +",
    ),
    (
        "fused",
        "two_shot: another peer's part",
        "send_parts(mine[k], peer(k), packet, valid[k]);",
        "send_parts(mine[{} ? 1 : k], peer(k), packet, valid[k]);",
    ),
    (
        "fused",
        "two_shot: results sent before there are any",
        "send<kType>(there, sum,",
        "send<kType>(there, {} ? call.own(shard * rank + at + u * stride) : sum,",
    ),
    (
        "fused",
        "two_shot: results where parts come",
        "call.packet(to, Call::kResults,",
        "call.packet(to, {} ? Call::kParts : Call::kResults,",
    ),
    (
        "fused",
        "two_shot: the own result is not kept",
        "call.put(shard * rank +",
        "if (!({})) call.put(shard * rank +",
    ),
    (
        "fused",
        "packets of several ranks are not waited for",
        "while (missing >= 0 && !give_up(missing, 0));",
        "while (!({}) && missing >= 0 && !give_up(missing, 0));",
    ),
    (
        "fused",
        "two_shot: the last owner's results are not taken",
        "k < ranks && unit(i) < limit(from)",
        "k < ranks - ({} ? 1 : 0) && unit(i) < limit(from)",
    ),
    (
        "fused",
        "two_shot: results stay in the inbox",
        "          Packet::clear(slot_at(",
        "          if (!({})) Packet::clear(slot_at(",
    ),
    (
        "fused",
        "two_shot: a result in another's shard",
        "call.put(shard * slot(i).from +",
        "call.put(shard * ({} ? rank : slot(i).from) +",
    ),
    (
        "escaped",
        "escaped: halves of inboxes are not used by turns",
        HALF,
        HALF.replace("number", "{} ? 0 : number"),
    ),
    (
        "direct_ll",
        "direct_ll: no greetings",
        "if (!call.broken) call.greet();",
        "if (!call.broken && !({})) call.greet();",
    ),
    (
        "direct_ll",
        "direct_ll: greetings are not awaited",
        "if (!call.broken) call.await",
        "if (!call.broken && !({})) call.await",
    ),
    (
        "direct_ll",
        "direct_ll: no packet to greet in a slot",
        "* (units + 1) + unit;",
        "* (units + ({} ? 0 : 1)) + unit;",
    ),
    (
        "escaped",
        "escaped: packets are not waited for",
        "while (missing >= 0 &&",
        "while (!({}) && missing >= 0 &&",
    ),
    (
        "escaped",
        "escaped: packets stay in the inbox",
        f"store_pair({OWN_PACKET}, {MISSING})",
        f"if (!({{}})) store_pair({OWN_PACKET}, {MISSING})",
    ),
    (
        "escaped",
        "escaped: the escape word stays",
        "store_relaxed_64(at, EscapedPacket",
        "if (!({})) store_relaxed_64(at, EscapedPacket",
    ),
    (
        "escaped",
        "escaped: no escape word",
        "store_relaxed_64(escape_at,",
        "if (!({})) store_relaxed_64(escape_at,",
    ),
    (
        "escaped",
        "escaped: packets mixed by another's number",
        "mixed(value, unit));",
        "mixed(value, unit + ({} ? 1 : 0)));",
    ),
    (
        "direct_ll",
        "direct_ll: placed as another's",
        "put(peer(k) * shape",
        "put(({} ? args.rank : peer(k)) * shape",
    ),
    (
        "direct_ll",
        "direct_ll: another owner's part",
        "args.input) + owner *",
        "args.input) + ({} ? args.rank : owner) *",
    ),
    (
        "direct_ll",
        "direct_ll: the peer after gets the same part",
        "if (!kSums && after < args.ranks)",
        "if (!kSums && after < args.ranks && !({}))",
    ),
    (
        "direct_ll",
        "direct_ll: peers in another order",
        "return rank_after(args.rank, k,",
        "return rank_after(args.rank, {} ? args.ranks - k : k,",
    ),
    (
        "direct_ll",
        "direct_ll: what stays is not copied",
        "call.keep(first",
        "if (!({})) call.keep(first",
    ),
    (
        "direct_ll",
        "short_direct_ll: what stays is not copied",
        "if (i == args.ranks - 1) return put(",
        "if (i == args.ranks - 1) return {} ? (void)0 : put(",
    ),
    (
        "direct_ll",
        "short_direct_ll: another owner's part",
        "load(args.part_at[i], true)",
        "load(args.part_at[i + ({} ? 1 : 0)], true)",
    ),
    (
        "direct_ll",
        "short_direct_ll: the last one gets nothing",
        "if (gives_to(i)) give(i, held",
        "if (gives_to(i) && !({} && i == args.ranks - 2)) give(i, held",
    ),
    (
        "direct_ll",
        "short_direct_ll: a sum without the last rank",
        "(kIsFull || from < args.ranks) && from",
        "(kIsFull || from < args.ranks - ({} ? 1 : 0)) && from",
    ),
    (
        "direct_ll",
        "short_direct_ll: placed as another's",
        "put(args.place_at[first + j], got",
        "put(args.place_at[{} ? 0 : first + j], got",
    ),
    (
        "direct_ll",
        "short_direct_ll: another owner's part, of units that are not whole",
        "load(args.part_at[i], false)",
        "load(args.part_at[i + ({} ? 1 : 0)], false)",
    ),
    (
        "direct_ll",
        "short_direct_ll: placed as another's, of units that are not whole",
        "put(args.place_at[i], got[0]",
        "put(args.place_at[{} ? 0 : i], got[0]",
    ),
    (
        "direct_ll",
        "short_direct_ll: nothing is pushed",
        "call.push(held);\n    else",
        "if (!({})) call.push(held);\n      else (void)0;\n    else",
    ),
    (
        "direct_ll",
        "direct_ll: nothing pushed before the first take",
        "if (pushed < call.units) call",
        "if (pushed < call.units && !({} && s < 1)) call",
    ),
    (
        "direct_ll",
        "direct_ll: a sum without the last rank",
        "from < args.ranks; ++from) {\n      Unit got[kTogether]",
        "from < args.ranks - ({} ? 1 : 0); ++from) {\n      Unit got[kTogether]",
    ),
    (
        "ll_chain",
        "ll_chain: no greetings",
        "if (!call.broken) call.greet();",
        "if (!call.broken && !({})) call.greet();",
    ),
    (
        "ll_chain",
        "ll_chain: greetings are not awaited",
        "if (!call.broken) call.await",
        "if (!call.broken && !({})) call.await",
    ),
    (
        "ll_chain",
        "ll_chain: greetings where another's are",
        "place_among_others(owner, from));",
        "place_among_others(owner, {} ? (owner == 0 ? 1 : 0) : from));",
    ),
    (
        "ll_chain",
        "ll_chain: returned to the first rank",
        "returns(shape) ? shape.root : -1;",
        "returns(shape) ? ({} ? (shape.root + 1) % args.ranks : shape.root) : -1;",
    ),
    (
        "ll_chain",
        "ll_chain: a rank sends on another step's units",
        "first + u * stride, first + u * stride, held[u]",
        "first + u * stride, first + u * stride, held[{} ? 0 : u]",
    ),
    (
        "ll_chain",
        "ll_chain: what passes is not kept",
        "if (keeps(shape, args.rank) &&",
        "if (keeps(shape, args.rank) && !({}) &&",
    ),
    (
        "ll_chain",
        "ll_chain: what returns is not taken",
        "if (awaits) call.take",
        "if (awaits && !({})) call.take",
    ),
    (
        "long_chain",
        "long_chain: room is escapes of a piece too early",
        "store_flag_relaxed(theirs, done + 1)",
        "store_flag_relaxed(theirs, done + 1 + ({} ? 1 : 0))",
    ),
    (
        "long_chain",
        "long_chain: room is not awaited",
        "if (sends && piece != 0",
        "if (sends && !({}) && piece != 0",
    ),
    (
        "long_chain",
        "long_chain: room for the piece before is awaited",
        "shared.room < piece)",
        "shared.room < piece - ({} ? 1 : 0))",
    ),
    (
        "long_chain",
        "long_chain: room is escapes before all threads are through",
        "(piece / 2 + 1) * given.workers;",
        "(piece / 2 + 1) * given.workers - ({} ? given.workers : 0);",
    ),
    (
        "long_chain",
        "long_chain: the room flag keeps its value",
        "if (said == given.pieces - 1)",
        "if (said == given.pieces - 1 && !({}))",
    ),
    (
        "long_chain",
        "long_chain: the last piece is signalled before the room flag is 0 again",
        "room < wanted) continue;",
        "(room < wanted && !({}))) continue;",
    ),
    (
        "long_chain",
        "long_chain: the first block says that the last piece is left",
        "nearly_done_blocks, 1U) != gridDim.x - 1",
        "nearly_done_blocks, 1U) != ({} ? 0 : gridDim.x - 1)",
    ),
    (
        "long_chain",
        "long_chain: that the last piece is left is said a piece early",
        "if (has_said || done + 1 < given.pieces",
        "if (has_said || done + 1 + ({} ? 1 : 0) < given.pieces",
    ),
    (
        "long_chain",
        "long_chain: a rank leaves before the last piece is left for all",
        "!reached(peek_flag(&own",
        "!({}) && !reached(peek_flag(&own",
    ),
    (
        "long_chain",
        "long_chain: halves of inboxes are not used by turns",
        "this->number + piece,",
        "this->number + ({} ? 0 : piece),",
    ),
    (
        "long_chain",
        "long_chain: escape words lie where packets do",
        "static_cast<unsigned>(given.piece_bytes / 16);",
        "static_cast<unsigned>(given.piece_bytes / 16) - ({} ? 8 : 0);",
    ),
    (
        "long_chain",
        "long_chain: the root takes back other units than returned",
        "take_returned(first + returning.unit",
        "take_returned(first + ({} ? 0 : returning.unit)",
    ),
    (
        "long_chain",
        "long_chain: blocks that say the last piece is left are counted on in the next call",
        "nearly_done_blocks = 0;",
        "nearly_done_blocks = {} ? gridDim.x : 0;",
    ),
    (
        "long_chain",
        "long_chain: blocks that end are counted on in the next call",
        "own.done_blocks = 0;",
        "own.done_blocks = {} ? gridDim.x : 0;",
    ),
    (
        "long_chain",
        "long_chain: the next call takes this one's flags for its own",
        "own.calls = call;",
        "own.calls = call - ({} ? 1 : 0);",
    ),
    (
        "long_chain",
        "long_chain: room for the second piece is not signalled",
        "if (takes) store_flag_relaxed(theirs, 1);",
        "if (takes && !({})) store_flag_relaxed(theirs, 1);",
    ),
    (
        "long_chain",
        "long_chain: all pieces count as one call",
        "this->number + given.pieces - 1;",
        "this->number + ({} ? 0 : given.pieces - 1);",
    ),
    (
        "long_two_shot",
        "long_two_shot: room is escapes of a step too early",
        "static_cast<unsigned>(s + 1));",
        "static_cast<unsigned>(s + 1 + ({} ? 1 : 0)));",
    ),
    (
        "long_two_shot",
        "long_two_shot: room is escapes before all threads are through",
        "(s / kMostShotRing + 1) * given.workers;",
        "(s / kMostShotRing + 1) * given.workers - ({} ? given.workers : 0);",
    ),
    (
        "long_two_shot",
        "long_two_shot: room is not awaited",
        "if (pushed >= ring &&",
        "if (pushed >= ring && !({}) &&",
    ),
    (
        "long_two_shot",
        "long_two_shot: room for the step before is awaited",
        "(pushed - ring + 1));",
        "(pushed - ring + ({} ? 0 : 1)));",
    ),
    (
        "long_two_shot",
        "long_two_shot: the last peer's room is not awaited",
        "for (int k = 1; k < call.ranks(); ++k)\n      while",
        "for (int k = 1; k < call.ranks() - ({} ? 1 : 0); ++k)\n      while",
    ),
    (
        "long_two_shot",
        "long_two_shot: the room flag keeps its value",
        "if (said == all) store_flag",
        "if (said == all && !({})) store_flag",
    ),
    (
        "long_two_shot",
        "long_two_shot: a thread says that it is through before it takes results",
        "if (s >= 0 && !call.broken) this->gather(s);",
        "if ({} && s >= 0 && s < steps - ring) report_step_done(s);\n"
        "      if (s >= 0 && !call.broken) this->gather(s);",
    ),
    (
        "long_two_shot",
        "long_two_shot: flag packets are not cleared",
        "    store_pair(at, 0, 0);",
        "    if ({}) return;\n    store_pair(at, 0, 0);",
    ),
    (
        "long_two_shot",
        "long_two_shot: a slot holds a step less",
        "ring = args.ring;",
        "ring = args.ring - ({} ? 1 : 0);",
    ),
    (
        "long_two_shot",
        "long_two_shot: packets of a step lie where those of another do",
        "slot_units = static_cast<unsigned>(ring) * step;",
        "slot_units = static_cast<unsigned>(ring - ({} ? 1 : 0)) * step;",
    ),
    (
        "long_two_shot",
        "long_two_shot: the peer after is escapes",
        "store_flag_relaxed(&given.flags[peer(k)]",
        "store_flag_relaxed(&given.flags[peer({} && k > 1 ? k - 1 : k)]",
    ),
    (
        "scatter_ring",
        "parts go round before they are summed",
        f"{SCATTER}\n    {GATHER}",
        f"if ({{}}) {GATHER_THERE}\n    {SCATTER}\n    if (!({{}})) {GATHER_THERE}",
    ),
    (
        "scatter_ring",
        "parts are not summed",
        "scatter_->enqueue(",
        "if (!({})) scatter_->enqueue(",
    ),
    (
        "scatter_ring",
        "each rank sums the part behind its own",
        "{input, mine, buffers.scalars}",
        "{input + ({} ? part_bytes_ : 0), mine, buffers.scalars}",
    ),
    (
        "scatter_ring",
        "every rank's sums lie where the first one's do",
        "static_cast<unsigned>(rank_.rank()) * part_bytes_",
        "({} ? 0U : static_cast<unsigned>(rank_.rank())) * part_bytes_",
    ),
    (
        "scatter_ring",
        "parts are an element too short",
        "request.count / ranks;",
        "request.count / ranks - ({} ? 1 : 0);",
    ),
    ("scatter_ring", "the rest is left out", "if (rest_)", "if (rest_ && !({}))"),
    (
        "scatter_ring",
        "the rest is taken from the last part",
        "{input + rest_from_,",
        "{input + rest_from_ - ({} ? part_bytes_ : 0),",
    ),
    (
        "scatter_ring",
        "the rest is put into the first part",
        "output + rest_from_,",
        "output + ({} ? 0 : rest_from_),",
    ),
]

# Functions that argument-dependent lookup would also find in the real kernels.
RENAMED = (
    *("number_of_call", "part_of_call", "fence_earlier_clears", "fence_clears"),
    *("end_fused_call", "valid_units"),
)


def mutated(name: str) -> str:
    text = (SOURCE / FILES[name]).read_text()
    for number, (file, what, right, wrong) in enumerate(FAULTS, 1):
        if file != name:
            continue
        if text.count(right) != 1:
            raise SystemExit(
                f"{__file__}: wanted {right!r} once in {FILES[name]} ({what}), "
                f"found it {text.count(right)} times"
            )
        text = text.replace(right, wrong.replace("{}", f"plait_test::fault == {number}"))
    text = text.replace("namespace plait::cuda", "namespace plait::cuda::mutants")
    for shared in ("fused", "escaped", "ll_chain"):
        text = text.replace(f'"gpu/ll/{shared}.cuh"', f'"mutants/{shared}.cuh"')
    for function in RENAMED:
        text = text.replace(function, f"mutated_{function}")
    return text


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name, file in FILES.items():
        (out / file.name).write_text(mutated(name))
    rows = [
        f'PLAIT_FAULT({number}, {file}, "{what}")'
        for number, (file, what, _, _) in enumerate(FAULTS, 1)
    ]
    (out / "faults.def").write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "mutants")
