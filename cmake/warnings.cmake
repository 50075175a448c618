# Warnings are errors in plait's own code with GCC 12, the compiler of its tests. Other compilers have false positives
# (GCC 13: -Warray-bounds and -Wstringop-overflow on vectors). PLAIT_SANITIZE names sanitizers.
# -Wrestrict is off: GCC 12 raises it falsely on string concatenation (GCC bug 105651).
set(PLAIT_WERROR OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12 AND
   CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  set(PLAIT_WERROR ON)
endif()
add_library(plait_flags INTERFACE)
target_include_directories(plait_flags INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_compile_options(plait_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow
  -Wconversion -Wno-sign-conversion -Wno-restrict $<$<BOOL:${PLAIT_WERROR}>:-Werror> -fno-math-errno -ffp-contract=off>)
target_compile_definitions(plait_flags INTERFACE PLAIT_VERSION="${PROJECT_VERSION}")
if(PLAIT_SANITIZE)
  target_compile_options(plait_flags INTERFACE -fsanitize=${PLAIT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all
    -fno-sanitize=null,object-size,pointer-overflow  # AddressSanitizer, or the machine, catches the access itself
    -fno-sanitize=alignment  # a third of the compile time; the folder cpu has it
    -Wno-maybe-uninitialized)  # false positives: instrumentation hides values from the optimizer
  target_compile_definitions(plait_flags INTERFACE PLAIT_SANITIZED=1)
  target_link_options(plait_flags INTERFACE -fsanitize=${PLAIT_SANITIZE})
endif()
if(PLAIT_SMALL)
  target_compile_options(plait_flags INTERFACE -ffunction-sections -fdata-sections)
  target_link_options(plait_flags INTERFACE -Wl,--gc-sections)  # drop-ins need only a part
endif()
if(PLAIT_FAULTS)
  target_compile_definitions(plait_flags INTERFACE PLAIT_FAULTS=1)
endif()
find_package(Threads REQUIRED)
target_link_libraries(plait_flags INTERFACE Threads::Threads ${CMAKE_DL_LIBS})
