// Nameless memory of rank 0; the others open it by its process and number, as life pages.
#include "shims/nccl/growth_page.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/text.hpp"
#include "exec/cuda/share/growth.hpp"
#include "plait/error.hpp"

namespace plait::nccl {
namespace {

/// Empty where it cannot be opened, or is something else.
Mapping opened(const std::string& shown) {
  int process = 0, file = -1;
  if (std::sscanf(shown.c_str(), "%d %d", &process, &file) != 2) return {};
  const Fd fd = open_of_process(process, file, Access::write);
  if (!fd.valid()) return {};
  try {
    return map_shared_memory(fd, sizeof(cuda::GrowthPage));
  } catch (const Error&) {
    return {};
  }
}

Fd made() {
  try {
    return make_shared_memory(sizeof(cuda::GrowthPage), 0);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

Mapping growth_page(int rank, const Exchange& exchange) {
  const Fd mine = rank == 0 ? made() : Fd();
  const std::string shown = mine.valid() ? text(::getpid(), ' ', mine.get()) : std::string();
  Mapping page = opened(exchange(shown)[0]);
  const std::vector<std::string> all = exchange(page.base() == nullptr ? "" : "mapped");
  if (std::count(all.begin(), all.end(), "mapped") != static_cast<std::ptrdiff_t>(all.size()))
    return {};
  return page;
}

}  // namespace plait::nccl
