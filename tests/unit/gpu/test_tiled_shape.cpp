// Shapes of tiled calls and rotations: how parts are cut into tiles and pieces.
#include <doctest/doctest.h>

#include "base/text.hpp"
#include "gpu/abi/tile_cut.hpp"
#include "gpu/copy/rotation.hpp"
#include "gpu/engine/kernel_types.hpp"
#include "gpu/tile/tiled_shape.hpp"

namespace plait::cuda {
namespace {

constexpr unsigned kBlocks = 148;  // an SM each of a B200

TEST_CASE("tiles cover the parts and fit their slots, for any size") {
  for (const int ranks : {2, 3, 8, 16})
    for (const std::uint64_t count : {1ull, 999ull, 1ull << 20, 1ull << 25, (1ull << 32) + 3})
      for (const unsigned blocks : {1u, 32u, kBlocks})
        for (const std::uint32_t wished : {0u, 300u, 1u << 20}) {
          Request request;
          request.ranks = ranks;
          request.count = count;
          TiledArgs shape = tiled_shape(request, 0);
          const TileWish wish{.most_blocks = blocks,
                              .tile_units = wished,
                              .slot_memory_bytes = 72ull << 20,
                              .slot_blocks = kBlocks};
          CHECK(spread_tiles(shape, wish) == shape.blocks);
          CAPTURE(text("{} ranks, count {}, blocks {}, tile {}", ranks, count, blocks, wished));
          CHECK(shape.blocks >= 1);
          CHECK(shape.blocks <= blocks);
          CHECK(std::uint64_t{shape.block_bytes} * kBlocks <= 72ull << 20);
          CHECK(shape.window >= 2);  // else no tile is in flight while another is read
          const std::uint64_t units = (shape.part_bytes + 15) / 16, tile = tile_units(shape);
          CHECK(tile >= 1);
          CHECK(tile * 16 <= shape.slot_bytes);
          CHECK(shape.window <= kTileSlots);  // else a slot is overwritten before being read
          if (wished != 0) CHECK(tile <= wished);
          const std::uint64_t tiles = (units + tile - 1) / tile;  // equal blocks, except one
          CHECK((tiles + shape.blocks - 1) / shape.blocks * tile * shape.blocks <
                units + 2 * tile * shape.blocks);
          // A block's memory does not depend on the call.
          Request other = request;
          other.count = 12345;
          TiledArgs other_shape = tiled_shape(other, 0);
          spread_tiles(other_shape, wish);
          CHECK(other_shape.block_bytes == shape.block_bytes);
        }
}

TEST_CASE("slots are as large as the rings of a call leave room for") {
  constexpr std::uint64_t kBlockBytes = 768 << 10;
  const auto slot = [](Collective collective, unsigned blocks = 100) {
    Request request;
    request.collective = collective;
    request.ranks = 4;
    request.peer = 1;
    request.count = 1 << 25;
    TileWish wish;
    wish.most_blocks = blocks;
    wish.slot_blocks = 100;
    wish.slot_memory_bytes = 100 * kBlockBytes;
    TiledArgs shape = tiled_shape(request, 1);
    spread_tiles(shape, wish);
    return shape.slot_bytes;
  };
  // Six rings of two slots, or three of three: 12 and 9.
  CHECK(slot(Collective::all_reduce) == 64 << 10);
  for (const Collective one :
       {Collective::reduce_scatter, Collective::all_gather, Collective::all_to_all})
    CHECK(slot(one) == kBlockBytes / 9 / kSlotGrainBytes * kSlotGrainBytes);
  CHECK(slot(Collective::all_reduce, 32) == 32 << 10);  // six of four
  CHECK(slot(Collective::broadcast) == 64 << 10);  // one for parts, two for results of other owners
  CHECK(slot(Collective::copy) == 192 << 10);      // one
}

TEST_CASE(
    "all blocks together send at the pace of a call, and half of the pace if results are sent "
    "too") {
  const auto gb_per_s = [](Collective collective, int ranks, int rank, unsigned blocks) {
    Request request;
    request.collective = collective;
    request.ranks = ranks;
    request.count = 1 << 25;
    TiledArgs shape = tiled_shape(request, rank);
    spread_tiles(shape, {.most_blocks = blocks,
                         .slot_memory_bytes = 300ull << 20,
                         .slot_blocks = kBlocks,
                         .send_gb_per_s = 350});
    return 1024e3 * shape.blocks / shape.ps_per_kib;
  };
  for (const unsigned blocks : {1u, 64u, kBlocks}) {
    const auto near = [](double value) { return doctest::Approx(value).epsilon(0.01); };
    CHECK(gb_per_s(Collective::reduce_scatter, 4, 1, blocks) == near(350));
    CHECK(gb_per_s(Collective::all_gather, 8, 7, blocks) == near(350));
    CHECK(gb_per_s(Collective::all_reduce, 2, 1, blocks) ==
          near(350));  // two ranks exchange whole messages
    CHECK(gb_per_s(Collective::all_reduce, 4, 1, blocks) == near(175));
    CHECK(gb_per_s(Collective::broadcast, 4, 0, blocks) == near(350));  // the root's sends
  }
  TiledArgs shape = tiled_shape({}, 0);
  spread_tiles(shape, {.slot_memory_bytes = 300ull << 20});
  CHECK(shape.ps_per_kib == 0);
}

TEST_CASE("ranks stay in step if each of more than two hears from all, with enough blocks") {
  const auto window = [](Collective collective, int ranks, unsigned blocks) {
    Request request;
    request.collective = collective;
    request.ranks = ranks;
    request.count = 1 << 25;
    TiledArgs shape = tiled_shape(request, 1);
    spread_tiles(
        shape, {.most_blocks = blocks, .slot_memory_bytes = 300ull << 20, .slot_blocks = kBlocks});
    return shape.window;
  };
  for (const int ranks : {3, 4, 8}) {
    CHECK(window(Collective::all_reduce, ranks, 100) == 2);
    CHECK(window(Collective::reduce, ranks, 64) == 2);
    CHECK(window(Collective::all_reduce, ranks, 32) == kTileSlots);
    for (const Collective one : {Collective::reduce_scatter, Collective::all_gather}) {
      CHECK(window(one, ranks, 100) == 3);
      CHECK(window(one, ranks, 32) == kTileSlots);
    }
    for (const Collective one : {Collective::broadcast, Collective::send_recv, Collective::copy})
      CHECK(window(one, ranks, 100) == kTileSlots);
  }
  for (const Collective one :
       {Collective::all_reduce, Collective::reduce_scatter, Collective::reduce}) {
    CHECK(window(one, 2, 100) == 2);
    CHECK(window(one, 2, 32) == kTileSlots);
  }
  CHECK(window(Collective::all_gather, 2, 100) == kTileSlots);
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

TEST_CASE("moved data goes as integers of its width") {
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
