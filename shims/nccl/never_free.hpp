// Keeps objects for ever that NCCL or the GPU may still use.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

namespace plait::nccl {

/// Keeps the object for ever, reachable for leak checkers.
template <class T>
void never_free(std::unique_ptr<T> object) {
  static std::mutex guard;
  static auto* const all = new std::vector<std::unique_ptr<T>>;
  const std::lock_guard<std::mutex> hold(guard);
  all->push_back(std::move(object));
}

}  // namespace plait::nccl
