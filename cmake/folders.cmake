# Reduces the checks of sources under sanitizers, to save compile time. Options of sources follow the options of
# targets, as they must: -fno-sanitize before -fsanitize has no effect.
function(plait_check_less sources)
  if(PLAIT_SANITIZE)
    set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS "${ARGN}")
  endif()
endfunction()

# plait_folder(NAME DEPENDS ...): all sources under src/NAME as one static library plait_NAME.
# A folder with no sources yet is an empty interface.
function(plait_folder name)
  cmake_parse_arguments(ARG "" "" "DEPENDS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cpp)
  set(built "")
  if(name MATCHES "^(topo|plan|planner|verify|sim)$")  # these own values alone, and start no threads but the registry's
    set(alone ${sources})
    list(FILTER alone EXCLUDE REGEX "registry")
    if(PLAIT_UNSANITIZED)
      list(REMOVE_ITEM sources ${alone})
      set(built ${PLAIT_UNSANITIZED}/libplait_${name}.a)
    else()
      plait_check_less("${alone}" -fno-sanitize=alignment)
    endif()
  elseif(name STREQUAL "comm")  # waits more than it computes
    plait_check_less("${sources}" -O0)
  endif()
  if(sources)
    set(scope PUBLIC)
    add_library(plait_${name} STATIC ${sources})
    target_link_libraries(plait_${name} PRIVATE plait_json)
    if(PLAIT_SMALL AND NOT name MATCHES "^(cpu|gpu)$")
      target_compile_options(plait_${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O2>)
    endif()
  else()
    set(scope INTERFACE)
    add_library(plait_${name} INTERFACE)
  endif()
  target_link_libraries(plait_${name} ${scope} plait_flags ${built})
  foreach(dependency ${ARG_DEPENDS})
    target_link_libraries(plait_${name} ${scope} plait_${dependency})
  endforeach()
  if(name STREQUAL "topo" AND sources)
    include(${PROJECT_SOURCE_DIR}/cmake/topologies.cmake)  # topologies/*.json -> embedded data
  endif()
  if(name STREQUAL "gpu")
    include(${PROJECT_SOURCE_DIR}/cmake/kernels.cmake OPTIONAL)  # gpu/*/*.cu -> embedded fatbin
  endif()
endfunction()

# Adds a doctest program for each folder of tests/unit (test_NAME, linked to plait_NAME alone; test_gpu_unit for gpu,
# since test_gpu runs on GPUs), and for each of tests/{plans,conformance,property} with C++ sources (linked to everything).
function(plait_cpp_tests)
  # doctest's own code is compiled once. Tests need no more than -O1.
  add_library(plait_test_main OBJECT ${PROJECT_SOURCE_DIR}/tests/unit/main.cpp)
  target_include_directories(plait_test_main SYSTEM PRIVATE ${PLAIT_DOCTEST_INCLUDE})
  target_link_libraries(plait_test_main PRIVATE plait_flags)
  target_compile_options(plait_test_main PRIVATE -O0)
  foreach(name base driver topo plan planner verify sim cpu gpu comm)
    string(REPLACE "gpu" "gpu_unit" program ${name})
    plait_test_program(test_${program} ${PROJECT_SOURCE_DIR}/tests/unit/${name} plait_${name})
  endforeach()
  foreach(name plans conformance property)
    plait_test_program(test_${name} ${PROJECT_SOURCE_DIR}/tests/${name} plait_comm)
  endforeach()
  plait_mutants(test_conformance)
  include(${PROJECT_SOURCE_DIR}/tests/fake_gpu/CMakeLists.txt)
  include(${PROJECT_SOURCE_DIR}/tests/newcomer/CMakeLists.txt)
  plait_test_program(test_gpu_c_api ${PROJECT_SOURCE_DIR}/tests/gpu/c_api plait_comm)
  target_link_libraries(test_gpu_c_api PRIVATE ${CMAKE_DL_LIBS})
endfunction()

# Makes copies of kernels and of an engine with faults in them: "mutants/NAME".
function(plait_mutants program)
  if(NOT Python_Interpreter_FOUND)
    return()
  endif()
  set(script ${PROJECT_SOURCE_DIR}/tests/conformance/mutants.py)
  set(made ${PROJECT_BINARY_DIR}/made/mutants/faults.def)
  file(GLOB kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/gpu/ll/*.cuh)
  add_custom_command(OUTPUT ${made} COMMAND ${Python_EXECUTABLE} ${script} ${PROJECT_BINARY_DIR}/made
    DEPENDS ${script} ${kernels} ${PROJECT_SOURCE_DIR}/src/gpu/copy/scatter_ring.cpp VERBATIM)
  target_sources(${program} PRIVATE ${made})
  target_include_directories(${program} PRIVATE ${PROJECT_BINARY_DIR}/made)
endfunction()

function(plait_test_program program folder library)
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.cpp ${folder}/*.c)  # .c: users of plait.h
  if(NOT sources)
    return()
  endif()
  if(PLAIT_SANITIZE STREQUAL "thread" AND program STREQUAL "test_conformance")
    # Other files have one thread, or threads that synchronise by the rules of GPUs, unknown to ThreadSanitizer.
    list(FILTER sources INCLUDE REGEX "test_(engine_streams|executors|message_launches|one_process|pair_copies)\\.cpp$")
  endif()
  add_executable(${program} ${sources} $<TARGET_OBJECTS:plait_test_main>)
  target_compile_options(${program} PRIVATE -O1 -Wno-unknown-pragmas)  # pragmas of nvcc, in kernels on host threads
  plait_check_less("${sources}" -O0)
  target_include_directories(${program} SYSTEM PRIVATE ${PLAIT_DOCTEST_INCLUDE})
  target_include_directories(${program} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${program} PRIVATE ${library} plait_json)
  set_target_properties(${program} PROPERTIES C_STANDARD 99 C_EXTENSIONS OFF)
  set(most_s 3600)  # ends a program that hangs; `make test-long` on a busy machine takes half of it
  set(but "")
  if(program STREQUAL test_conformance)  # minutes of plays and proofs, which need not be alone
    set(files engines engine_calls engine_mutants message_plans one_process pair_copies scatter_ring_on_host)
    list(TRANSFORM files REPLACE "(.+)" "*/test_\\1.cpp")
    list(JOIN files "," files)
    set(but "-sfe=${files}")
    add_test(NAME test_emulated COMMAND ${program} "-sf=${files}")
    set_tests_properties(test_emulated PROPERTIES TIMEOUT ${most_s} COST 100)
  endif()
  add_test(NAME ${program} COMMAND ${program} ${but})
  set_tests_properties(${program} PROPERTIES TIMEOUT ${most_s})
  if(program MATCHES "comm|conformance|gpu(_c_api)?$")  # threads and processes with deadlines run alone
    set_tests_properties(${program} PROPERTIES RUN_SERIAL ON)
  elseif(program MATCHES "plans")  # the longest programs first
    set_tests_properties(${program} PROPERTIES COST 200)
  endif()
endfunction()
