// Table of persistent requests by handle: a persistent request keeps the handle until
// MPI_Request_free.
#include "shims/mpi/requests/persistent.hpp"

#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <vector>

#include "shims/mpi/abi/status.hpp"
#include "shims/mpi/collective/serve.hpp"

namespace plait::mpi {

constinit std::atomic<int> persistent{0};

namespace {

struct PersistentEntry {
  CallStaging staging;
  RetainedComm comm;  ///< for native requests
  PersistentOp* op = nullptr;
  bool runs = false;
  bool is_put_back = false;  ///< outputs have been copied back to the GPUs
};

struct PersistentTable {
  std::mutex mutex;
  std::map<Handle, PersistentEntry> all;  ///< by Abi::key
};

PersistentTable& table() {
  static auto* const one = new PersistentTable;
  return *one;
}

void add_entry(Handle request, PersistentEntry entry) {
  const std::lock_guard lock(table().mutex);
  table().all.insert_or_assign(native().abi.key(request), std::move(entry));
  persistent.store(static_cast<int>(table().all.size()));
}

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

/// Returns null if the request is not in the table. Only a wrong program frees a request meanwhile.
PersistentEntry* find_entry(Handle request) {
  if (!has_persistent()) return nullptr;
  const std::lock_guard lock(table().mutex);
  const auto at = table().all.find(native().abi.key(request));
  return at == table().all.end() ? nullptr : &at->second;
}

}  // namespace

void add_persistent(Handle comm, Handle request, CallStaging staging) {
  add_entry(request, {std::move(staging), RetainedComm(comm)});
}

void add_persistent(PersistentOp& one, void* request) {
  const Handle shown = one.handle();
  add_entry(shown, {CallStaging(), RetainedComm(), &one});
  std::memcpy(request, &shown, static_cast<std::size_t>(native().abi.handle_bytes));
}

std::optional<int> init_served(const CollectiveArgs& args, void* request, Fallback& why) {
  const ProgramThreadScope here;
  try {
    const ServedCall call = persistent_served_call(args);
    why = call.why;
    if (call.state == nullptr) return std::nullopt;
    const std::shared_ptr<ServedComm> entry(call.state,
                                            release_state);  // also if no request is made
    const auto each = [retained = std::make_shared<PersistentCollective>(args, call, entry)](int&) {
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

int stage_persistent(Handle request) {
  PersistentEntry* const entry = find_entry(request);
  if (entry == nullptr) return 0;
  try {
    entry->staging.fetch();
    return 0;
  } catch (const std::exception& error) {
    return entry->comm.report(error);
  }
}

void start_persistent(Handle request) {
  PersistentEntry* const entry = find_entry(request);
  if (entry == nullptr) return;
  entry->runs = true;
  entry->is_put_back = false;
  if (entry->op != nullptr) entry->op->started();
}

int complete_persistent(Handle request, int code, void* status, bool is_over) {
  PersistentEntry* const entry = find_entry(request);
  if (entry == nullptr || !entry->runs) return 0;
  entry->runs = !is_over;
  try {
    if (entry->op != nullptr) return entry->op->end(status);
    if (code == 0 && !entry->is_put_back) entry->staging.put_back(received_bytes(status));
    entry->is_put_back = true;
    return 0;
  } catch (const std::exception& error) {
    return entry->comm.report(error);
  }
}

bool cancel_persistent(Handle request) {
  PersistentEntry* const entry = find_entry(request);
  if (entry == nullptr || entry->op == nullptr) return false;
  entry->op->cancel_message();
  return true;
}

void free_persistent(Handle request) {
  const std::lock_guard lock(table().mutex);
  const auto at = table().all.find(native().abi.key(request));
  if (at == table().all.end()) return;
  PersistentEntry& entry = at->second;
  if (entry.op != nullptr)
    entry.op->freed();
  else if (entry.runs)  // no completion follows: the staging buffers stay with the MPI
    new PersistentEntry(std::move(entry));
  table().all.erase(at);
  persistent.store(static_cast<int>(table().all.size()));
}

}  // namespace plait::mpi
