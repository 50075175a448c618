// Services that an engine's prepare() gets from a rank: kernels, arena, copy queue, streams.
// CudaRank implements the services on a GPU, plan writers and host emulations without a GPU.
#pragma once
#include <cstdint>

#include "driver/cuda/api.hpp"
#include "gpu/abi/arena_flags.hpp"
#include "gpu/arena/arena_part.hpp"

namespace plait {
struct Request;
}

namespace plait::cuda {

struct CallArgs;
struct EnginePath;
struct Group;
class AgreedShare;
class EngineQueue;
class Kernels;

class EngineRank {
 public:
  EngineRank() = default;
  virtual ~EngineRank() = default;
  EngineRank(const EngineRank&) = delete;
  EngineRank& operator=(const EngineRank&) = delete;

  virtual int rank() const = 0;
  virtual const Group& group() const = 0;
  virtual Kernels& kernels() = 0;
  /// Flags in the header of `owner`'s arena, as mapped here.
  virtual char* at(const FlagsRow& row, int owner) const = 0;
  template <class Flags>
  Flags* flags(const ArenaFlags<Flags>& row, int owner) const {
    return reinterpret_cast<Flags*>(at(row, owner));
  }
  /// Part of `owner`'s arena, in the tier being prepared.
  virtual char* at(const ArenaPart& part, int owner) const = 0;
  /// Flag of this rank: not 0 = a call of another engine, which borrows the part, was given up.
  /// Null = no engine borrows the part.
  virtual const std::uint32_t* poisoned(const ArenaPart& part) const = 0;
  /// Queue and resources of copy engines.
  virtual EngineQueue& queue() = 0;
  virtual const EnginePath& engine_path() const = 0;
  /// Returns whether the call being enqueued on `stream` has the long inbox (copy/copy_memory.hpp)
  /// of all ranks; the same on all ranks, since all make the same calls. Begins to make the inbox
  /// if there is none. After `true` the call ends with end_long_inbox().
  virtual bool reserve_long_inbox(Stream stream) = 0;
  virtual void end_long_inbox() = 0;
  virtual Event fork() const = 0;  ///< Event recorded where a call forks from its stream.
  virtual AgreedShare& agreed_share() = 0;
  virtual bool is_capturing(Stream stream) const = 0;
  /// Fills in all arguments but the buffers.
  virtual void fill_call(CallArgs& args, const Request& request) const = 0;
};

}  // namespace plait::cuda
