// A persistent request keeps its handle until it is freed, so a table by handle is right for these.
#include "shims/mpi/persistent.hpp"

#include <map>
#include <mutex>

#include "shims/mpi/serve.hpp"
#include "shims/mpi/status.hpp"

namespace plait::mpi {

constinit std::atomic<int> persistent{0};

namespace {

struct Kept {
  Staging staging;
  std::unique_ptr<Repeated> end;
  bool runs = false;
};

struct Table {
  std::mutex mutex;
  std::map<Handle, Kept> all;  ///< by Abi::key
};

Table& table() {
  static auto* const one = new Table;
  return *one;
}

}  // namespace

void keep_persistent(Handle request, Staging staging, std::unique_ptr<Repeated> end) {
  const std::lock_guard lock(table().mutex);
  table().all.insert_or_assign(real().abi.key(request), Kept{std::move(staging), std::move(end)});
  persistent.store(static_cast<int>(table().all.size()));
}

void fetch_persistent(Handle request) {
  const std::lock_guard lock(table().mutex);
  const auto at = table().all.find(real().abi.key(request));
  if (at == table().all.end()) return;
  at->second.staging.fetch();
  if (at->second.end != nullptr) at->second.end->start();
  at->second.runs = true;
}

void started_persistent(Handle request) {
  const std::lock_guard lock(table().mutex);
  const auto at = table().all.find(real().abi.key(request));
  if (at != table().all.end() && at->second.end != nullptr) at->second.end->started();
}

/// The table is not held meanwhile: another thread may end another one. No two end the same.
int end_persistent(Handle request, int code, void* status) {
  Kept* kept = nullptr;
  {
    const std::lock_guard lock(table().mutex);
    const auto at = table().all.find(real().abi.key(request));
    if (at == table().all.end() || !at->second.runs) return 0;
    kept = &at->second;
    kept->runs = false;
  }
  if (code != 0 && kept->end != nullptr) kept->end->give_up();
  if (code != 0) return 0;
  try {
    if (kept->end != nullptr) return told(real().abi.world, kept->end->end(status));
    kept->staging.put_back(received_bytes(status));
    return 0;
  } catch (const Error& error) {
    return report(real().abi.world, error);
  }
}

bool forget_persistent(Handle request) {
  const std::lock_guard lock(table().mutex);
  const auto at = table().all.find(real().abi.key(request));
  if (at == table().all.end()) return true;
  const bool goes_on = at->second.runs && at->second.end != nullptr;
  // Of one freed while it runs nobody hears the end: its twins stay the MPI's.
  if (at->second.runs) new Kept(std::move(at->second));
  table().all.erase(at);
  persistent.store(static_cast<int>(table().all.size()));
  return !goes_on;
}

}  // namespace plait::mpi
