// Facts of the job that every call checks, which MPI_Init sets alike on all ranks, and the id of
// the host.
#pragma once
#include <atomic>
#include <cstdint>

namespace plait::mpi {

/// Whether plait serves collectives.
extern constinit std::atomic<bool> serving;
inline bool is_serving() { return serving.load(std::memory_order_relaxed); }
/// Whether collectives are intercepted: plait serves, or records native calls (counting.hpp).
extern constinit std::atomic<bool> intercepting;
inline bool is_intercepting() { return intercepting.load(std::memory_order_relaxed); }
/// Whether large messages go by rendezvous.
extern constinit std::atomic<bool> rendezvous_enabled;
inline bool uses_rendezvous() { return rendezvous_enabled.load(std::memory_order_relaxed); }

/// Number of calls and messages that plait has served in this process.
extern constinit std::atomic<std::uint64_t> calls_served;
/// Hash of the boot and of the process's namespaces. Equal hashes: a path names the same file.
std::uint64_t host_id();

}  // namespace plait::mpi
