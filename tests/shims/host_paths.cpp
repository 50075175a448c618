// Runs the path check's kernel on threads, between processes or threads that share the segment.
#include "conformance/emulated_paths.hpp"
// After it.
#include <cstdlib>

#include "base/env.hpp"
#include "plait/error.hpp"
#include "tests/shims/host_paths.hpp"

namespace plait::nccl {

void prove_host_paths(standin::Segment& segment, const GpuCallsOptions& options,
                      const Exchange& exchange) {
  const char* said = std::getenv("STANDIN_PATH");
  if (said == nullptr) return;
  static_assert(sizeof segment.paths[0] >= sizeof(cuda::PathInbox));
  const std::vector<std::string> parts = split(said, ':');
  plait_test::EmulatedPathFault trouble{std::stoi(parts.at(1)), std::stoi(parts.at(2))};
  if (parts[0] == "mirror") trouble.stores = plait_test::PathTrouble::mirror;
  if (parts[0] == "stale") trouble.stores = plait_test::PathTrouble::stale;
  if (parts[0] == "flip") trouble.pushes = plait_test::PathTrouble::flip;
  const bool stalls = parts[0] == "stall";
  if (stalls) trouble.stall_s = 4, trouble.stalls = 1;
  std::vector<cuda::PathInbox*> words;
  for (int rank = 0; rank < options.rank.ranks; ++rank)
    words.push_back(reinterpret_cast<cuda::PathInbox*>(segment.paths[rank]));
  constexpr std::uint64_t kNonce = 42;
  // Without success, at least at first.
  const bool waits = stalls || trouble.stores == plait_test::PathTrouble::mirror;
  const cuda::PathTimeouts patience{.start_s = 20, .wait_s = waits ? 0.5 : 10, .copy_s = 20};
  plait_test::EmulatedPaths side(words, options.rank.rank, kNonce, patience, trouble);
  const std::string broken =
      cuda::broken_path(side, exchange, options.rank.rank, options.rank.ranks, kNonce, patience);
  if (!broken.empty()) throw cuda::NoDirectAccess(ErrorCode::driver_error, broken, true);
}

}  // namespace plait::nccl
