// The shape of tiled calls, run by plain loops: parts to owners, handled, results to readers. Every
// collective must come out as its definition says, tile by tile, in place where NCCL allows it.
#include <doctest/doctest.h>

#include <cstring>

#include "base/text.hpp"
#include "exec/cuda/copies/rotation.hpp"
#include "exec/cuda/traffic/tile_cut.hpp"
#include "exec/cuda/traffic/tiled_shape.hpp"

namespace plait::cuda {
namespace {

using Words = std::vector<std::int32_t>;

Words input_of(const Request& request, int rank) {
  Words words(input_bytes(request, rank) / 4);
  for (std::size_t i = 0; i < words.size(); ++i)
    words[i] = static_cast<std::int32_t>(1000003 * (rank + 1) + 7 * static_cast<int>(i));
  return words;
}

/// What the collective means, straight from its definition; only words it defines are given.
Words expected_of(const Request& request, int rank, const std::vector<Words>& inputs) {
  Words out(output_bytes(request, rank) / 4);
  const std::size_t n = request.count, me = static_cast<std::size_t>(rank);
  const auto root = static_cast<std::size_t>(request.root);
  const std::size_t all = inputs.size();
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t from = n == 0 ? 0 : i / n, at = n == 0 ? 0 : i % n;
    switch (request.collective) {
      case Collective::all_reduce:
      case Collective::reduce:
        for (const Words& in : inputs) out[i] += in[i];
        break;
      case Collective::reduce_scatter:
        for (const Words& in : inputs) out[i] += in[me * n + i];
        break;
      case Collective::all_gather:
      case Collective::gather: out[i] = inputs[from][at]; break;
      case Collective::broadcast:
      case Collective::copy: out[i] = inputs[root][i]; break;
      case Collective::all_to_all: out[i] = inputs[from][me * n + at]; break;
      case Collective::scatter: out[i] = inputs[root][me * n + i]; break;
      case Collective::send_recv: out[i] = inputs[(me + all - 1) % all][i]; break;
    }
  }
  return out;
}

struct Emulated {
  const Request& request;
  std::vector<TiledArgs> shapes;
  std::vector<Words> inputs, outputs;

  int index_of(const TiledArgs& shape, int owner) const {
    return __builtin_popcount(shape.owners & ((1u << owner) - 1));
  }
  std::uint64_t part_bytes(const TiledArgs& shape, int owner) const {
    const std::uint64_t begin =
        static_cast<std::uint64_t>(index_of(shape, owner)) * shape.part_bytes;
    return begin >= shape.total_bytes ? 0 : std::min(shape.part_bytes, shape.total_bytes - begin);
  }
  bool sends(int from, int owner) const {
    const TiledArgs& shape = shapes[static_cast<std::size_t>(from)];
    return from != owner && (shape.senders >> from & 1) != 0 && (shape.owners >> owner & 1) != 0 &&
           (shape.shift == 0 || (from + shape.shift) % shape.ranks == owner);
  }
  std::int32_t* out_at(int rank, std::uint64_t offset) {
    return outputs[static_cast<std::size_t>(rank)].data() + offset / 4;
  }
  const std::int32_t* part_of(int rank, int owner) const {
    const TiledArgs& shape = shapes[static_cast<std::size_t>(rank)];
    return inputs[static_cast<std::size_t>(rank)].data() +
           static_cast<std::uint64_t>(index_of(shape, owner)) * shape.part_stride / 4;
  }

  Words handled(int owner) const {
    const TiledArgs& shape = shapes[static_cast<std::size_t>(owner)];
    const std::uint64_t words = part_bytes(shape, owner) / 4;
    Words result(words);
    if (shape.handling == kReduceParts)
      for (int rank = 0; rank < shape.ranks; ++rank)
        for (std::size_t i = 0; i < words; ++i) result[i] += part_of(rank, owner)[i];
    if (shape.handling == kPassPart) {
      const std::int32_t* source = inputs[static_cast<std::size_t>(owner)].data();
      for (int rank = 0; rank < shape.ranks; ++rank)
        if (sends(rank, owner)) source = part_of(rank, owner);
      if (words != 0) result.assign(source, source + words);
    }
    return result;
  }

  void run_hop();
  void show(int owner) {
    const TiledArgs& shape = shapes[static_cast<std::size_t>(owner)];
    const Words result = handled(owner);
    for (int reader = 0; reader < shape.ranks; ++reader) {
      const bool takes =
          reader == owner ? (shape.keepers >> owner & 1) != 0 : (shape.readers >> reader & 1) != 0;
      if (takes && !result.empty())
        std::memcpy(out_at(reader, static_cast<std::uint64_t>(index_of(shape, owner)) *
                                       shape.result_stride),
                    result.data(), result.size() * 4);
    }
  }

  void run() {
    for (const TiledArgs& shape : shapes) {
      const std::byte* in =
          reinterpret_cast<const std::byte*>(inputs[static_cast<std::size_t>(shape.rank)].data());
      if (shape.own_bytes != 0)
        std::memcpy(out_at(shape.rank, shape.own_to), in + shape.own_from, shape.own_bytes);
      if ((shape.owners >> shape.rank & 1) == 0) continue;
      if (shape.handling != kPlaceParts) {
        show(shape.rank);
        continue;
      }
      for (int from = 0; from < shape.ranks; ++from)
        if (sends(from, shape.rank) && part_bytes(shape, shape.rank) != 0)
          std::memcpy(out_at(shape.rank, static_cast<std::uint64_t>(from) * shape.place_stride),
                      part_of(from, shape.rank), part_bytes(shape, shape.rank));
    }
  }
};

bool hop_sends(const HopShape& shape, int ranks, int from, int owner) {
  return (shape.senders >> from & 1) != 0 && (shape.owners >> owner & 1) != 0 &&
         (shape.shift == 0 || (from + shape.shift) % ranks == owner);
}

/// The same in one hop.
void Emulated::run_hop() {
  for (int rank = 0; rank < request.ranks; ++rank) {
    const HopShape shape = hop_shape(request, rank);
    const auto part = [&](int from) {
      return inputs[static_cast<std::size_t>(from)].data() +
             static_cast<std::uint64_t>(rank) * hop_shape(request, from).part_stride / 4;
    };
    if (shape.own_bytes != 0)
      std::memcpy(out_at(rank, shape.own_to),
                  part(rank) - shape.part_stride / 4 * static_cast<std::uint64_t>(rank) +
                      shape.own_from / 4,
                  shape.own_bytes);
    if ((shape.owners >> rank & 1) == 0 || shape.part_bytes == 0) continue;
    if (shape.handling == kReduceParts) std::memset(out_at(rank, 0), 0, shape.part_bytes);
    for (int from = 0; from < request.ranks; ++from) {
      if (shape.handling == kReduceParts)
        for (std::uint64_t i = 0; i < shape.part_bytes / 4; ++i)
          out_at(rank, 0)[i] += part(from)[i];
      else if (from != rank && hop_sends(shape, request.ranks, from, rank))
        std::memcpy(out_at(rank, static_cast<std::uint64_t>(from) * shape.place_stride), part(from),
                    shape.part_bytes);
    }
  }
}

void check_collective(Collective collective, int ranks, std::uint64_t count, int root) {
  Request request;
  request.collective = collective;
  request.ranks = ranks;
  request.count = count;
  request.type = DataType::int32;
  request.root = root;
  request.peer = (root + 1) % ranks;
  CAPTURE(text(name_of(collective), " ", ranks, " ranks, count ", count, ", root ", root));
  Emulated all{request, {}, {}, {}};
  for (int rank = 0; rank < ranks; ++rank) {
    all.shapes.push_back(tiled_shape(request, rank));
    all.inputs.push_back(input_of(request, rank));
    all.outputs.emplace_back(output_bytes(request, rank) / 4, -1);
  }
  all.run();
  for (int rank = 0; rank < ranks; ++rank)
    CHECK(all.outputs[static_cast<std::size_t>(rank)] == expected_of(request, rank, all.inputs));
  for (Words& output : all.outputs) std::fill(output.begin(), output.end(), -1);
  all.run_hop();
  for (int rank = 0; rank < ranks; ++rank)
    CHECK(all.outputs[static_cast<std::size_t>(rank)] == expected_of(request, rank, all.inputs));
}

TEST_CASE("tiled shapes move what every collective says") {
  for (int collective = 0; collective <= static_cast<int>(Collective::copy); ++collective)
    for (const int ranks : {1, 2, 3, 4, 5, 8, 16})
      for (const std::uint64_t count : {0ull, 1ull, 5ull, 64ull, 1003ull})
        for (const int root : {0, ranks - 1})
          check_collective(static_cast<Collective>(collective), ranks, count, root);
}

TEST_CASE("tiles cover the parts and fit their slots, whatever the size") {
  for (const int ranks : {2, 3, 8, 16})
    for (const std::uint64_t count : {1ull, 999ull, 1ull << 20, 1ull << 25, (1ull << 32) + 3})
      for (const unsigned blocks : {1u, 32u, 132u})
        for (const std::uint32_t wished : {0u, 300u, 1u << 20}) {
          Request request;
          request.ranks = ranks;
          request.count = count;
          TiledArgs shape = tiled_shape(request, 0);
          const TileWish wish{blocks, wished, 72ull << 20};
          CHECK(spread_tiles(shape, wish) == shape.blocks);
          CAPTURE(text(ranks, " ranks, count ", count, ", blocks ", blocks, ", tile ", wished));
          CHECK(shape.blocks >= 1);
          CHECK(shape.blocks <= blocks);
          CHECK(shape.slot_bytes * tile_slots(ranks) <= 72ull << 20);
          const std::uint64_t units = (shape.part_bytes + 15) / 16, tile = tile_units(shape);
          CHECK(tile >= 1);
          CHECK(tile * 16 <= shape.slot_bytes);
          CHECK(shape.window >= 1);
          CHECK(shape.window <= kTileSlots);  // or a slot is written again before it has been read
          if (wished != 0) CHECK(tile <= wished);
          const std::uint64_t tiles = (units + tile - 1) / tile;  // all blocks alike, but for one
          CHECK((tiles + shape.blocks - 1) / shape.blocks * tile * shape.blocks <
                units + 2 * tile * shape.blocks);
          // Slots lie where they lie, whatever the call.
          Request other = request;
          other.count = 12345;
          TiledArgs other_shape = tiled_shape(other, 0);
          spread_tiles(other_shape, wish);
          CHECK(other_shape.slot_bytes == shape.slot_bytes);
        }
}

TEST_CASE("ranks keep in step where results travel between more than two, with blocks enough") {
  const auto window = [](Collective collective, int ranks, unsigned blocks) {
    Request request;
    request.collective = collective;
    request.ranks = ranks;
    request.count = 1 << 25;
    TiledArgs shape = tiled_shape(request, 1);
    spread_tiles(shape, {blocks, 0, 300ull << 20});
    return shape.window;
  };
  for (const int ranks : {3, 4, 8}) {
    CHECK(window(Collective::all_reduce, ranks, 100) == 2);
    CHECK(window(Collective::reduce, ranks, 64) == 2);
    CHECK(window(Collective::all_reduce, ranks, 32) == kTileSlots);
    for (const Collective one : {Collective::reduce_scatter, Collective::all_gather})
      CHECK(window(one, ranks, 100) == kTileSlots);
  }
  CHECK(window(Collective::all_reduce, 2, 100) == kTileSlots);  // no results
}

TEST_CASE("a rotation's pieces cover every part, as many even as odd ones") {
  for (const std::uint64_t bytes : {16ull, 4096ull, 100000ull, 1ull << 30, (1ull << 33) + 48})
    for (const std::uint64_t most : {4096ull, 1ull << 20, 32ull << 20}) {
      const RotationCut cut = cut_rotation(bytes, most);
      CHECK(cut.pieces % kRotationSlots == 0);
      CHECK(cut.piece_bytes <= most);
      CHECK(cut.piece_bytes * cut.pieces >= bytes);
      CHECK(cut.piece_bytes * (cut.pieces - 2) < std::max<std::uint64_t>(bytes, 8192));
    }
}

TEST_CASE("what is only moved goes as integers of its width") {
  Request request;
  request.collective = Collective::all_gather;
  request.type = DataType::bf16;
  CHECK(moved_type(request) == DataType::uint16);
  request.type = DataType::fp64;
  CHECK(moved_type(request) == DataType::uint64);
  request.collective = Collective::reduce;
  CHECK(moved_type(request) == DataType::fp64);
}

}  // namespace
}  // namespace plait::cuda
