// The name of threads that call MPI, for the auditor of calls (call_audit.cpp).
#pragma once

/// Set by a thread of the program as long as the thread may call MPI.
inline constexpr char kCaller[] = "calls MPI";
