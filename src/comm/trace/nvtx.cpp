// NVTX through libnvtx3interop or the older libnvToolsExt, whichever is installed. Tools set
// NVTX_INJECTION64_PATH for the programs they start. The structures are NVTX 3's.
#include "comm/trace/nvtx.hpp"

#include <dlfcn.h>

#include <string>

#include "base/env.hpp"

namespace plait {
namespace {

struct NvtxEventAttributes {
  std::uint16_t version = 3;
  std::uint16_t size = 48;
  std::uint32_t category = 0;
  std::int32_t color_type = 0, color = 0;
  std::int32_t payload_type = 1;  // unsigned, 64 bits
  std::int32_t reserved = 0;
  std::uint64_t payload = 0;
  std::int32_t message_type = 1;  // ASCII
  std::int32_t pad = 0;
  const char* message = nullptr;
};
static_assert(sizeof(NvtxEventAttributes) == 48);

struct Tools {
  void* domain = nullptr;
  int (*push)(void* domain, const NvtxEventAttributes* attributes) = nullptr;
  int (*pop)(void* domain) = nullptr;
};

Tools load() {
  Tools tools;
  if (foreign_env("NVTX_INJECTION64_PATH").empty()) return tools;
  for (const char* name : {"libnvtx3interop.so.1", "libnvToolsExt.so.1"}) {
    void* library = ::dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) continue;
    const auto create =
        reinterpret_cast<void* (*)(const char*)>(::dlsym(library, "nvtxDomainCreateA"));
    tools.push = reinterpret_cast<decltype(tools.push)>(::dlsym(library, "nvtxDomainRangePushEx"));
    tools.pop = reinterpret_cast<decltype(tools.pop)>(::dlsym(library, "nvtxDomainRangePop"));
    if (create != nullptr && tools.push != nullptr && tools.pop != nullptr)
      tools.domain = create("plait");
    if (tools.domain != nullptr) return tools;
  }
  return Tools{};
}

const Tools& tools() {
  static const Tools found = load();
  return found;
}

}  // namespace

bool NvtxRange::is_listened_to() { return tools().domain != nullptr; }

NvtxRange::NvtxRange(const char* name, std::uint64_t bytes) {
  const Tools& there = tools();
  if (there.domain == nullptr) return;
  NvtxEventAttributes attributes;
  attributes.message = name;
  attributes.payload = bytes;
  open_ = there.push(there.domain, &attributes) >= 0;
}

NvtxRange::~NvtxRange() {
  if (open_) tools().pop(tools().domain);
}

}  // namespace plait
