// NVML by dlopen of libnvidia-ml.so.1, so that neither building nor running without GPUs needs a
// driver. The few declarations follow NVML's public reference.
#include <dlfcn.h>

#include <array>

#include "base/text.hpp"
#include "driver/nvml/api.hpp"
#include "driver/sysfs/sysfs.hpp"

namespace plait {
namespace {

using Handle = void*;
constexpr int kSuccess = 0;
constexpr unsigned kMostLinks = 36;
constexpr int kPeerRead = 0, kPeerNvlink = 2, kPeerOk = 0;
constexpr int kRemoteGpu = 0, kRemoteCpu = 1, kRemoteSwitch = 2;

struct PciInfo {  // nvmlPciInfo_t
  char legacy_bus_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

/// A function of the library by name; null if the library has none of this name.
struct Symbol {
  void* address;
  template <class Function>
  operator Function*() const {
    return reinterpret_cast<Function*>(address);
  }
};

struct NvmlFunctions {
  void* library;
  Symbol named(const char* symbol) const { return {dlsym(library, symbol)}; }

  int (*init)() = named("nvmlInit_v2");
  int (*shutdown)() = named("nvmlShutdown");
  int (*count)(unsigned*) = named("nvmlDeviceGetCount_v2");
  int (*handle)(unsigned, Handle*) = named("nvmlDeviceGetHandleByIndex_v2");
  int (*name)(Handle, char*, unsigned) = named("nvmlDeviceGetName");
  int (*uuid)(Handle, char*, unsigned) = named("nvmlDeviceGetUUID");
  int (*pci)(Handle, PciInfo*) = named("nvmlDeviceGetPciInfo_v3");
  int (*link_state)(Handle, unsigned, int*) = named("nvmlDeviceGetNvLinkState");
  int (*link_version)(Handle, unsigned, unsigned*) = named("nvmlDeviceGetNvLinkVersion");
  int (*link_remote)(Handle, unsigned, PciInfo*) = named("nvmlDeviceGetNvLinkRemotePciInfo_v2");
  int (*link_remote_type)(Handle, unsigned, int*) = named("nvmlDeviceGetNvLinkRemoteDeviceType");
  int (*peer_status)(Handle, Handle, int, int*) = named("nvmlDeviceGetP2PStatus");
  int (*common_ancestor)(Handle, Handle, int*) = named("nvmlDeviceGetTopologyCommonAncestor");
  bool enough() const { return init && shutdown && count && handle && name && uuid && pci; }
};

NvlinkEnd end_of(int type) {
  if (type == kRemoteGpu) return NvlinkEnd::gpu;
  if (type == kRemoteCpu) return NvlinkEnd::cpu;
  return type == kRemoteSwitch ? NvlinkEnd::nvswitch : NvlinkEnd::unknown;
}

std::string bounded(const char* characters, std::size_t most) {
  std::string copied(characters, most);
  return copied.substr(0, copied.find('\0'));
}

class RealNvml : public Nvml {
 public:
  explicit RealNvml(const NvmlFunctions& functions) : call_(functions) {
    unsigned devices = 0;
    if (call_.count(&devices) != kSuccess) return;
    for (unsigned i = 0; i < devices; ++i) {
      Handle handle = nullptr;
      if (call_.handle(i, &handle) == kSuccess) handles_.push_back(handle);
    }
  }
  ~RealNvml() override {
    call_.shutdown();
    dlclose(call_.library);
  }
  RealNvml(const RealNvml&) = delete;
  RealNvml& operator=(const RealNvml&) = delete;

  std::vector<GpuFacts> gpus() override {
    std::vector<GpuFacts> found;
    for (const Handle handle : handles_) {
      std::array<char, 96> words{};
      GpuFacts gpu;
      if (call_.name(handle, words.data(), words.size()) == kSuccess)
        gpu.model = bounded(words.data(), words.size());
      if (call_.uuid(handle, words.data(), words.size()) == kSuccess)
        gpu.uuid = bounded(words.data(), words.size());
      gpu.address = address([&](PciInfo* info) { return call_.pci(handle, info); });
      gpu.nvlinks = nvlinks(handle, gpu.tells_links);
      found.push_back(gpu);
    }
    return found;
  }

  bool peers(int one, int other) override { return peer(one, other, kPeerRead); }
  bool nvlink_peers(int one, int other) override { return peer(one, other, kPeerNvlink); }
  PciDistance pci_distance(int one, int other) override {
    int level = -1;
    if (!call_.common_ancestor ||
        call_.common_ancestor(handles_.at(static_cast<std::size_t>(one)),
                              handles_.at(static_cast<std::size_t>(other)), &level) != kSuccess ||
        level < 0 || level % 10 != 0 || level > 50)
      return PciDistance::unknown;
    return static_cast<PciDistance>(level / 10);  // nvmlGpuTopologyLevel_t: 0, 10, ... 50
  }

 private:
  bool peer(int one, int other, int what) {
    if (!call_.peer_status) return false;
    int status = -1;
    return call_.peer_status(handles_.at(static_cast<std::size_t>(one)),
                             handles_.at(static_cast<std::size_t>(other)), what,
                             &status) == kSuccess &&
           status == kPeerOk;
  }

  template <class Ask>
  static std::string address(Ask ask) {
    PciInfo info{};
    if (ask(&info) != kSuccess) return "";
    return kernel_pci_address(bounded(info.bus_id, sizeof info.bus_id));
  }

  std::vector<NvlinkFacts> nvlinks(Handle handle, bool& told) {
    std::vector<NvlinkFacts> links;
    for (unsigned i = 0; call_.link_state && i < kMostLinks; ++i) {
      int active = 0;
      if (call_.link_state(handle, i, &active) != kSuccess) continue;
      told = true;
      if (active == 0) continue;
      NvlinkFacts link;
      unsigned version = 0;
      if (call_.link_version && call_.link_version(handle, i, &version) == kSuccess)
        link.version = static_cast<int>(version);
      int type = -1;
      if (call_.link_remote_type && call_.link_remote_type(handle, i, &type) == kSuccess)
        link.end = end_of(type);
      if (call_.link_remote)
        link.remote_address =
            address([&](PciInfo* info) { return call_.link_remote(handle, i, info); });
      links.push_back(link);
    }
    return links;
  }

  NvmlFunctions call_;
  std::vector<Handle> handles_;
};

}  // namespace

std::unique_ptr<Nvml> open_nvml() {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return nullptr;
  const NvmlFunctions functions{library};
  if (!functions.enough() || functions.init() != kSuccess) {
    dlclose(library);
    return nullptr;
  }
  auto nvml = std::make_unique<RealNvml>(functions);
  if (nvml->gpus().empty()) return nullptr;
  return nvml;
}

}  // namespace plait
