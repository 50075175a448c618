// Persistent messages of device memory: the MPI's own persistent requests on twins. A start brings
// what is sent into them; the end that the program hears of takes what was received out of them.
#pragma once
#include "shims/mpi/messages.hpp"

namespace plait::mpi {

/// How many there are: with none, everything here is the MPI's alone.
extern constinit std::atomic<int> persistent;
inline bool has_persistent() { return persistent.load(std::memory_order_relaxed) != 0; }

/// delivery: of a receive, which stages for itself.
void keep_persistent(Handle request, Staging staging, std::unique_ptr<Delivery> delivery = nullptr);
/// Before the MPI starts it; nothing where the request is none of these. Throws Error.
void fetch_persistent(Handle request);
/// Its present operation has ended with `code`, as the status tells; waits until what was received
/// is where it belongs. Nothing where it is none of these, or did not run. An error that the MPI
/// does not know of.
int end_persistent(Handle request, int code, void* status);
void forget_persistent(Handle request);

}  // namespace plait::mpi
