// Table of persistent requests by handle: a persistent request keeps the handle until
// MPI_Request_free.
#include "shims/mpi/requests/persistent.hpp"

#include <map>
#include <mutex>
#include <utility>

#include "shims/mpi/abi/status.hpp"
#include "shims/mpi/requests/requests.hpp"

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
  add_entry(one.handle(), {CallStaging(), RetainedComm(), &one});
  store_request(one.handle(), request);
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
    if (entry->op != nullptr) return entry->op->end(status, is_over);
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

std::optional<bool> is_active_persistent(Handle request) {
  const PersistentEntry* const entry = find_entry(request);
  return entry == nullptr ? std::nullopt : std::optional(entry->runs);
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
