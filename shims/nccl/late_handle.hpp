// Where NCCL stores the handle of a child of a communicator that does not block: in a thread of its
// own, after ncclCommSplit or ncclCommShrink has returned, and before the parent is ready again
// (ncclCommInitRankFunc in NCCL's init.cc). The place must be there until then, whatever becomes of
// who asked.
#pragma once
#include <memory>
#include <utility>

#include "comm/nccl/abi.hpp"
#include "shims/nccl/never_free.hpp"

namespace plait::nccl {

class LateHandle {
 public:
  LateHandle() = default;
  LateHandle(LateHandle&&) = default;
  LateHandle& operator=(LateHandle&&) = default;
  ~LateHandle() {
    if (place_ != nullptr && !is_stored_) never_free(std::move(place_));
  }
  /// For NCCL's call.
  Comm* place() {
    if (place_ == nullptr) place_ = std::make_unique<Comm>(nullptr);
    is_stored_ = false;
    return place_.get();
  }
  /// The parent is ready, or the call has failed: nothing is stored from here on.
  Comm stored() {
    if (place_ == nullptr) return nullptr;
    is_stored_ = true;
    return __atomic_load_n(place_.get(), __ATOMIC_ACQUIRE);
  }

 private:
  std::unique_ptr<Comm> place_;
  bool is_stored_ = false;
};

}  // namespace plait::nccl
