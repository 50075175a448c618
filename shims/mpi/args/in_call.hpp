// The call of MPI that a thread is in now, for the line after PLAIT_WARN_S and for `plait status`:
// messages, probes, completions, and collectives that the native MPI runs. Collectives that plait
// serves have a recorder of their own.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <tuple>

#include "comm/trace/open_calls.hpp"
#include "shims/mpi/args/collective_args.hpp"

namespace plait::mpi {

/// The arguments that a call has.
enum class CallFields : std::uint8_t {
  send,
  receive,
  matched,  ///< MPI_Mrecv
  exchange,
  probe,
  requests,
  collective,
  rooted,
  bare  ///< a communicator alone
};

/// Slot of this thread; null before the first call.
extern constinit thread_local CallSlot* call_slot __attribute__((tls_model("initial-exec")));
/// Takes a slot for this thread. Returns a slot that nobody reads if calls are not looked at.
[[gnu::cold]] CallSlot& first_call_slot() noexcept;
/// Whether this thread has a slot: a call that is passed on keeps its arguments in registers then.
[[gnu::always_inline]] inline bool has_call_slot() {
  return __builtin_expect(call_slot != nullptr, 1) != 0;
}
/// Starts the looks at calls. Behind MPI_Init. Logs a failure; calls are not looked at then.
void begin_call_slots() noexcept;

/// Scope of a call: up to nine stores, and no clock.
class InCall {
 public:
  struct Peer {
    int rank = 0, tag = 0;
    std::uint64_t word() const {
      return std::uint64_t{static_cast<std::uint32_t>(rank)} << 32 |
             static_cast<std::uint32_t>(tag);
    }
  };
  /// Returns the first word. function: offset in NativeFunctions.
  static constexpr std::uint64_t head(std::size_t function, CallFields shape) {
    return std::uint64_t{function} << 8 | static_cast<std::uint8_t>(shape);
  }

  template <std::size_t kCount>
  [[gnu::always_inline]] explicit InCall(const std::array<std::uint64_t, kCount>& words)
      : InCall(call_slot != nullptr ? *call_slot : first_call_slot(), words) {}
  template <std::size_t kCount>
  [[gnu::always_inline]] InCall(CallSlot& slot, const std::array<std::uint64_t, kCount>& words)
      : slot_(slot) {
    std::apply([this](auto... each) __attribute__((always_inline)) { slot_.enter(each...); },
               words);
  }
  [[gnu::always_inline]] ~InCall() { slot_.leave(); }
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;

 private:
  CallSlot& slot_;
};

constexpr Count kManyCounts = -1;  ///< counts that differ by rank

// Words of the calls. mpi: the native function (Native).

template <class Mpi>
[[gnu::always_inline]] inline std::array<std::uint64_t, 5> words_of_message(
    Mpi mpi, CallFields fields, Count count, Handle type, InCall::Peer peer, Handle comm) {
  return {InCall::head(mpi.offset(), fields), comm, type, static_cast<std::uint64_t>(count),
          peer.word()};
}

template <class Mpi>
[[gnu::always_inline]] inline std::array<std::uint64_t, 6> words_of_exchange(
    Mpi mpi, Count count, Handle type, InCall::Peer to, InCall::Peer from, Handle comm) {
  return {InCall::head(mpi.offset(), CallFields::exchange),
          comm,
          type,
          static_cast<std::uint64_t>(count),
          to.word(),
          from.word()};
}

template <class Mpi>
[[gnu::always_inline]] inline std::array<std::uint64_t, 3> words_of_requests(Mpi mpi, int count,
                                                                             const void* requests) {
  return {InCall::head(mpi.offset(), CallFields::requests),
          reinterpret_cast<std::uintptr_t>(requests), static_cast<std::uint64_t>(count)};
}

template <class Mpi>
[[gnu::always_inline]] inline std::array<std::uint64_t, 5> words_of_collective(
    Mpi mpi, const CollectiveArgs& args) {
  const bool scatters = args.collective == Collective::scatter;
  const bool has_root = scatters || args.collective == Collective::gather ||
                        args.collective == Collective::reduce ||
                        args.collective == Collective::broadcast;
  const bool is_of_out = scatters ? !is_in_place(args.out) : is_in_place(args.in);
  const bool has_many = args.collective == Collective::all_to_all && args.own_counts;
  const Count count = has_many || (args.op != 0 && args.counts) ? kManyCounts
                      : is_of_out                               ? args.out_count
                                                                : args.in_count;
  return {InCall::head(mpi.offset(), has_root ? CallFields::rooted : CallFields::collective),
          args.comm, is_of_out ? args.out_type : args.in_type, static_cast<std::uint64_t>(count),
          InCall::Peer{args.root, 0}.word()};
}

template <class Mpi>
[[gnu::always_inline]] inline std::array<std::uint64_t, 2> words_of_bare(Mpi mpi, Handle comm) {
  return {InCall::head(mpi.offset(), CallFields::bare), comm};
}

}  // namespace plait::mpi
