// What `join` ops of a plan run on: a library that carries data between nodes.
#pragma once
#include <string>
#include <vector>

#include "plait/plan.hpp"

namespace plait {

class NodeLibrary {
 public:
  virtual ~NodeLibrary() = default;
  /// Begins this rank's part of a collective among `ranks`, of which it is number `member`;
  /// request: the collective as one among these, its sums not divided. src and dst stay as they are
  /// until it is done; they may be one buffer, or overlap as NCCL lets them. Returns its number.
  virtual int begin(const Request& request, const std::vector<int>& ranks, int member,
                    const void* src, void* dst) = 0;
  /// Goes on with what was begun; true once that call has ended, from then on until end(). Never
  /// waits. Error where it failed.
  virtual bool is_done(int handle) = 0;
  /// The number may be given to another call.
  virtual void end(int handle) = 0;
  /// Whose part of it has not come yet: "rank 2 on host b". For messages.
  virtual std::string awaits(int handle) const = 0;
};

}  // namespace plait
