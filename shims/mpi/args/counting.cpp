// Computes the message bytes of a collective for the call book (PLAIT_PROFILE).
#include "shims/mpi/args/counting.hpp"

#include <algorithm>

#include "shims/mpi/args/layout.hpp"

namespace plait::mpi {

constinit std::atomic<bool> counting{false};
constinit std::atomic<bool> explaining{false};
constinit std::atomic<bool> recording{false};

namespace {

/// Returns whether MPI reads the send type on this rank, or the only type of a call.
bool has_send_type(const CollectiveArgs& args, const RankPosition& position, bool is_inter) {
  const bool is_root = args.root == (is_inter ? native().abi.root : position.rank);
  if (args.collective == Collective::scatter) return is_root;
  return args.collective != Collective::gather || !is_inter || !is_root;
}

/// Bytes of a call without a CallShape: plait lacks the type or operation, or the call is wrong.
std::uint64_t bytes_by_type(const CollectiveArgs& args, const RankPosition& position,
                            bool is_inter) {
  const Abi& abi = native().abi;
  const bool of_all =
      args.collective == Collective::all_gather || args.collective == Collective::all_to_all ||
      args.collective == Collective::gather || args.collective == Collective::scatter;
  // MPI ignores the send type of a call in place.
  if (of_all && is_in_place(args.in)) return 0;
  // MPI_PROC_NULL as the root of an intercommunicator: MPI ignores all types.
  if (is_inter && args.root < 0 && args.root != abi.root) return 0;
  const bool by_input = has_send_type(args, position, is_inter);
  const Handle type = by_input ? args.in_type : args.out_type;
  const Count count = by_input ? args.in_count : args.out_count;
  if (abi.key(type) == abi.no_type || count < 0) return 0;
  const Count each = count * static_cast<Count>(layout_of(type).bytes);
  return static_cast<std::uint64_t>(each) * static_cast<std::uint64_t>(of_all ? position.ranks : 1);
}

}  // namespace

std::uint64_t counted_bytes(const CallShape& shape) {
  if (!shape.has_own_counts()) return message_bytes(shape.request);
  return std::max(sum_of(shape.own.sends), sum_of(shape.own.gets));
}

std::uint64_t bytes_of_native(const CollectiveArgs& args) {
  int inter = 0;
  RankPosition position;
  if (native().Comm_test_inter(args.comm, &inter) != 0) return 0;
  native().Comm_size(args.comm, &position.ranks);
  native().Comm_rank(args.comm, &position.rank);
  Fallback why = Fallback::none;
  const std::optional<CallShape> shape = inter != 0 ? std::nullopt : shape_of(args, position, why);
  return shape ? counted_bytes(*shape) : bytes_by_type(args, position, inter != 0);
}

void CountedNative::begin(const CollectiveArgs& args) {
  const Abi& abi = native().abi;
  int inter = 0;
  if (abi.key(args.comm) == abi.no_comm) return;
  if (native().Comm_test_inter(args.comm, &inter) != 0) return;
  counted_.emplace(args.collective, bytes_of_native(args), kByMpi);
}

/// C entry to the call book of this process: fills `rows` and returns the number of all rows.
extern "C" [[gnu::visibility("default")]] int plait_mpi_counters(CounterRow* rows, int capacity) {
  const std::vector<CounterRow> all = counter_rows();
  std::copy_n(all.begin(), std::min(capacity, static_cast<int>(all.size())), rows);
  return static_cast<int>(all.size());
}

}  // namespace plait::mpi
