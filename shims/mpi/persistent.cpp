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
  std::unique_ptr<Delivery> delivery;
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

void keep_persistent(Handle request, Staging staging, std::unique_ptr<Delivery> delivery) {
  const std::lock_guard lock(table().mutex);
  table().all.insert_or_assign(real().abi.key(request),
                               Kept{std::move(staging), std::move(delivery)});
  persistent.store(static_cast<int>(table().all.size()));
}

void fetch_persistent(Handle request) {
  const std::lock_guard lock(table().mutex);
  const auto at = table().all.find(real().abi.key(request));
  if (at == table().all.end()) return;
  at->second.staging.fetch();
  at->second.runs = true;
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
  if (code != 0) return 0;
  try {
    if (kept->delivery != nullptr) return told(real().abi.world, kept->delivery->end(status));
    kept->staging.put_back(received_bytes(status));
    return 0;
  } catch (const Error& error) {
    return report(real().abi.world, error);
  }
}

void forget_persistent(Handle request) {
  const std::lock_guard lock(table().mutex);
  const auto at = table().all.find(real().abi.key(request));
  if (at == table().all.end()) return;
  // Of one freed while it runs nobody hears the end: its twins stay the MPI's.
  if (at->second.runs) new Kept(std::move(at->second));
  table().all.erase(at);
  persistent.store(static_cast<int>(table().all.size()));
}

}  // namespace plait::mpi
