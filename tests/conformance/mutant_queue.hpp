// Damages calls of copy engines with a mistake each, as a slip in the engine's code would on all
// ranks: a queue between the engine and the plan that is recorded.
#pragma once
#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "gpu/copy/copy_plans.hpp"

namespace plait_test {

namespace cuda = plait::cuda;

/// Mistakes.
enum class Slip {
  none,
  no_wait,          ///< a step does not wait for a flag
  one_unheard,      ///< a step waits for a rank less
  wait_less,        ///< a wait accepts two less: the piece before in the same slot
  no_signal,        ///< a step signals no rank
  one_unsignalled,  ///< a step signals a rank less
  signal_early,     ///< a step signals before the copy or reduction instead of after
  signal_late,      ///< a step signals after the wait
  signal_other,     ///< a step signals the next rank's flag instead
  signal_even,      ///< a step of an odd piece signals the flag of even ones
  no_follow,        ///< a stream does not follow an event
  follow_once,      ///< a stream follows only the first of the stream's events, at the begin
  old_event,        ///< an event is not recorded a second time
  skip_copy,        ///< a copy is left out
  short_copy,       ///< a copy leaves out the last 16 bytes
  other_owner,      ///< data for a rank's slots goes to the next rank's
  other_slot,       ///< data for the upper half of slots goes to the lower half
  swap_sources,     ///< sums are made in another order
  drop_source,      ///< a sum leaves out a part
  count_less,       ///< the end of a call counts two less
  no_count,         ///< the end of a call counts nothing
  no_end_wait,      ///< the last step waits for no rank
  no_job,           ///< cores get no job of the call
};

struct Mutant {
  Slip slip = Slip::none;
  int stream = -1;  ///< stream of the work; -1 = any; 100 + n = the host part's; 1000 = the
                    ///< caller's
  int from = 0,
      to = 1 << 20;  ///< flags by Flag::index, events by number (100 + n: the host part's)
};

/// The queue of a rank.
class MutantQueue : public cuda::EngineQueue {
 public:
  MutantQueue(cuda::PlanBook& book, int rank, const Mutant& mutant)
      : path_(book.path()), queue_(book.queue(rank)), rank_(rank), mutant_(mutant) {}

  void copy(cuda::Stream stream, char* dst, const char* src, std::uint64_t bytes) override {
    if (!is_copied(stream, bytes)) return;
    look_where(dst);
    if (is(Slip::other_owner, stream)) dst = elsewhere(dst);
    if (is(Slip::other_slot, stream)) dst = lower(dst);
    hold([=, this] { queue_.copy(stream, dst, src, bytes); });
  }
  void reduce(cuda::Stream stream, const cuda::PieceArgs& given, plait::DataType type,
              unsigned blocks) override {
    cuda::PieceArgs args = given;
    if (args.sources == 1 && !is_copied(stream, args.bytes)) return;  // a copy by a kernel
    if (is(Slip::swap_sources, stream)) std::swap(args.source[0], args.source[1]);
    if (is(Slip::drop_source, stream)) --args.sources;
    hold([=, this] { queue_.reduce(stream, args, type, blocks); });
  }
  void step(cuda::Stream stream, const cuda::EngineStep& given) override {
    cuda::EngineStep step = given;
    const bool is_signalled_early = damage(stream, step);
    const Work work = [=, this] { queue_.step(stream, step); };
    if (!is_signalled_early && is(Slip::signal_early, stream) && !held_.empty())
      return held_.push_back(work);
    if (!is_signalled_early) return put(work);
    cuda::EngineStep signalling = step;  // signals first, then the held work, then the waits
    for (cuda::EngineWait& wait : signalling.waits) wait.ranks = 0;
    queue_.step(stream, signalling);
    std::fill(std::begin(step.signal), std::end(step.signal), nullptr);
    put([=, this] { queue_.step(stream, step); });
  }
  void end(cuda::Stream stream, const cuda::EngineEnd& given) override {
    cuda::EngineEnd end = given;
    damage(stream, end.step);
    if (is(Slip::no_end_wait, stream))
      for (cuda::EngineWait& wait : end.step.waits) wait.ranks = 0;
    for (std::size_t i = 0; i < std::size(end.counts); ++i) {
      if (end.counts[i] == nullptr || !is_word(end.counts[i], 0)) continue;
      if (mutant_.slip == Slip::count_less) end.more[i] -= std::min(end.more[i], 2u);
      if (mutant_.slip == Slip::no_count) end.more[i] = 0;
    }
    flush();
    queue_.end(stream, end);
  }
  void begin_on_host(cuda::Stream stream, const cuda::HostJob& job) override {
    if (mutant_.slip == Slip::no_job) return;
    put([=, this] { queue_.begin_on_host(stream, job); });
  }
  void record(cuda::Event event, cuda::Stream stream) override {
    if (is(Slip::old_event, stream) && is_event(event) && hits_++ != 0) return;
    put([=, this] { queue_.record(event, stream); });
  }
  void follow(cuda::Stream stream, cuda::Event event) override {
    if (is(Slip::no_follow, stream) && is_event(event)) return;
    if (is(Slip::follow_once, stream) && is_event(event) && hits_++ != 0) return;
    put([=, this] { queue_.follow(stream, event); });
  }

 private:
  using Work = std::function<void()>;

  template <class Handles, class Handle>
  static int number(const Handles& own, const Handles& host, Handle one) {
    const auto at = std::find(own.begin(), own.end(), one);
    if (at != own.end()) return static_cast<int>(at - own.begin());
    const auto of_host = std::find(host.begin(), host.end(), one);
    return of_host == host.end() ? 1000 : 100 + static_cast<int>(of_host - host.begin());
  }
  bool is(Slip slip, cuda::Stream stream) const {
    return mutant_.slip == slip &&
           (mutant_.stream < 0 ||
            mutant_.stream == number(path_.streams, path_.host_streams, stream));
  }
  bool is_event(cuda::Event event) const {
    const int here = number(path_.events, path_.host_events, event);
    return here >= mutant_.from && here < mutant_.to;
  }
  bool is_word(const std::uint32_t* at, int writer) const {
    for (const cuda::EngineFlags* flags : path_.flags) {
      const auto index = at - reinterpret_cast<const std::uint32_t*>(flags) - writer;
      if (index >= 0 && index < static_cast<std::ptrdiff_t>(sizeof *flags / sizeof *at))
        return index >= mutant_.from && index < mutant_.to;
    }
    const auto index = cuda::kHostPlanFlags.first +
                       (at - reinterpret_cast<const std::uint32_t*>(path_.host_flags)) - writer;
    return index >= mutant_.from && index < mutant_.to;
  }

  /// True if the step is to signal before the work instead of after.
  bool damage(cuda::Stream stream, cuda::EngineStep& step) {
    for (cuda::EngineWait& wait : step.waits) {
      if (wait.ranks == 0 || !is_word(wait.flags, 0)) continue;
      if (is(Slip::no_wait, stream)) wait.ranks = 0;
      if (is(Slip::one_unheard, stream)) wait.ranks &= wait.ranks - 1;
      if (is(Slip::wait_less, stream)) wait.value -= 2;
    }
    bool signalling = false;
    for (int rank = 0; rank < cuda::kMaxCudaRanks; ++rank) {
      std::uint32_t*& signal_value = step.signal[rank];
      if (signal_value == nullptr || !is_word(signal_value, rank_)) continue;
      const bool is_first = !signalling;
      signalling = true;
      if (is(Slip::no_signal, stream) || (is(Slip::one_unsignalled, stream) && is_first))
        signal_value = nullptr;
      if (is(Slip::signal_even, stream) && step.signal_value % 2 == 0)
        signal_value -= cuda::kMaxCudaRanks;
      if (is(Slip::signal_other, stream)) signal_value = next_rank_of(signal_value, rank);
    }
    if (signalling && is(Slip::signal_late, stream)) step.signals_first = 0;
    return signalling && is(Slip::signal_early, stream);
  }
  std::uint32_t* next_rank_of(std::uint32_t* word, int rank) const {
    const auto next = static_cast<std::size_t>(rank + 1) % path_.flags.size();
    const auto at = word - reinterpret_cast<std::uint32_t*>(path_.flags[std::size_t(rank)]);
    return reinterpret_cast<std::uint32_t*>(path_.flags[next]) + at;
  }

  /// Returns false for a copy that is left out; shortens `bytes` of a cut copy.
  bool is_copied(cuda::Stream stream, std::uint64_t& bytes) {
    if (is(Slip::skip_copy, stream) && hits_ == 0 && ++hits_ != 0) return false;
    if (is(Slip::short_copy, stream) && bytes > 16 && hits_++ == 0) bytes -= 16;
    return true;
  }
  /// Slots of a rank as the call uses them. Rings begin in borrowed slots.
  struct Inbox {
    char* at;
    std::uint64_t bytes;
    bool has(const char* one) const {
      return reinterpret_cast<std::uintptr_t>(one) - reinterpret_cast<std::uintptr_t>(at) < bytes;
    }
  };
  Inbox inbox(std::size_t rank) const {
    if (!borrows_) return {path_.slots[rank], path_.inbox_bytes};
    return {path_.borrowed[rank], path_.borrowed_bytes + path_.inbox_bytes};
  }
  void look_where(const char* at) {
    if (path_.slots.size() == 2) return;  // exchanges borrow behind the engines' own slots
    for (char* const borrowed : path_.borrowed)
      borrows_ |= Inbox{borrowed, path_.borrowed_bytes}.has(at);
  }
  /// Returns the same position in the next rank's slots, for an address in a peer's.
  char* elsewhere(char* at) const {
    for (std::size_t rank = 0; rank < path_.slots.size(); ++rank) {
      const Inbox from = inbox(rank);
      if (!from.has(at) || static_cast<int>(rank) == rank_) continue;
      std::size_t next = (rank + 1) % path_.slots.size();
      if (static_cast<int>(next) == rank_) next = (next + 1) % path_.slots.size();
      return inbox(next).at + (at - from.at);
    }
    return at;
  }
  char* lower(char* at) const {
    for (std::size_t rank = 0; rank < path_.slots.size(); ++rank) {
      const Inbox of = inbox(rank);
      if (of.has(at) && static_cast<std::uint64_t>(at - of.at) >= of.bytes / 2)
        return at - of.bytes / 2;
    }
    return at;
  }

  /// Holds copies and reductions until the next work, so that a step can come first.
  void hold(Work work) {
    if (mutant_.slip != Slip::signal_early) flush();
    held_.push_back(std::move(work));
  }
  void put(const Work& work) {
    flush();
    work();
  }
  void flush() {
    for (const Work& work : std::exchange(held_, {})) work();
  }

  cuda::EnginePath& path_;
  cuda::EngineQueue& queue_;
  const int rank_;
  const Mutant mutant_;
  bool borrows_ = false;
  int hits_ = 0;
  std::vector<Work> held_;
};

}  // namespace plait_test
