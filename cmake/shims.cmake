# Builds the drop-ins. libplait_nccl.so is for LD_PRELOAD. It holds the folders up to gpu, tuning
# tables and the C++ library, and exports NCCL's names alone, so any program can load it. libgcc stays
# outside: its unwinder needs glibc 2.35 or newer, and every system has a libgcc_s.so.1.
set(PLAIT_NCCL_SOURCES)
file(GLOB PLAIT_NCCL_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/shims/nccl/*.cpp)
set(PLAIT_NCCL_PLATFORM ${PROJECT_SOURCE_DIR}/shims/nccl/cuda_platform.cpp)
list(REMOVE_ITEM PLAIT_NCCL_SOURCES ${PLAIT_NCCL_PLATFORM} ${PROJECT_SOURCE_DIR}/shims/nccl/audit.cpp
  ${PROJECT_SOURCE_DIR}/shims/nccl/forward.cpp)
add_library(plait_nccl_core OBJECT ${PLAIT_NCCL_SOURCES})
target_include_directories(plait_nccl_core PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(plait_nccl_core PRIVATE plait_flags)
set_target_properties(plait_nccl_core PROPERTIES CXX_VISIBILITY_PRESET hidden)
plait_precompile(plait_nccl_core)

# plait_nccl_library(TARGET platform.cpp): adds the drop-in over one platform, in a folder of its own.
function(plait_nccl_library name platform)
  add_library(${name} SHARED $<TARGET_OBJECTS:plait_nccl_core> ${platform})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE plait_comm)
  target_link_options(${name} PRIVATE -Wl,--exclude-libs,ALL -Wl,-z,nodelete
    -Wl,--version-script=${PROJECT_SOURCE_DIR}/shims/nccl/exports.map)
  if(NOT PLAIT_SANITIZE)
    target_link_options(${name} PRIVATE -static-libstdc++ -Wl,--no-undefined)
  endif()
  set_target_properties(${name} PROPERTIES CXX_VISIBILITY_PRESET hidden OUTPUT_NAME plait_nccl
    LINK_DEPENDS ${PROJECT_SOURCE_DIR}/shims/nccl/exports.map)
endfunction()

plait_nccl_library(plait_nccl ${PLAIT_NCCL_PLATFORM})
set_target_properties(plait_nccl PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/shims)

# libplait_audit.so, for LD_AUDIT: binds look-ups in libnccl to the drop-in. The loader puts it into a
# namespace of its own, so it depends on the C library alone.
add_library(plait_audit SHARED ${PROJECT_SOURCE_DIR}/shims/nccl/audit.cpp)
target_link_libraries(plait_audit PRIVATE plait_flags)
target_compile_options(plait_audit PRIVATE -fno-exceptions -fno-rtti)
set_target_properties(plait_audit PROPERTIES CXX_VISIBILITY_PRESET hidden LINKER_LANGUAGE C
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/shims)
set(PLAIT_DOORS plait_nccl plait_audit)

# plait_forwarder(TARGET drop-in): adds a libnccl.so.2 in a folder nccl/ next to the drop-in.
function(plait_forwarder name drop_in folder)
  add_library(${name} SHARED ${PROJECT_SOURCE_DIR}/shims/nccl/forward.cpp
    ${PROJECT_SOURCE_DIR}/shims/nccl/${PLAIT_FORWARD_ENTRIES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE plait_flags ${drop_in})
  target_link_options(${name} PRIVATE -Wl,-Bsymbolic -Wl,-z,nodelete -static-libstdc++ -static-libgcc)
  set_target_properties(${name} PROPERTIES CXX_VISIBILITY_PRESET hidden OUTPUT_NAME nccl SUFFIX .so.2
    NO_SONAME ON LIBRARY_OUTPUT_DIRECTORY ${folder}/nccl BUILD_RPATH "$ORIGIN/.."
    INSTALL_RPATH "$ORIGIN/..")
  target_link_options(${name} PRIVATE -Wl,-soname,libnccl.so.2)
endfunction()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(PLAIT_FORWARD_ENTRIES forward_x86_64.S)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(PLAIT_FORWARD_ENTRIES forward_aarch64.S)
endif()
if(PLAIT_FORWARD_ENTRIES AND NOT PLAIT_SANITIZE)
  plait_forwarder(plait_forward plait_nccl ${PROJECT_BINARY_DIR}/shims)
  set_property(SOURCE ${PROJECT_SOURCE_DIR}/shims/nccl/${PLAIT_FORWARD_ENTRIES} APPEND PROPERTY OBJECT_DEPENDS
    ${PROJECT_SOURCE_DIR}/shims/nccl/names.def)
endif()
# libplait_mpi.so, for LD_PRELOAD: the drop-in under MPI, which finds the program's MPI at its first call.
file(GLOB PLAIT_MPI_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/shims/mpi/*/*.cpp)
add_library(plait_mpi SHARED ${PLAIT_MPI_SOURCES} ${PROJECT_SOURCE_DIR}/shims/nccl/arc4random.cpp)
target_include_directories(plait_mpi PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(plait_mpi PRIVATE plait_comm)
plait_precompile(plait_mpi)
target_link_options(plait_mpi PRIVATE -Wl,--exclude-libs,ALL -Wl,-z,nodelete
  -Wl,--version-script=${PROJECT_SOURCE_DIR}/shims/mpi/intercept/exports.map)
if(NOT PLAIT_SANITIZE)
  target_link_options(plait_mpi PRIVATE -static-libstdc++ -Wl,--no-undefined)
endif()
set_target_properties(plait_mpi PROPERTIES CXX_VISIBILITY_PRESET hidden
  LINK_DEPENDS ${PROJECT_SOURCE_DIR}/shims/mpi/intercept/exports.map
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/shims)
# libplait_mark.so is empty. The loader lists later libraries behind it (shims/mpi/abi/libraries.hpp).
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/mark.c CONTENT "")
add_library(plait_mark MODULE ${PROJECT_BINARY_DIR}/mark.c)
set_target_properties(plait_mark PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/shims)
add_dependencies(plait_mpi plait_mark)
list(APPEND PLAIT_DOORS plait_mpi plait_mark)

if(PLAIT_PYTHON)
  install(TARGETS ${PLAIT_DOORS} LIBRARY DESTINATION plait)
  if(TARGET plait_forward)
    install(TARGETS plait_forward LIBRARY DESTINATION plait/nccl)
  endif()
endif()

if(PLAIT_TESTS)
  include(${PROJECT_SOURCE_DIR}/tests/shims/CMakeLists.txt)
endif()
