// Uneven counts of blocks: none, 1, primes, a single large block among tiny ones, random.
#pragma once
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "plait/plan.hpp"

namespace uneven {

inline const std::vector<plait::Collective> kCollectives{
    plait::Collective::all_gather, plait::Collective::reduce_scatter, plait::Collective::all_to_all,
    plait::Collective::gather, plait::Collective::scatter};

inline const std::vector<std::string> kShapes{"linear", "one heavy", "halves", "random"};

/// The count of block `index`; the largest is about `most`.
inline std::uint64_t count_of(const std::string& shape, std::uint64_t index, std::uint64_t blocks,
                              std::uint64_t most, std::mt19937_64& random) {
  if (shape == "linear") return most * index / (blocks - 1);  // the first is empty
  if (shape == "one heavy") return index == blocks / 2 ? most : index % 3;
  if (shape == "halves") return most >> std::min<std::uint64_t>(index, 63);
  const std::uint64_t draw = random();
  return draw % 4 == 0 ? 0 : draw / 4 % (1 + (most >> draw % 16));
}

/// An uneven request of the shape, with roots and types in turn.
inline plait::Request request_of(plait::Collective collective, int ranks, const std::string& shape,
                                 std::uint64_t most, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  plait::Request request;
  request.collective = collective;
  request.ranks = ranks;
  request.root = static_cast<int>(seed % static_cast<std::uint64_t>(ranks));
  const auto n = static_cast<std::uint64_t>(ranks);
  const std::uint64_t blocks = collective == plait::Collective::all_to_all ? n * n : n;
  for (std::uint64_t i = 0; i < blocks; ++i)
    request.counts.push_back(count_of(shape, i, blocks, most, random));
  return request;
}

}  // namespace uneven
