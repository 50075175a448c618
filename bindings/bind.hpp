// What the bind_<noun>.cpp files share: the module is made of one bind function a noun.
#pragma once
#include <nanobind/nanobind.h>

namespace nb = nanobind;

/// Runs the handlers of signals that have come, in the thread that Python runs them in; does
/// nothing in others. To be called without the GIL. Where a handler raises (Ctrl-C), it throws an
/// Error, in whose place Python then gets what the handler raised.
void check_signals();
/// Throws such an Error for an exception that no `except Exception` would catch (KeyboardInterrupt,
/// SystemExit), which a handler has raised in code of Python's; does nothing for others. To be
/// called with the GIL.
void throw_if_interrupt(const nb::python_error& error);

/// Throws such an Error once more, where a call has kept the first one to itself.
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
void bind_gpu(nb::module_& module);
void bind_copies(nb::module_& module);
void bind_exit(nb::module_& module);
