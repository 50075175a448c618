# Embeds topologies/*.json into the library (.incbin), so that no install path matters.
# plait_folder(topo) includes this file, which makes the table of names and texts of
# src/topo/shipped.hpp.
file(GLOB topology_files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/topologies/*.json)
list(SORT topology_files)
set(topology_asm "    .section .rodata\n")
set(topology_declarations "")
set(topology_rows "")
set(topology_number 0)
foreach(topology_file ${topology_files})
  get_filename_component(topology_name ${topology_file} NAME_WE)
  set(topology_symbol plait_topology_${topology_number})
  string(APPEND topology_asm "    .global ${topology_symbol}\n    .global ${topology_symbol}_end\n"
    "${topology_symbol}:\n    .incbin \"${topology_file}\"\n${topology_symbol}_end:\n    .byte 0\n")
  string(APPEND topology_declarations
    "extern const char ${topology_symbol}[];\nextern const char ${topology_symbol}_end[];\n")
  string(APPEND topology_rows
    "    {\"${topology_name}\", ${topology_symbol}, ${topology_symbol}_end},\n")
  math(EXPR topology_number "${topology_number} + 1")
endforeach()
string(APPEND topology_asm "    .section .note.GNU-stack,\"\",%progbits\n")
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/shipped_data.S CONTENT "${topology_asm}" @ONLY)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/shipped_data.cpp CONTENT
"// The shipped topologies, made by cmake/topologies.cmake.
#include \"topo/shipped.hpp\"
extern \"C\" {
${topology_declarations}}
namespace plait {
const std::vector<ShippedFile>& shipped_files() {
  static const std::vector<ShippedFile> files = {
${topology_rows}  };
  return files;
}
}  // namespace plait
" @ONLY)
set_source_files_properties(${PROJECT_BINARY_DIR}/shipped_data.S PROPERTIES
  OBJECT_DEPENDS "${topology_files}")
target_sources(plait_topo PRIVATE
  ${PROJECT_BINARY_DIR}/shipped_data.S ${PROJECT_BINARY_DIR}/shipped_data.cpp)
