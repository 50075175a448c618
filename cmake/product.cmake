# Builds libplait.so (all folders, C and C++ API) and the Python module, which links it.
file(GLOB binding_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bindings/bind_*.cpp)
get_target_property(PLAIT_COMM_TYPE plait_comm TYPE)
if(PLAIT_COMM_TYPE STREQUAL "STATIC_LIBRARY")
  file(WRITE ${PROJECT_BINARY_DIR}/anchor.cpp "// libplait has no code of its own: it joins the folders' libraries.\n")
  add_library(plait SHARED ${PROJECT_BINARY_DIR}/anchor.cpp)
  foreach(folder base driver topo plan planner verify sim cpu gpu comm)
    get_target_property(kind plait_${folder} TYPE)
    if(kind STREQUAL "STATIC_LIBRARY")
      target_link_libraries(plait PRIVATE -Wl,--whole-archive plait_${folder} -Wl,--no-whole-archive)
    endif()
  endforeach()
  target_include_directories(plait INTERFACE ${PROJECT_SOURCE_DIR}/include)
  set_target_properties(plait PROPERTIES SOVERSION ${PROJECT_VERSION_MAJOR})  # no VERSION: a wheel cannot hold links, and would hold the file twice
  target_link_options(plait PRIVATE -Wl,-z,relro,-z,now -Wl,--no-undefined
    -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/exports.map)
  set_target_properties(plait PROPERTIES LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/exports.map)
endif()

if(PLAIT_PYTHON)
  find_package(nanobind CONFIG QUIET)
  if(NOT nanobind_FOUND)
    execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
      OUTPUT_VARIABLE nanobind_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE)
    find_package(nanobind CONFIG REQUIRED)
  endif()
  if(PLAIT_ABI3)  # one file for every Python from 3.10 on, over the package nanobind-backend
    nanobind_add_module(_core BACKEND_MODULE nanobind_backend STABLE_ABI_VERSION 3.10 ${binding_sources})
  else()
    nanobind_add_module(_core NB_STATIC ${binding_sources})
  endif()
  set(modules _core)
  if(PLAIT_TESTS AND NOT PLAIT_ABI3 AND NOT nanobind_VERSION VERSION_LESS 3)  # the module of wheels: `ninja core_abi3`
    nanobind_add_module(core_abi3 BACKEND_MODULE nanobind_backend STABLE_ABI_VERSION 3.10 ${binding_sources})
    set_target_properties(core_abi3 PROPERTIES EXCLUDE_FROM_ALL ON OUTPUT_NAME _core
      LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/abi3 BUILD_RPATH "$ORIGIN" BUILD_WITH_INSTALL_RPATH ON)
    target_compile_options(core_abi3 PRIVATE -O0 -g0)  # tests only read it: saves half a minute
    list(APPEND modules core_abi3)
  endif()
  foreach(module ${modules})
    plait_precompile(${module} nanobind/nanobind.h)
    target_include_directories(${module} PRIVATE ${PROJECT_SOURCE_DIR}/bindings ${PROJECT_SOURCE_DIR}/src)
    target_include_directories(${module} SYSTEM PRIVATE ${PLAIT_FMT_INCLUDE})
    target_link_libraries(${module} PRIVATE plait)
    target_compile_definitions(${module} PRIVATE PLAIT_VERSION="${PROJECT_VERSION}")
    target_link_options(${module} PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/module.map)
    set_target_properties(${module} PROPERTIES INSTALL_RPATH "$ORIGIN" LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/module.map)
  endforeach()
  set_target_properties(plait PROPERTIES INSTALL_RPATH "$ORIGIN")
  nanobind_add_stub(_core_stub MODULE _core OUTPUT ${PROJECT_BINARY_DIR}/_core.pyi
    PATTERN_FILE ${PROJECT_SOURCE_DIR}/bindings/stub.pat PYTHON_PATH $<TARGET_FILE_DIR:_core> DEPENDS _core)
  install(TARGETS _core plait plait_kernels LIBRARY DESTINATION plait NAMELINK_SKIP)
  install(FILES ${PROJECT_BINARY_DIR}/_core.pyi DESTINATION plait)
  install(FILES ${PROJECT_SOURCE_DIR}/gpus/models.json DESTINATION plait/machines RENAME gpu_models.json)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/plait DESTINATION plait/include)
  # For C and C++ programs: python -m plait --cmakedir, --pkgconfigdir, --libdir, --includes.
  include(CMakePackageConfigHelpers)
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/plaitConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/plaitConfig.cmake.in ${PROJECT_BINARY_DIR}/plaitConfig.cmake @ONLY)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/plait.pc.in ${PROJECT_BINARY_DIR}/plait.pc @ONLY)
  file(WRITE ${PROJECT_BINARY_DIR}/linker/libplait.so "INPUT(libplait.so.${PROJECT_VERSION_MAJOR})\n")  # wheels cannot hold links
  install(FILES ${PROJECT_BINARY_DIR}/plaitConfig.cmake ${PROJECT_BINARY_DIR}/plaitConfigVersion.cmake
    DESTINATION plait/share/cmake/plait)
  install(FILES ${PROJECT_BINARY_DIR}/plait.pc DESTINATION plait/share/pkgconfig)
  install(FILES ${PROJECT_BINARY_DIR}/linker/libplait.so DESTINATION plait)
endif()
