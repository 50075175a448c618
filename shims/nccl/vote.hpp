// Cards that all ranks show each other over ncclAllGather, 4096 bytes each. A rank that fails says
// so in its next card, so every round ends alike on all ranks: all go on, or all stop.
#pragma once
#include <string>
#include <vector>

#include "shims/nccl/comm_table.hpp"

namespace plait::nccl {

inline constexpr std::size_t kCardBytes = 4096;

/// Returns when NCCL has made the communicator, or taken a call, in the background. Throws where it
/// failed, was aborted, or takes too long.
void wait_ready(State& state);

class Vote {
 public:
  explicit Vote(State& state);
  /// From here on, the `count` ranks of this process meet before each round.
  void meet_first(const std::string& name, int count) { meeting_ = name, in_process_ = count; }
  /// All ranks' bytes. Throws Error(mismatch), on all ranks, where one of them failed or is done.
  std::vector<std::string> exchange(const std::string& mine);
  /// The last round: "" where all ranks are done, else the first one's reason.
  std::string finish(const std::string& failure);
  /// True once a round has shown a failure: then there must be no further round.
  bool stopped() const { return stopped_; }

 private:
  enum class Kind : int { data = 0, failed = 1, done = 2 };
  struct Card {
    char mark[8];
    int kind;
    unsigned bytes;
    char body[kCardBytes - 16];
  };
  static_assert(sizeof(Card) == kCardBytes);
  std::vector<Card> round(Kind kind, const std::string& body);
  std::string first_failure(const std::vector<Card>& cards) const;

  State& state_;
  bool stopped_ = false;
  std::string meeting_;
  int in_process_ = 1;
  int round_ = 0;
};

}  // namespace plait::nccl
