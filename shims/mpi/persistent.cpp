// A persistent request keeps its handle until it is freed, so a table by handle is right for these.
#include "shims/mpi/persistent.hpp"

#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <vector>

#include "shims/mpi/serve.hpp"
#include "shims/mpi/status.hpp"

namespace plait::mpi {

constinit std::atomic<int> persistent{0};

namespace {

struct Kept {
  Staging staging;
  KeptComm comm;  ///< of what is the MPI's
  Repeated* plaits = nullptr;
  bool runs = false;
  bool is_back = false;  ///< what it wrote is in the GPUs' memory
};

struct Table {
  std::mutex mutex;
  std::map<Handle, Kept> all;  ///< by Abi::key
};

Table& table() {
  static auto* const one = new Table;
  return *one;
}

void keep(Handle request, Kept kept) {
  const std::lock_guard lock(table().mutex);
  table().all.insert_or_assign(real().abi.key(request), std::move(kept));
  persistent.store(static_cast<int>(table().all.size()));
}

/// A collective that is started again and again: the program may free its types and its arrays of
/// counts, and the request itself while the call is under way.
struct Lasting {
  /// Where a buffer means nothing on this rank, its type and its arrays may be anything.
  Lasting(const CollectiveArgs& from, const Served& by, std::shared_ptr<State> until_then)
      : args(from),
        call(by),
        state(std::move(until_then)),
        in_type(reads() ? args.in_type : 0),
        out_type(writes() ? args.out_type : 0) {
    args.in_type = in_type.type();
    args.out_type = out_type.type();
    if (writes()) args.counts = copied(args.counts), args.displs = copied(args.displs);
    if (reads()) args.in_counts = copied(args.in_counts), args.in_displs = copied(args.in_displs);
  }
  Lasting(const Lasting&) = delete;
  Lasting& operator=(const Lasting&) = delete;

  CountArray copied(const CountArray& numbers) {
    if (!numbers) return numbers;
    std::vector<Count>& copy = arrays.emplace_back();
    for (int rank = 0; rank < call.state->place().ranks; ++rank) copy.push_back(numbers[rank]);
    return CountArray(copy.data());
  }
  bool is_root() const { return args.root == call.state->place().rank; }
  bool reads() const {
    return !is_in_place(args.in) && (args.collective != Collective::scatter || is_root());
  }
  bool writes() const {
    return !is_in_place(args.out) && (args.collective != Collective::gather || is_root());
  }

  CollectiveArgs args;
  Served call;
  std::shared_ptr<State> state;  ///< given up with this
  KeptType in_type, out_type;
  std::list<std::vector<Count>> arrays;
};

/// Null where it is none of these. Nobody frees it meanwhile: that would be the program's mistake.
Kept* kept_of(Handle request) {
  if (!has_persistent()) return nullptr;
  const std::lock_guard lock(table().mutex);
  const auto at = table().all.find(real().abi.key(request));
  return at == table().all.end() ? nullptr : &at->second;
}

}  // namespace

void keep_persistent(Handle comm, Handle request, Staging staging) {
  keep(request, {std::move(staging), KeptComm(comm)});
}

void keep_persistent(Repeated& one, void* request) {
  const Handle shown = one.handle();
  keep(shown, {Staging(), KeptComm(), &one});
  std::memcpy(request, &shown, static_cast<std::size_t>(real().abi.handle_bytes));
}

std::optional<int> persist_served(const CollectiveArgs& args, void* request) {
  const InProgram here;
  try {
    const Served call = served_for_good(args);
    if (call.state == nullptr) return std::nullopt;
    const std::shared_ptr<State> kept(call.state, give_up);  // also where there is no request
    const auto each = [lasting = std::make_shared<Lasting>(args, call, kept)](int&) {
      std::unique_ptr<Operation> made = operation_of(lasting->call, lasting->args);
      lasting->call.state->begin(*made);
      return made;
    };
    keep_persistent(*repeatedly_begun(each, args.comm), request);
    return 0;
  } catch (const std::exception& error) {
    return report(args.comm, error);
  }
}

int fetch_persistent(Handle request) {
  Kept* const kept = kept_of(request);
  if (kept == nullptr) return 0;
  try {
    kept->staging.fetch();
    return 0;
  } catch (const std::exception& error) {
    return kept->comm.report(error);
  }
}

void started_persistent(Handle request) {
  Kept* const kept = kept_of(request);
  if (kept == nullptr) return;
  kept->runs = true;
  kept->is_back = false;
  if (kept->plaits != nullptr) kept->plaits->started();
}

int end_persistent(Handle request, int code, void* status, bool is_over) {
  Kept* const kept = kept_of(request);
  if (kept == nullptr || !kept->runs) return 0;
  kept->runs = !is_over;
  try {
    if (kept->plaits != nullptr) return kept->plaits->end(status);
    if (code == 0 && !kept->is_back) kept->staging.put_back(received_bytes(status));
    kept->is_back = true;
    return 0;
  } catch (const std::exception& error) {
    return kept->comm.report(error);
  }
}

bool cancel_persistent(Handle request) {
  Kept* const kept = kept_of(request);
  if (kept == nullptr || kept->plaits == nullptr) return false;
  kept->plaits->cancel_message();
  return true;
}

void forget_persistent(Handle request) {
  const std::lock_guard lock(table().mutex);
  const auto at = table().all.find(real().abi.key(request));
  if (at == table().all.end()) return;
  Kept& kept = at->second;
  if (kept.plaits != nullptr)
    kept.plaits->freed();
  else if (kept.runs)  // nobody hears the end: its twins stay the MPI's
    new Kept(std::move(kept));
  table().all.erase(at);
  persistent.store(static_cast<int>(table().all.size()));
}

}  // namespace plait::mpi
