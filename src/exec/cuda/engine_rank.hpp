// One rank as engines see it: what they make its calls ready with. On a GPU that is CudaRank; where
// calls are written down as plans, or played in host memory, there is a rank without a GPU.
#pragma once
#include "driver/cuda/api.hpp"

namespace plait {
struct Request;
}

namespace plait::cuda {

enum class ArenaPart : int;
struct ArenaHeader;
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
  /// Of a rank's arena, as mapped here; but for the words, of the room that is prepared for.
  virtual ArenaHeader& header(int owner) const = 0;
  virtual char* at(ArenaPart part, int owner) const = 0;
  /// Where copy engines put their work, and what it goes through.
  virtual EngineQueue& queue() = 0;
  virtual const EnginePath& engine_path() const = 0;
  virtual Event fork() const = 0;  ///< to be recorded where a call leaves its stream for others
  virtual AgreedShare& agreed_share() = 0;
  virtual bool is_capturing(Stream stream) const = 0;
  /// All but the buffers.
  virtual void fill_call(CallArgs& args, const Request& request) const = 0;
};

}  // namespace plait::cuda
