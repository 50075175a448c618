// Persistent messages of device memory: the MPI's own persistent requests on twins. A start brings
// what is sent into them; the end that the program hears of takes what was received out of them.
#pragma once
#include <optional>

#include "shims/mpi/staging.hpp"

namespace plait::mpi {

/// How many there are: with none, everything here is the MPI's alone.
extern constinit std::atomic<int> persistent;
inline bool has_persistent() { return persistent.load(std::memory_order_relaxed) != 0; }

void keep_persistent(Handle request, Staging staging);
/// Before the MPI starts it; nothing where the request is none of these. Throws Error.
void fetch_persistent(Handle request);
/// Its present operation has ended, well if it says how much was received; nothing where it is none
/// of these, or did not run.
int end_persistent(Handle request, std::optional<std::uint64_t> received);
void forget_persistent(Handle request);

}  // namespace plait::mpi
