// Requests of tests and benches that go through collectives, types and sizes.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/blocks.hpp"

namespace plait_test {

/// Returns `like` for each collective, type and size, sizes innermost. Sizes are bytes of a
/// message.
inline std::vector<plait::Request> requests_of(const std::vector<plait::Collective>& collectives,
                                               const std::vector<plait::DataType>& types,
                                               const std::vector<std::uint64_t>& sizes,
                                               plait::Request like) {
  std::vector<plait::Request> all;
  for (const plait::Collective collective : collectives)
    for (const plait::DataType type : types)
      for (const std::uint64_t bytes : sizes) {
        like.collective = collective;
        like.type = type;
        all.push_back(plait::of_message_bytes(like, bytes));
      }
  return all;
}

/// Returns the calls by which the table of a first start is judged: 30 sizes from 256 bytes to
/// 1 GiB, of six collectives in fp32.
inline std::vector<plait::Request> first_start_points(int ranks) {
  using enum plait::Collective;
  std::vector<std::uint64_t> sizes;
  for (int shift = 8; shift <= 30; ++shift) sizes.push_back(std::uint64_t{1} << shift);
  for (int shift = 10; shift <= 24; shift += 2)
    if (shift != 18) sizes.push_back(std::uint64_t{3} << shift);
  std::sort(sizes.begin(), sizes.end());
  plait::Request like;
  like.ranks = ranks;
  return requests_of({all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all},
                     {plait::DataType::fp32}, sizes, like);
}

}  // namespace plait_test
