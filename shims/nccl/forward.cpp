// plait's libnccl.so.2 (--via library). Names that the drop-in serves lead to the drop-in, all
// other names to the native library in PLAIT_NCCL_LIB. Opens no library before the first call.
#include <dlfcn.h>

#include <atomic>
#include <cstring>

#include "comm/transport/nccl/abi.hpp"

extern "C" int plait_nccl_counters(void* rows, int capacity);
extern "C" void* plait_nccl_real_symbol(const char* name);

namespace {

struct Name {
  const char* text;
  bool served;
};

constexpr Name kNames[] = {
#define PLAIT_NCCL_SERVED(name) {#name, true}, {"p" #name, false},
#define PLAIT_NCCL_FORWARDED(name) {#name, false}, {"p" #name, false},
#include "shims/nccl/names.def"
#undef PLAIT_NCCL_SERVED
#undef PLAIT_NCCL_FORWARDED
};
constexpr std::size_t kNameCount = sizeof kNames / sizeof kNames[0];

/// Result of a function that the (older) native library lacks.
plait::nccl::Result absent() { return plait::nccl::ncclInvalidUsage; }

void* in_drop_in(const char* name) {
  Dl_info where{};
  if (::dladdr(reinterpret_cast<void*>(&plait_nccl_counters), &where) == 0) return nullptr;
  void* handle = ::dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  return handle == nullptr ? nullptr : ::dlsym(handle, name);
}

}  // namespace

extern "C" {

/// The drop-in recognises this library as the forwarder by this mark.
[[gnu::visibility("default")]] extern const char plait_nccl_forwarder[] = "plait";

[[gnu::visibility("hidden")]] std::atomic<void*> plait_nccl_slots[kNameCount];

[[gnu::visibility("hidden")]] void* plait_nccl_find_entry(int index) {
  const Name& name = kNames[index];
  void* found = name.served ? in_drop_in(name.text) : plait_nccl_real_symbol(name.text);
  if (found == nullptr) found = reinterpret_cast<void*>(&absent);
  plait_nccl_slots[index].store(found);
  return found;
}

}  // extern "C"
