// How a function of MPI's is shown: under its MPI_ and its PMPI_ name, since Open MPI's Fortran
// calls the latter, and so do programs that wrap the former.
#pragma once

#define PLAIT_EXPORT extern "C" [[gnu::visibility("default")]] int
#define PLAIT_TWIN(name) __attribute__((alias(#name)))

namespace plait::mpi {

/// Called, and not made a part of its caller: what is seldom done then costs no other call.
template <class Function>
[[gnu::noinline]] int apart(const Function& function) {
  return function();
}

}  // namespace plait::mpi
