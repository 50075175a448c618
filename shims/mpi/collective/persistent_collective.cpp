// Keeps the arguments of a persistent collective, and starts a non-blocking collective at each
// start.
#include "shims/mpi/collective/persistent_collective.hpp"

#include <list>
#include <memory>
#include <vector>

#include "shims/mpi/collective/collective_request.hpp"
#include "shims/mpi/collective/served_comms.hpp"
#include "shims/mpi/p2p/rendezvous.hpp"

namespace plait::mpi {
namespace {

/// A persistent collective. The program may free the types, the count arrays and the request itself
/// while the call is under way.
struct PersistentCollective {
  /// Copies only arguments that MPI reads on this rank; the others may be invalid.
  PersistentCollective(const CollectiveArgs& from, const ServedCall& by,
                       std::shared_ptr<ServedComm> until_freed)
      : args(from),
        call(by),
        state(std::move(until_freed)),
        in_type(reads() ? args.in_type : 0),
        out_type(writes() ? args.out_type : 0) {
    args.in_type = in_type.type();
    args.out_type = out_type.type();
    if (writes()) args.counts = copied(args.counts), args.displs = copied(args.displs);
    if (reads()) args.in_counts = copied(args.in_counts), args.in_displs = copied(args.in_displs);
  }
  PersistentCollective(const PersistentCollective&) = delete;
  PersistentCollective& operator=(const PersistentCollective&) = delete;

  CountArray copied(const CountArray& numbers) {
    if (!numbers) return numbers;
    std::vector<Count>& copy = arrays.emplace_back();
    for (int rank = 0; rank < call.state->position().ranks; ++rank) copy.push_back(numbers[rank]);
    return CountArray(copy.data());
  }
  bool is_root() const { return args.root == call.state->position().rank; }
  bool reads() const {
    return !is_in_place(args.in) && (args.collective != Collective::scatter || is_root());
  }
  bool writes() const {
    return !is_in_place(args.out) && (args.collective != Collective::gather || is_root());
  }

  CollectiveArgs args;
  ServedCall call;
  std::shared_ptr<ServedComm> state;  ///< released with this object
  RetainedType in_type, out_type;
  std::list<std::vector<Count>> arrays;
};

}  // namespace

std::optional<int> init_served(const CollectiveArgs& args, void* request, Fallback& why) {
  const ProgramThreadScope here;
  try {
    const ServedCall call = persistent_served_call(args);
    why = call.why;
    if (call.state == nullptr) return std::nullopt;
    const std::shared_ptr<ServedComm> entry(
        call.state, release_persistent_state);  // also if no request is made
    const auto each = [retained =
                           std::make_shared<PersistentCollective>(args, call, entry)](Refusal&) {
      std::unique_ptr<CollectiveRequest> made =
          make_collective_request(retained->call, retained->args);
      retained->call.state->begin(*made);
      return made;
    };
    add_persistent(*make_persistent_call(each, args.comm), request);
    return 0;
  } catch (const std::exception& error) {
    return report(args.comm, error);
  }
}

}  // namespace plait::mpi
