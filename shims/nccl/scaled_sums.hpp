// Pre-multiplied sums that the program has made of a communicator (ncclRedOpCreatePreMulSum), by
// NCCL's numbers. Calls look the factors up (calls.cpp).
#pragma once
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "comm/transport/nccl/numbers.hpp"
#include "gpu/scale/scaled_input.hpp"

namespace plait::nccl {

/// Any thread.
class ScaledSums {
 public:
  /// scalar: of NCCL's type `type`; read now, unless it lies on the device.
  void add(int op, int type, const void* scalar, bool is_on_device) {
    DataType known{};
    if (!translate_type(type, known)) return;
    cuda::ScaleFactor factor;
    if (is_on_device)
      factor.on_gpu = scalar;
    else
      std::memcpy(&factor.bits, scalar, bytes_of(known));
    const std::lock_guard<std::mutex> hold(guard_);
    all_[op] = {type, factor};
  }
  struct ScaledSum {
    int type;
    cuda::ScaleFactor factor;
  };
  using Sums = std::map<int, ScaledSum>;  ///< by NCCL's number
  Sums::node_type remove(int op) {
    const std::lock_guard<std::mutex> hold(guard_);
    return all_.extract(op);
  }
  /// Undoes remove(); allocates nothing.
  void put_back(Sums::node_type removed) {
    const std::lock_guard<std::mutex> hold(guard_);
    all_.insert(std::move(removed));
  }
  /// Returns the factor of a call on elements of `type`; none for an unknown sum or another type,
  /// which NCCL refuses.
  std::optional<cuda::ScaleFactor> find(int op, int type) const {
    const std::lock_guard<std::mutex> hold(guard_);
    const auto found = all_.find(op);
    if (found == all_.end() || found->second.type != type) return std::nullopt;
    return found->second.factor;
  }

 private:
  mutable std::mutex guard_;
  Sums all_;
};

}  // namespace plait::nccl
