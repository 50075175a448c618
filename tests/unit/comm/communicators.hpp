// Runs communicators with a thread per rank, and checks the error texts that the ranks threw.
#pragma once
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "plait/communicator.hpp"
#include "unit/folder.hpp"

namespace plait_test {

using Body = std::function<void(plait::Communicator&)>;

inline plait::CommunicatorOptions options_for(const plait::TestFolder& folder, int rank,
                                              int ranks) {
  plait::CommunicatorOptions options;
  options.rank = rank;
  options.ranks = ranks;
  options.rendezvous = "unix:" + folder.socket();
  options.arrive_s = 20;
  return options;
}

/// Runs the body on each rank. Returns the ranks' error texts, "" without an error.
inline std::vector<std::string> with_communicators(int ranks, const Body& body) {
  plait::TestFolder folder;
  return plait::as_threads(ranks, [&](int rank) {
    const auto communicator = plait::Communicator::create(options_for(folder, rank, ranks));
    body(*communicator);
  });
}

inline void check_no_errors(const std::vector<std::string>& thrown) {
  for (const std::string& one : thrown) CHECK(one == "");
}

inline void check_all_say(const std::vector<std::string>& thrown, const std::string& words) {
  for (const std::string& one : thrown) {
    CAPTURE(one);
    CHECK(one.find(words) != std::string::npos);
  }
}

}  // namespace plait_test
