// Auditor of the dynamic linker (LD_AUDIT, a shared library): watches the functions of the native
// MPI that the drop-in looks up. A line on stderr names each function that another thread than the
// program's calls, or that is called after MPI_Finalize. Threads of the program are the main thread
// and threads of the name kCaller. The auditor has a C library of its own, and uses no C++ library.
#include "call_audit.hpp"

#include <link.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <utility>

namespace {

constexpr std::size_t kMostFunctions = 512;

bool is_caller() {
  char name[16] = "";
  prctl(PR_GET_NAME, name);
  return ::syscall(SYS_gettid) == ::getpid() || std::strcmp(name, kCaller) == 0;
}

/// Writes a line in a single call, since other processes write too.
void say(const char* function, const char* words) {
  char line[160] = "call audit: ";
  std::strncat(line, function, 80);
  std::strncat(line, words, 60);
  if (::write(2, line, std::strlen(line)) < 0) return;
}

/// A watched function, with more arguments than any function of MPI has: all are pointers and
/// integers.
template <class... Arguments>
struct Watched {
  using Function = long(Arguments...);
  const char* name;
  Function* function;
  bool is_told;  ///< by any thread

  static inline Watched all[kMostFunctions] = {};
  static inline std::size_t count = 0;
  static inline bool is_finalized = false;

  void check() {
    if (is_told) return;
    const bool is_late = is_finalized && std::strcmp(name, "PMPI_Finalized") != 0;
    if (!is_late && is_caller()) return;
    is_told = true;
    say(name, is_late ? " after MPI_Finalize\n" : " in a thread that calls no MPI\n");
  }

  template <std::size_t kIndex>
  static long call(Arguments... arguments) {
    Watched& one = all[kIndex];
    one.check();
    const long result = one.function(arguments...);
    if (std::strcmp(one.name, "PMPI_Finalize") == 0) is_finalized = true;
    return result;
  }

  template <std::size_t... kIndices>
  static Function* caller(std::size_t index, std::index_sequence<kIndices...>) {
    static constexpr Function* callers[] = {call<kIndices>...};
    return callers[index];
  }

  /// Returns the function in whose place callers get `function`.
  static Function* watch(const char* name, Function* function) {
    std::size_t index = 0;
    while (index < count && all[index].function != function) ++index;
    if (index == kMostFunctions) return function;
    if (index == count) {
      all[count++] = {name, function, false};
      if (count == 1) say("watches", " MPI\n");
    }
    return caller(index, std::make_index_sequence<kMostFunctions>());
  }
};

using WatchedMpi =
    Watched<long, long, long, long, long, long, long, long, long, long, long, long, long, long>;

}  // namespace

extern "C" {

unsigned la_version(unsigned) { return LAV_CURRENT; }

unsigned la_objopen(link_map*, Lmid_t, std::uintptr_t*) { return LA_FLG_BINDTO | LA_FLG_BINDFROM; }

std::uintptr_t la_symbind64(Elf64_Sym* symbol, unsigned, std::uintptr_t*, std::uintptr_t*,
                            unsigned* flags, const char* name) {
  const bool is_watched = (*flags & LA_SYMB_DLSYM) != 0 && std::strncmp(name, "PMPI", 4) == 0;
  if (!is_watched) return symbol->st_value;
  auto* const function = reinterpret_cast<WatchedMpi::Function*>(symbol->st_value);
  return reinterpret_cast<std::uintptr_t>(WatchedMpi::watch(name, function));
}

}  // extern "C"
