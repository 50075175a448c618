# The drop-ins. libplait_nccl.so is for LD_PRELOAD: it holds all it needs (the folders up to exec and
# the C++ library) and shows nothing but NCCL's names, so it can sit in any program.
set(PLAIT_NCCL_SOURCES)
file(GLOB PLAIT_NCCL_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/shims/nccl/*.cpp)
set(PLAIT_NCCL_PLATFORM ${PROJECT_SOURCE_DIR}/shims/nccl/cuda_platform.cpp)
list(REMOVE_ITEM PLAIT_NCCL_SOURCES ${PLAIT_NCCL_PLATFORM} ${PROJECT_SOURCE_DIR}/shims/nccl/audit.cpp
  ${PROJECT_SOURCE_DIR}/shims/nccl/forward.cpp)
add_library(plait_nccl_core OBJECT ${PLAIT_NCCL_SOURCES})
target_include_directories(plait_nccl_core PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(plait_nccl_core PRIVATE plait_flags)
set_target_properties(plait_nccl_core PROPERTIES CXX_VISIBILITY_PRESET hidden)

# plait_nccl_library(TARGET platform.cpp): the shim over one platform, in a folder of its own.
function(plait_nccl_library name platform)
  add_library(${name} SHARED $<TARGET_OBJECTS:plait_nccl_core> ${platform})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE plait_exec)
  target_link_options(${name} PRIVATE -Wl,--exclude-libs,ALL -Wl,-z,nodelete -Wl,--no-undefined
    -Wl,--version-script=${PROJECT_SOURCE_DIR}/shims/nccl/exports.map)
  if(NOT PLAIT_SANITIZE)
    target_link_options(${name} PRIVATE -static-libstdc++ -static-libgcc)
  endif()
  set_target_properties(${name} PROPERTIES CXX_VISIBILITY_PRESET hidden OUTPUT_NAME plait_nccl
    LINK_DEPENDS ${PROJECT_SOURCE_DIR}/shims/nccl/exports.map)
endfunction()

plait_nccl_library(plait_nccl ${PLAIT_NCCL_PLATFORM})
set_target_properties(plait_nccl PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/shims)
if(PLAIT_PYTHON)
  install(TARGETS plait_nccl LIBRARY DESTINATION plait)
endif()

if(PLAIT_TESTS)
  include(${PROJECT_SOURCE_DIR}/tests/shims/CMakeLists.txt)
endif()
