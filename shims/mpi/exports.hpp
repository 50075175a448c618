// How a function of MPI is exported: under its MPI_ name and, as an alias, under its PMPI_ name.
// Open MPI's Fortran layer calls PMPI_, and so do programs that wrap MPI_.
#pragma once

#define PLAIT_EXPORT extern "C" [[gnu::visibility("default")]] int
#define PLAIT_ALIAS(name) __attribute__((alias(#name)))

/// A function for calls that are not forwarded at once. It is never inlined, so that a forwarded
/// call is a few instructions and a jump, with its arguments still in registers.
#define PLAIT_SLOW_PATH [[gnu::noinline]] static int
