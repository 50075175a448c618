# plait_embed(TARGET PATH HEADER FUNCTION): embeds PATH/*.json into TARGET (.incbin), so that no install
# path matters. FUNCTION of HEADER ("plait::shipped_files") returns a row of names and texts for each file.
function(plait_embed target path header function)
  get_filename_component(path ${path} ABSOLUTE BASE_DIR ${PROJECT_SOURCE_DIR})
  get_filename_component(folder ${path} NAME)
  file(GLOB files CONFIGURE_DEPENDS ${path}/*.json)
  list(SORT files)
  set(asm "    .section .rodata\n")
  set(declarations "")
  set(rows "")
  set(number 0)
  foreach(file ${files})
    get_filename_component(name ${file} NAME_WE)
    set(symbol plait_${folder}_${number})
    string(APPEND asm "    .global ${symbol}\n    .global ${symbol}_end\n"
      "${symbol}:\n    .incbin \"${file}\"\n${symbol}_end:\n    .byte 0\n")
    string(APPEND declarations "extern const char ${symbol}[];\nextern const char ${symbol}_end[];\n")
    string(APPEND rows "    {\"${name}\", ${symbol}, ${symbol}_end},\n")
    math(EXPR number "${number} + 1")
  endforeach()
  string(APPEND asm "    .section .note.GNU-stack,\"\",%progbits\n")
  set(made ${PROJECT_BINARY_DIR}/made/${target}/shipped_${folder})
  file(CONFIGURE OUTPUT ${made}.S CONTENT "${asm}" @ONLY)
  string(REGEX REPLACE "::[^:]*$" "" namespace ${function})
  string(REGEX REPLACE "^.*::" "" function ${function})
  file(CONFIGURE OUTPUT ${made}.cpp CONTENT
"// The files of ${folder}/, made by cmake/embedded.cmake.
#include \"${header}\"
extern \"C\" {
${declarations}}
namespace ${namespace} {
const std::vector<ShippedFile>& ${function}() {
  static const std::vector<ShippedFile> files = {
${rows}  };
  return files;
}
}  // namespace ${namespace}
" @ONLY)
  set_source_files_properties(${made}.S PROPERTIES OBJECT_DEPENDS "${files}")
  target_sources(${target} PRIVATE ${made}.S ${made}.cpp)
endfunction()
