// Shared declarations of the bind_<noun>.cpp files; each has a bind function of the module.
#pragma once
#include <nanobind/nanobind.h>

namespace nb = nanobind;

/// Runs pending signal handlers if this is Python's main thread; else does nothing. Call without
/// the GIL. If a handler raises (Ctrl-C), throws an Error that Python gets as the handler's
/// exception.
void check_signals();
/// Throws the same Error for an exception outside class Exception (KeyboardInterrupt, SystemExit)
/// that a handler has raised in Python code; else does nothing. Call with the GIL.
void throw_if_interrupt(const nb::python_error& error);

/// Throws that Error again if a call has swallowed the first.
void throw_pending_interrupt();

void bind_error(nb::module_& module);
void bind_topology(nb::module_& module);
void bind_plan(nb::module_& module);
void bind_builder(nb::module_& module);
void bind_engines(nb::module_& module);
void bind_report(nb::module_& module);
void bind_timeline(nb::module_& module);
void bind_copy_plans(nb::module_& module);
void bind_communicator(nb::module_& module);
void bind_messages(nb::module_& module);
void bind_gpu(nb::module_& module);
void bind_copies(nb::module_& module);
void bind_exit(nb::module_& module);
