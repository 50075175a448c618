// plait._core: the C++ types and functions for Python. python/plait/__init__.py is the public
// interface.
#include "bind.hpp"

NB_MODULE(_core, module) {
  nb::set_leak_warnings(false);  // values in caches live until the interpreter ends
  module.attr("__version__") = PLAIT_VERSION;
  bind_error(module);
  bind_topology(module);
  bind_plan(module);
  bind_builder(module);
  bind_engines(module);
  bind_report(module);
  bind_timeline(module);
  bind_copy_plans(module);
  bind_communicator(module);
  bind_messages(module);
  bind_gpu(module);
  bind_copies(module);
  bind_exit(module);
}
