// What must not be freed any more, since NCCL or the GPU may still use it at some time.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

namespace plait::nccl {

/// For good, and where tools that look for leaks see it.
template <class T>
void never_free(std::unique_ptr<T> kept) {
  static std::mutex guard;
  static auto* const all = new std::vector<std::unique_ptr<T>>;
  const std::lock_guard<std::mutex> hold(guard);
  all->push_back(std::move(kept));
}

}  // namespace plait::nccl
