// Memory for the handle of a child of a non-blocking communicator. NCCL stores the handle in a
// thread of its own, after ncclCommSplit or ncclCommShrink has returned and before the parent is
// ready again (ncclCommInitRankFunc in NCCL's init.cc), hence the memory must live until then,
// whatever happens to the caller.
#pragma once
#include <memory>
#include <utility>

#include "comm/transport/nccl/abi.hpp"
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
  /// Returns the address for NCCL's call.
  Comm* place() {
    if (place_ == nullptr) place_ = std::make_unique<Comm>(nullptr);
    is_stored_ = false;
    return place_.get();
  }
  /// Returns the handle: the parent is ready or the call has failed, hence NCCL stores no more.
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
