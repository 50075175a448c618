// NodeLibrary: interface of a library that moves data between nodes, for `join` ops of plans.
#pragma once
#include <string>
#include <vector>

#include "plait/plan.hpp"

namespace plait {

class NodeLibrary {
 public:
  virtual ~NodeLibrary() = default;
  /// Begins this rank's part (index `member`) of a collective among `ranks`. request: the
  /// collective with `ranks` as its ranks; averages are not divided. src and dst must stay valid
  /// until the call is done, and may be the same buffer, or overlap as NCCL allows. Returns a
  /// handle.
  virtual int begin(const Request& request, const std::vector<int>& ranks, int member,
                    const void* src, void* dst) = 0;
  /// Makes progress; returns true once the call has ended, until end(). Does not block. Throws if
  /// the call failed.
  virtual bool is_done(int handle) = 0;
  /// Frees the handle.
  virtual void end(int handle) = 0;
  /// Names a rank whose part is missing, for messages: "rank 2 on host b".
  virtual std::string awaits(int handle) const = 0;
};

}  // namespace plait
