// Types and constants of the CUDA driver, declared here so that building host code needs no
// toolkit. The values are the driver ABI's (CUDA 12 and 13).
#pragma once
#include <cstddef>
#include <cstdint>

namespace plait::cuda {

using Result = int;
using Device = int;
using DevicePointer = std::uint64_t;
using Context = struct ContextTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;
using Library = struct LibraryTag*;
using Kernel = struct KernelTag*;
using Function = struct FunctionTag*;
using Graph = struct GraphTag*;
using GraphNode = struct GraphNodeTag*;
using GraphExec = struct GraphExecTag*;
using PhysicalMemory = unsigned long long;  ///< CUmemGenericAllocationHandle

inline constexpr Result kSuccess = 0;
inline constexpr Result kNoBinaryForGpu = 209;
inline constexpr Result kUnsupportedPtx = 222;  ///< PTX of a compiler newer than the driver
inline constexpr Result kNotReady = 600;
inline constexpr Result kPeerAccessAlreadyEnabled = 704;
inline constexpr Result kCaptureImplicit = 906;  ///< legacy stream used during a capture

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr std::uint64_t kLastDefaultStream = 2;  ///< handles 0, 1 and 2
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr unsigned kHostRegisterMapped = 2;
inline constexpr unsigned kIpcLazyPeerAccess = 1;
inline constexpr int kCaptureNone = 0;
inline constexpr int kCaptureThreadLocal = 1;
inline constexpr int kCaptureRelaxed = 2;
inline constexpr unsigned kEventExternal =
    1;  ///< flag of a wait or record: adds a node to the captured graph
inline constexpr unsigned kAddCaptureDependencies = 0;
inline constexpr int kAttributeMultiprocessors = 16;
inline constexpr int kAttributeComputeMajor = 75;
inline constexpr int kAttributeComputeMinor = 76;
inline constexpr int kAttributeMostSharedBytes = 97;  ///< maximum of a block with opt-in
inline constexpr int kAttributeMapsMemory = 102;      ///< virtual memory management
inline constexpr int kAttributeSharesFiles = 103;
inline constexpr int kPointerContext = 1;  ///< null = any context of the GPU, as of a memory pool
inline constexpr int kPointerMemoryType = 2;
inline constexpr int kPointerBufferId = 7;
inline constexpr int kPointerDeviceOrdinal = 9;
inline constexpr int kPointerRangeStart = 11;
inline constexpr int kPointerRangeBytes = 12;
inline constexpr unsigned kMemoryOnDevice = 2;  ///< value of kPointerMemoryType

struct IpcHandle {
  char bytes[64];
};

/// CUmemAllocationProp: physical memory of a GPU.
struct MemoryProperties {
  int type;
  int handle_types;
  int location[2];  ///< kind, number of the device
  void* windows;
  unsigned char flags[8];
};
inline constexpr int kPinnedMemory = 1;
inline constexpr int kShownByFile = 1;  ///< value of handle_types: a POSIX file descriptor
inline constexpr int kOnDevice = 1;     ///< kind of a location
inline constexpr int kLeastGranularity = 0;

/// CUmemAccessDesc.
struct MemoryAccessRights {
  int location[2];
  int flags;
};
inline constexpr int kReadAndWrite = 3;

/// CUmemcpyAttributes, for copies in a batch. Locations are hints for managed memory.
struct CopyAttributes {
  int source_order;
  int source_location[2];
  int target_location[2];
  unsigned flags;
};
inline constexpr int kSourceInStreamOrder = 1;
inline constexpr unsigned kCopyOverlapCompute = 1;

/// CUlaunchAttribute: id, then a value of 64 bytes at offset 8.
struct LaunchAttribute {
  int id;
  int pad;
  union {
    int programmatic_serialization;
    unsigned cluster[3];  ///< blocks of a cluster: x, y, z
    char bytes[64];
  } value;
};
inline constexpr int kFixedSharedBytes = 1;  ///< attribute of a function, like the next two
inline constexpr int kMadeForPtx = 5;        ///< the architecture compiled for: 90 = 9.0
inline constexpr int kMostDynamicSharedBytes = 8;
inline constexpr int kClusterDimension = 4;  ///< id of a launch attribute, like the next
inline constexpr int kProgrammaticSerialization = 6;

/// CUlaunchConfig.
struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

}  // namespace plait::cuda
