// Set-up of the shared memory: allocate, fill with initial values, exchange handles, map the peers'
// memory.
#include "gpu/arena/arena.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>
#include <utility>

#include "base/env.hpp"
#include "base/error_reason.hpp"
#include "base/hash.hpp"
#include "base/lap.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "gpu/abi/path_args.hpp"
#include "gpu/arena/pinned_memory.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

constexpr std::size_t kAddressBytes = 112;  // a path of a socket, with its end

/// Equal on two ranks if the arenas are laid out alike.
std::uint64_t layout_hash(const DeviceArenaSizes& sizes, const HeaderLayout& header) {
  const std::string layout = text("{}{}", sizes.text(), header.bytes());
  return hash_bytes(layout.data(), layout.size());
}

std::uint64_t random_bits() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

/// Returns the parts that no peer uses, or all others.
std::vector<const ArenaPart*> parts_of(const std::vector<const ArenaPart*>& parts, bool is_own) {
  std::vector<const ArenaPart*> found;
  for (const ArenaPart* const part : parts)
    if (part->is_own == is_own) found.push_back(part);
  return found;
}

/// Returns the bytes in front of the parts with which the last part ends at an allocation's end.
std::uint64_t bytes_to_grain(const DeviceArenaSizes& sizes,
                             const std::vector<const ArenaPart*>& parts) {
  std::uint64_t bytes = 0;
  for (const ArenaPart* const part : parts) bytes += part->halves * rounded_to_page(sizes[*part]);
  return (kArenaGrainBytes - bytes % kArenaGrainBytes) % kArenaGrainBytes;
}

/// Returns "", or why the driver maps no memory of the rank. Memory that runs out is an error and
/// no refusal.
std::string refusal(Result result, const char* call, std::size_t rank) {
  try {
    require(result, call);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::driver_error) throw;
    return text("memory of rank {}'s GPU cannot be mapped: {}", rank, reason_of(error));
  }
  return "";
}

/// Returns the reason why `step` fails; empty = success.
std::string why_failed(const std::function<void()>& step) {
  try {
    step();
  } catch (const Error& error) {
    return reason_of(error);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

/// Descriptors that close at the end.
struct ClosedFiles {
  ClosedFiles() = default;
  ~ClosedFiles() {
    for (const int file : all)
      if (file >= 0) ::close(file);
  }
  ClosedFiles(const ClosedFiles&) = delete;
  ClosedFiles& operator=(const ClosedFiles&) = delete;
  std::vector<int> all;
};

}  // namespace

/// Set-up record of a rank. If process and instance are equal, pointers are valid unchanged.
struct DeviceArena::ArenaRecord {
  std::int64_t process;
  std::uint64_t instance;
  std::int64_t device;
  std::uint64_t random;
  DevicePointer base;
  Context context;
  IpcHandle handle;
  std::int64_t handle_result;   ///< result of the driver's call that made the handle
  std::uint64_t sizes;          ///< Hash of DeviceArenaSizes::text() and of the header's size.
  char address[kAddressBytes];  ///< socket on which the rank receives files; empty = other handles
};

/// All ranks' records, and this rank's.
struct DeviceArena::SharedRecords {
  ArenaRecord mine{};
  std::vector<ArenaRecord> all;
};

DeviceArena::DeviceArena(int rank, const DeviceArenaSizes& sizes, const ArenaContents& contents,
                         HostMemory host, std::vector<int> islands, OpenFileExchange files,
                         ArenaPlace place)
    : rank_(rank),
      sizes_(sizes),
      parts_(host ? parts_of(contents.parts, false) : contents.parts),
      header_(contents.flags, sizes),
      own_(sizes, parts_of(contents.parts, true), sizeof(DeviceState)),
      layout_(sizes, parts_,
              !contents.flags.empty()   ? header_.bytes()
              : place.behind_bytes != 0 ? bytes_to_grain(sizes, parts_)
                                        : 0),
      host_(std::move(host)),
      islands_(std::move(islands)),
      files_(host_ ? nullptr : std::move(files)),
      place_(place),
      has_lasted_(place.front != nullptr) {
  if (files_ && !is_inside_front()) make_fixed();
  allocate();
  base_.assign(static_cast<std::size_t>(rank) + 1, mine_);
}

/// Memory that runs out is an error and no refusal.
void DeviceArena::make_fixed() {
  Device device = 0;
  PLAIT_CUDA_CALL(context_device, &device);
  std::string why = FixedMemory::why_none(device);
  try {
    if (place_.front != nullptr)
      fixed_ = std::make_unique<FixedMemory>(*place_.front->fixed_, layout_.total_bytes());
    else if (why.empty())
      fixed_ = std::make_unique<FixedMemory>(device, layout_.total_bytes(), place_.behind_bytes);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::driver_error || place_.front != nullptr) throw;
    why = reason_of(error);
  }
  if (!why.empty()) log(LogLevel::info, rank_, text("arenas by CUDA IPC: {}", why));
}

void DeviceArena::allocate() {
  if (fixed_ != nullptr)
    mine_ = fixed_->base();
  else if (is_inside_front())
    mine_ = place_.front->behind(rank_);
  else
    PLAIT_CUDA_CALL(memory_alloc, &mine_, gpu_bytes());
}

char* DeviceArena::at(const ArenaPart& part, int owner) const {
  if (!host_ || !part.is_own) return reinterpret_cast<char*>(base(owner) + layout_.at(part));
  if (owner == rank_) return reinterpret_cast<char*>(mine_ + own_.at(part));
  const auto peer = static_cast<std::size_t>(owner);
  const DevicePointer mapped = peer < own_base_.size() ? own_base_[peer] : 0;
  return mapped == 0 ? nullptr : reinterpret_cast<char*>(mapped + own_.at(part));
}

bool DeviceArena::is_of_my_island(std::size_t peer) const {
  const auto me = static_cast<std::size_t>(rank_);
  return peer != me && peer < islands_.size() && islands_[peer] == islands_[me];
}

void DeviceArena::share(Context context, int device, const Exchange& exchange, Stream stream) {
  if (host_) map_host(exchange);
  make_contents(stream);
  if (is_inside_front()) return lie_inside_front(exchange);
  if (files_ && map_fixed(context, device, exchange)) return;
  if (fixed_ != nullptr) {  // A rank has no such memory.
    fixed_.reset();
    mine_ = 0;
    allocate();
    fill(stream);
  }
  map_peers(context, device, exchange);
}

/// No rank writes into a peer before that peer has filled its memory.
void DeviceArena::lie_inside_front(const Exchange& exchange) {
  const std::size_t ranks = exchange("filled").size();
  base_.clear();
  for (std::size_t owner = 0; owner < ranks; ++owner)
    base_.push_back(place_.front->behind(static_cast<int>(owner)));
  in_processes_ = place_.front->in_processes();
}

void DeviceArena::make_contents(Stream stream) {
  if (mine_ == 0) allocate();  // An attempt found none.
  if (fixed_ != nullptr) fixed_->make();
  if (has_contents_) return;
  if (kept_.empty()) return fill(stream);
  PLAIT_CUDA_CALL(memory_copy_async, mine_, reinterpret_cast<DevicePointer>(kept_.data()),
                  kept_.size(), stream);
  PLAIT_CUDA_CALL(stream_synchronize, stream);
  kept_ = {};
}

void DeviceArena::give_up(Contents contents, Stream stream) noexcept {
  if (fixed_ == nullptr || !fixed_->is_made()) return;
  has_contents_ = false;
  if (contents == Contents::kept && !keep(stream)) {
    has_contents_ = true;
    return fixed_->unmap_peers();
  }
  fixed_->give_up();
}

bool DeviceArena::keep(Stream stream) noexcept {
  try {
    kept_.resize(layout_.total_bytes());
    PLAIT_CUDA_CALL(memory_copy_async, reinterpret_cast<DevicePointer>(kept_.data()), mine_,
                    kept_.size(), stream);
    PLAIT_CUDA_CALL(stream_synchronize, stream);
    return true;
  } catch (const std::exception& error) {
    log(LogLevel::warn, rank_, text("an arena stays in GPU memory: {}", error.what()));
    kept_ = {};
    return false;
  }
}

/// Maps all ranks' memory. Pages are placed on the NUMA node of the thread that first writes them,
/// hence each rank fills its own.
void DeviceArena::map_host(const Exchange& exchange) {
  forget_host();  // Left by a failed attempt.
  std::vector<std::byte*> bases = host_(exchange, layout_.total_bytes());
  fill_host(bases[static_cast<std::size_t>(rank_)]);
  for (std::byte* const base : bases) {
    register_pinned(base, layout_.total_bytes());
    host_bases_.push_back(base);
  }
}

void DeviceArena::fill_host(std::byte* mine) const {
  std::memset(mine, 0, layout_.total_bytes());
  for (const ArenaPart* const part : parts_)
    if (part->byte != 0 && layout_.bytes_of(*part) != 0)
      std::memset(mine + layout_.at(*part), part->byte, layout_.bytes_of(*part));
}

void DeviceArena::forget_host() noexcept {
  for (std::byte* const base : host_bases_) unregister_pinned(base);
  host_bases_.clear();
}

void DeviceArena::fill(Stream stream) {
  if (host_) {
    PLAIT_CUDA_CALL(memory_set_async, mine_, 0, own_.total_bytes(), stream);
    PLAIT_CUDA_CALL(stream_synchronize, stream);
    return;
  }
  PLAIT_CUDA_CALL(memory_set_async, mine_, 0, layout_.total_bytes(), stream);
  for (const ArenaPart* const part : parts_)
    if (part->byte != 0 && layout_.bytes_of(*part) != 0)
      PLAIT_CUDA_CALL(memory_set_async, mine_ + layout_.at(*part), part->byte,
                      layout_.bytes_of(*part), stream);
  PLAIT_CUDA_CALL(stream_synchronize, stream);
}

/// Sets the base of the peer's memory. Returns "", or why the memory cannot be mapped.
std::string DeviceArena::map_peer(std::size_t peer, const ArenaRecord& other,
                                  const ArenaRecord& mine) {
  if (!host_) return map_gpu_memory(base_[peer], peer, other, mine);
  base_[peer] = pinned_on_device(host_bases_[peer]);
  return is_of_my_island(peer) ? map_gpu_memory(own_base_[peer], peer, other, mine) : "";
}

std::string DeviceArena::map_gpu_memory(DevicePointer& mapped, std::size_t peer,
                                        const ArenaRecord& other, const ArenaRecord& mine) {
  if (static_cast<int>(peer) == rank_) {
    mapped = mine_;
  } else if (other.process == mine.process && other.instance == mine.instance) {
    mapped = other.base;
    if (other.device == mine.device) return "";
    const Result result = api().context_enable_peer(other.context, 0);
    if (result != kPeerAccessAlreadyEnabled) return refusal(result, "context_enable_peer", peer);
  } else {
    if (other.handle_result != kSuccess)
      return refusal(static_cast<Result>(other.handle_result), "ipc_get", peer);
    if (opened_[peer] == 0)  // Else an attempt that failed on another rank has opened the memory.
      if (const Result result = api().ipc_open(&opened_[peer], other.handle, kIpcLazyPeerAccess);
          result != kSuccess)
        return opened_[peer] = 0, refusal(result, "ipc_open", peer);
    mapped = opened_[peer];
  }
  return "";
}

/// address: socket on which this rank receives files; null = CUDA IPC shares memory.
DeviceArena::SharedRecords DeviceArena::exchange_records(Context context, int device,
                                                         const Exchange& exchange,
                                                         const char* address) {
  static const char instance_mark = 0;  // The address differs between processes that share a pid.
  SharedRecords records;
  ArenaRecord& record = records.mine;
  record.process = ::getpid();
  record.instance = reinterpret_cast<std::uintptr_t>(&instance_mark);
  record.device = device;
  record.random = random_bits();
  record.base = mine_;
  record.context = context;
  record.sizes = layout_hash(sizes_, header_);
  if (address != nullptr)
    std::string(address).copy(record.address, kAddressBytes - 1);
  else if (!host_ || !islands_.empty())
    record.handle_result = api().ipc_get(&record.handle, mine_);
  std::set<std::pair<std::int64_t, std::uint64_t>> processes;
  nonce_ = 0;
  for (const std::string& shown :
       exchange(std::string(reinterpret_cast<const char*>(&record), sizeof record))) {
    const std::size_t peer = records.all.size();
    ArenaRecord& other = records.all.emplace_back();
    if (shown.size() != sizeof other)
      throw Error(ErrorCode::mismatch, text("arena record of rank {} has {} bytes, wanted {}", peer,
                                            shown.size(), sizeof other));
    std::memcpy(&other, shown.data(), sizeof other);
    other.address[kAddressBytes - 1] = '\0';
    processes.insert({other.process, other.instance});
    nonce_ = path_mix(nonce_ ^ other.random);
    if (other.sizes != record.sizes)
      throw Error(
          ErrorCode::mismatch,
          text("device arenas of ranks {} and {} differ in size: use the same options on all ranks",
               peer, rank_));
  }
  in_processes_ = processes.size() == records.all.size();
  return records;
}

/// Sends this rank's file to all peers, and maps the peers' files. Returns "", or the failure.
std::string DeviceArena::map_files(FileExchange& files, const std::vector<std::string>& addresses,
                                   int mine) {
  ClosedFiles theirs;
  return why_failed([&] {
    theirs.all = files.swap(addresses, rank_, mine);
    for (std::size_t peer = 0; peer < theirs.all.size(); ++peer)
      base_[peer] =
          static_cast<int>(peer) == rank_ ? mine_ : fixed_->map_peer(peer, theirs.all[peer]);
  });
}

/// Shares memory at fixed addresses. Returns false on all ranks if a rank cannot; throws if
/// addresses are already in use.
bool DeviceArena::map_fixed(Context context, int device, const Exchange& exchange) {
  std::unique_ptr<FileExchange> files;
  int mine = -1;
  std::string why;
  Lap lap;
  if (fixed_ != nullptr)
    why = why_failed([&] {
      files = files_();
      mine = fixed_->show();
    });
  const SharedRecords records =
      exchange_records(context, device, exchange, mine < 0 ? "" : files->address().c_str());
  const double records_ms = lap.ms();
  std::vector<std::string> addresses;
  for (const ArenaRecord& one : records.all) addresses.emplace_back(one.address);
  base_.assign(addresses.size(), 0);
  if (!in_processes_)
    why = "several ranks of one process";
  else if (std::count(addresses.begin(), addresses.end(), "") == 0)
    why = map_files(*files, addresses, mine);
  else if (why.empty())
    why = "a rank has no memory at fixed addresses";
  const double maps_ms = lap.ms();
  // No rank writes into a peer before that peer has mapped all memory.
  const std::vector<std::string> all = exchange(why);
  log(LogLevel::info, rank_, text("arena of {} MiB: shown in {} ms, peers mapped in {}, all in {}",
                                  bytes() >> 20, records_ms, maps_ms, lap.ms()));
  const auto failed = std::find_if(all.begin(), all.end(),
                                   [](const std::string& reason) { return !reason.empty(); });
  if (failed == all.end()) return has_lasted_ = has_contents_ = true;
  if (fixed_ != nullptr) fixed_->unmap_peers();
  const std::string found = text("rank {}: {}", failed - all.begin(), *failed);
  if (has_lasted_) throw Error(ErrorCode::driver_error, found);
  log(LogLevel::info, rank_, text("arenas by CUDA IPC: {}", found));
  return false;
}

void DeviceArena::map_peers(Context context, int device, const Exchange& exchange) {
  const SharedRecords records = exchange_records(context, device, exchange, nullptr);
  const std::size_t ranks = records.all.size();
  base_.assign(ranks, 0);
  opened_.resize(ranks, 0);
  own_base_.assign(ranks, 0);
  std::string why_not;  // A peer's memory is not mapped.
  for (std::size_t peer = 0; peer < ranks; ++peer)
    if (const std::string why = map_peer(peer, records.all[peer], records.mine); why_not.empty())
      why_not = why;
  // No rank writes into a peer before that peer has mapped all memory.
  const std::vector<std::string> all = exchange(why_not);
  for (std::size_t peer = 0; peer < all.size(); ++peer) {
    if (all[peer].empty()) continue;
    leave_peers(exchange);
    throw NoDirectAccess(ErrorCode::no_device, text("rank {}: {}", peer, all[peer]), false);
  }
}

void DeviceArena::leave_peers(const Exchange& exchange) {
  unmap_peers();
  exchange("unmapped");
}

DeviceArena::~DeviceArena() {
  unmap_peers();
  forget_host();
  if (fixed_ == nullptr && !is_inside_front() && mine_ != 0) api().memory_free(mine_);
}

void DeviceArena::unmap_peers() noexcept {
  if (fixed_ != nullptr) fixed_->unmap_peers();
  for (const DevicePointer opened : opened_)
    if (opened != 0) api().ipc_close(opened);
  opened_.clear();
  own_base_.clear();
}

}  // namespace plait::cuda
