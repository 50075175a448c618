// Calls of an engine by name, prepared and launched at once, for benchmarks and tests.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "gpu/rank/cuda_rank.hpp"
#include "gpu/select/select.hpp"
#include "plait/error.hpp"

namespace plait::bench {

inline const cuda::Engine& engine(const std::string& name, const Request& request) {
  const cuda::Engine* const found = cuda::engine_named(name, request);
  if (found == nullptr)
    throw Error(ErrorCode::invalid_argument,
                "engine: wanted one of " + cuda::engine_names() + ", found " + name);
  return *found;
}

inline bool takes(const cuda::CudaRank& rank, const std::string& name, const Request& request,
                  const cuda::Tuning& tuning = {}) {
  return why_not(engine(name, request), request, tuning, rank.group()).empty();
}

inline void run(cuda::CudaRank& rank, const std::string& name, const Request& request,
                const cuda::CallBuffers& buffers, cuda::Stream stream,
                const cuda::Tuning& tuning = {}) {
  rank.run(*rank.prepare(engine(name, request), request, tuning), request, buffers, stream);
}

/// Built-in choice for the request on measured GPUs; none = no engine takes it.
inline std::optional<cuda::EngineChoice> built_in(const cuda::CudaRank& rank,
                                                  const Request& request) {
  return cuda::Selector(rank.group(), {}, true).best(request);
}

}  // namespace plait::bench
