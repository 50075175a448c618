# Precompiles headers that most sources include, which saves a quarter of their compile time. Off by default: compiler
# caches know no precompiled headers. A source without its own includes still compiles, so tools/std_includes.py looks
# for such sources.
option(PLAIT_PRECOMPILE "precompile standard headers (the Makefile, without a compiler cache)" OFF)
set(PLAIT_STANDARD_HEADERS algorithm array atomic chrono cstdint cstdlib cstring functional limits map memory mutex optional
  set sstream string thread utility vector)

# plait_precompile(TARGET [FROM OTHER] [HEADER...]): precompiles standard headers and each HEADER for TARGET, or takes
# those of OTHER, a target with the same optimization and kind of position-independent code.
function(plait_precompile target)
  cmake_parse_arguments(ARG "" "FROM" "" ${ARGN})
  if(NOT PLAIT_PRECOMPILE)
    return()
  endif()
  if(ARG_FROM AND NOT ARG_FROM STREQUAL target)
    target_precompile_headers(${target} REUSE_FROM ${ARG_FROM})
    return()
  endif()
  set(headers ${PLAIT_STANDARD_HEADERS} ${ARG_UNPARSED_ARGUMENTS})
  list(TRANSFORM headers REPLACE "(.+)" "$<$<COMPILE_LANGUAGE:CXX>:<\\1$<ANGLE-R>>")
  target_precompile_headers(${target} PRIVATE ${headers})
endfunction()
