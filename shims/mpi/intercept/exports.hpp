// How a function of MPI is exported: under the MPI_ name and, as an alias, under the PMPI_ name.
// Open MPI's Fortran layer and programs that wrap MPI_ call PMPI_.
#pragma once

#define PLAIT_EXPORT extern "C" [[gnu::visibility("default")]] int
#define PLAIT_ALIAS(name) __attribute__((alias(#name)))

/// A function for calls that are not forwarded at once. Never inlined, so that a forwarded call is
/// a few instructions and a jump, with the arguments still in registers.
#define PLAIT_SLOW_PATH [[gnu::noinline]] static int
