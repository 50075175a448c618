// How a function of MPI's is shown: under its MPI_ and its PMPI_ name, since Open MPI's Fortran
// calls the latter, and so do programs that wrap the former.
#pragma once

#define PLAIT_EXPORT extern "C" [[gnu::visibility("default")]] int
#define PLAIT_ALIAS(name) __attribute__((alias(#name)))

/// What is done where a call does not pass on at once: a function of its own, so that one that does
/// is a few steps and a jump, and leaves its arguments in their registers.
#define PLAIT_SLOW_PATH [[gnu::noinline]] static int
