// Cards that ranks show each other in memory that all of them map: an Exchange for what is made
// beside the program's calls, when no rendezvous and no other library may be asked.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace plait::cuda {

class PageMeeting {
 public:
  static constexpr int kRanks = 16;  ///< at most
  static constexpr std::size_t kCardBytes = 960;

  struct Words {
    struct Place {
      alignas(64) std::atomic<std::uint32_t> round;  ///< that this rank has come to
      std::atomic<std::uint32_t> failed;             ///< 1 = it comes to no further one, as
      char reason[256];                              ///< this says
      std::uint32_t bytes[2];                        ///< of rounds by turns
      char cards[2][kCardBytes];
    };
    Place places[kRanks];
  };

  /// words: zeros when the first of all begins; they outlive this.
  PageMeeting(Words& words, int rank, int ranks) : words_(words), rank_(rank), ranks_(ranks) {}

  /// Every rank's bytes in rank order, once all have come; called alike by all. give_up is asked
  /// meanwhile, and throws where waiting is over. Error(mismatch) where a rank has failed.
  std::vector<std::string> exchange(const std::string& mine, const std::function<void()>& give_up);
  /// This rank comes to no further round, for that reason or for an earlier one of another. Any
  /// thread.
  void fail(const std::string& reason) noexcept;
  /// Why some rank failed; "" where none did.
  std::string failure() const;

 private:
  Words& words_;
  const int rank_, ranks_;
  std::uint32_t round_ = 0;
};

}  // namespace plait::cuda
