# Compiles each src/gpu/*/*.cu to a fatbin, and links a table of all fatbins as read-only data: into
# libplait_kernels.so, which serves all libraries of its folder, and into programs for GPUs. Host code loads the blobs
# by the driver API, without CMake's CUDA language or cudart. Without nvcc (or with PLAIT_CUDA=0) the table is empty and
# the rest still builds. Code for 8.0 also runs on 8.6, 8.7 and 8.9, code for 10.0 and 12.0 on later GPUs of the same
# generation, PTX on other generations. Code for one architecture adds 0.5 MB (before 9.0) to 1.3 MB to a wheel, PTX as
# much again, and a wheel stays under 12 MB. The oldest architecture is 8.0: the compiler of CUDA 13 dropped V100 (7.0).
set(PLAIT_CUDA_ARCHS "80-real;90;100-real;120-real" CACHE STRING
  "compute capabilities to compile for, as CMAKE_CUDA_ARCHITECTURES has them: 90 = code and PTX, 90-real = code, 90-virtual = PTX")

set(PLAIT_CUDA_FLAGS "" CACHE STRING "more options of nvcc")

function(plait_find_nvcc result)
  set(hints $ENV{CUDACXX} $ENV{CUDA_HOME}/bin/nvcc $ENV{CUDA_PATH}/bin/nvcc /usr/local/cuda/bin/nvcc)
  if(Python_Interpreter_FOUND)  # the PyPI wheels put it in site-packages/nvidia/cu13/bin
    execute_process(COMMAND ${Python_EXECUTABLE} -c
      "import sys;print(';'.join(p+'/nvidia/cu13/bin/nvcc' for p in sys.path if p))"
      OUTPUT_VARIABLE wheels OUTPUT_STRIP_TRAILING_WHITESPACE)
    list(APPEND hints ${wheels})
  endif()
  foreach(hint ${hints})
    if(EXISTS ${hint})
      set(${result} ${hint} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  find_program(PLAIT_NVCC_ON_PATH nvcc)
  if(PLAIT_NVCC_ON_PATH)
    set(${result} ${PLAIT_NVCC_ON_PATH} PARENT_SCOPE)
  endif()
endfunction()

set(PLAIT_NVCC "")
if(NOT PLAIT_CUDA STREQUAL "0")
  plait_find_nvcc(PLAIT_NVCC)
  if(PLAIT_CUDA STREQUAL "1" AND NOT PLAIT_NVCC)
    message(FATAL_ERROR "PLAIT_CUDA=1 wants nvcc, found none: set CUDACXX, or install cuda-toolkit[nvcc,nvvm,crt,cudart,cccl]==13.0.2")
  endif()
endif()
get_target_property(PLAIT_GPU_TYPE plait_gpu TYPE)
if(NOT PLAIT_GPU_TYPE STREQUAL "STATIC_LIBRARY")
  return()
endif()

set(PLAIT_GENCODE "")
set(PLAIT_BUILT_FOR "")  # for people: "8.0, 9.0, PTX of 9.0"
foreach(arch ${PLAIT_CUDA_ARCHS})
  if(NOT arch MATCHES "^([0-9]+)([0-9])(-real|-virtual)?$" OR CMAKE_MATCH_1 LESS 8)
    message(FATAL_ERROR "PLAIT_CUDA_ARCHS: wanted compute capabilities from 80 on, as 80;90 or 80-real;90-virtual, found ${arch}")
  endif()
  set(number ${CMAKE_MATCH_1}${CMAKE_MATCH_2})
  set(capability "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}")
  if(NOT CMAKE_MATCH_3 STREQUAL "-virtual")
    list(APPEND PLAIT_GENCODE -gencode arch=compute_${number},code=sm_${number})
    list(APPEND PLAIT_BUILT_FOR ${capability})
  endif()
  if(NOT CMAKE_MATCH_3 STREQUAL "-real")
    list(APPEND PLAIT_GENCODE -gencode arch=compute_${number},code=compute_${number})
    list(APPEND PLAIT_BUILT_FOR "PTX of ${capability}")
  endif()
endforeach()
list(JOIN PLAIT_BUILT_FOR ", " PLAIT_BUILT_FOR)

# -fmad=false: a multiply and an add round twice, as they do on the CPU.
set(PLAIT_NVCC_FLAGS -fatbin -std=c++20 -O3 -fmad=false -Werror all-warnings
  -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/include -compress-mode=size --threads 2)
separate_arguments(more_flags UNIX_COMMAND "${PLAIT_CUDA_FLAGS}")
list(APPEND PLAIT_NVCC_FLAGS ${more_flags})
set(kernel_folder ${PROJECT_BINARY_DIR}/kernels)
file(MAKE_DIRECTORY ${kernel_folder})
# plait_fatbin(source.cu STEM FATBIN): compiles device code to a file; sets STEM and FATBIN to its names.
function(plait_fatbin source stem_name fatbin_name)
  get_filename_component(stem ${source} NAME_WE)
  set(fatbin ${kernel_folder}/${stem}.fatbin)
  add_custom_command(OUTPUT ${fatbin} DEPENDS ${source} DEPFILE ${fatbin}.d VERBATIM
    COMMAND ${PLAIT_NVCC} ${PLAIT_NVCC_FLAGS} ${PLAIT_GENCODE} -MD -MF ${fatbin}.d -MT ${fatbin} -o ${fatbin} ${source}
    COMMENT "nvcc ${stem}.cu")
  set(${stem_name} ${stem} PARENT_SCOPE)
  set(${fatbin_name} ${fatbin} PARENT_SCOPE)
endfunction()

set(assembly "# Device code as data.\n.section .note.GNU-stack,\"\",%progbits\n.section .rodata\n")
string(APPEND assembly ".globl plait_built_for\n"
  "plait_built_for: .asciz \"${PLAIT_BUILT_FOR}\"\n")
set(table "")
set(fatbins "")
if(PLAIT_NVCC)
  file(GLOB kernel_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/gpu/*/*.cu)
  foreach(source ${kernel_sources})
    plait_fatbin(${source} stem fatbin)
    list(APPEND fatbins ${fatbin})
    string(APPEND assembly ".balign 64\nplait_fatbin_${stem}:\n.incbin \"${fatbin}\"\n.byte 0\n")
    string(APPEND table ".quad plait_fatbin_${stem}\n")
  endforeach()
endif()
string(APPEND assembly ".section .data.rel.ro,\"aw\"\n.balign 8\n.globl plait_fatbins\n"
  "plait_fatbins:\n${table}.quad 0\n")
set(device_code ${kernel_folder}/fatbins.S)
file(GENERATE OUTPUT ${device_code} CONTENT "${assembly}")
set_source_files_properties(${device_code} PROPERTIES GENERATED TRUE OBJECT_DEPENDS "${fatbins}")
add_library(plait_kernels SHARED ${device_code})
set_target_properties(plait_kernels PROPERTIES LINKER_LANGUAGE C)
target_link_options(plait_kernels PRIVATE -nostdlib)
add_custom_command(TARGET plait_kernels POST_BUILD  # a copy next to the drop-ins, as in an installed plait
  COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/shims
  COMMAND ${CMAKE_COMMAND} -E copy $<TARGET_FILE:plait_kernels> ${PROJECT_BINARY_DIR}/shims)
add_dependencies(plait_gpu plait_kernels)
if(PLAIT_NVCC)
  message(STATUS "plait: device code by ${PLAIT_NVCC} for ${PLAIT_CUDA_ARCHS}")
else()
  message(STATUS "plait: no device code (PLAIT_CUDA=${PLAIT_CUDA}, no nvcc)")
endif()

# The kernels of test_gpu and bench_links, which the product lacks.
set(trial "")
set(trial_code "${kernel_folder}/trial.S")
if(PLAIT_NVCC)
  plait_fatbin(${PROJECT_SOURCE_DIR}/tests/gpu/trial.cu stem trial)
  set(trial_assembly ".balign 64\ntrial_fatbin:\n.incbin \"${trial}\"\n.byte 0\n")
  set(trial_word "trial_fatbin")
else()
  set(trial_assembly "")
  set(trial_word "0")
endif()
file(GENERATE OUTPUT ${trial_code} CONTENT ".section .note.GNU-stack,\"\",%progbits\n.section .rodata\n${trial_assembly}.section .data.rel.ro,\"aw\"\n.balign 8\n.globl plait_trial_fatbin\nplait_trial_fatbin:\n.quad ${trial_word}\n")
set_source_files_properties(${trial_code} PROPERTIES GENERATED TRUE OBJECT_DEPENDS "${trial}")

# plait_gpu_program(NAME [EXCLUDE_FROM_ALL] SOURCE...): adds a program linked with the folders up to gpu.
function(plait_gpu_program name)
  add_executable(${name} ${ARGN} ${trial_code} ${device_code})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE plait_gpu plait_cpu plait_planner plait_plan plait_topo plait_base)
  target_link_options(${name} PRIVATE -static-libstdc++ -static-libgcc)
endfunction()

set(unless_tested EXCLUDE_FROM_ALL)  # ninja bench_links bench_gpu_nodes bench_gpu_first_start
if(PLAIT_TESTS)
  set(unless_tested "")  # a test build compiles them too
endif()
plait_gpu_program(bench_links ${unless_tested} ${PROJECT_SOURCE_DIR}/bench/programs/gpu_links.cpp)
foreach(program gpu_nodes gpu_first_start)
  add_executable(bench_${program} ${unless_tested} ${PROJECT_SOURCE_DIR}/bench/programs/${program}.cpp ${device_code})
  target_include_directories(bench_${program} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(bench_${program} PRIVATE plait_comm)
  target_link_options(bench_${program} PRIVATE -static-libstdc++ -static-libgcc)
endforeach()
if(PLAIT_TESTS)
  file(GLOB gpu_tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/gpu/*.cpp)
  plait_gpu_program(test_gpu ${gpu_tests} ${PROJECT_SOURCE_DIR}/tests/unit/main.cpp)
  target_include_directories(test_gpu SYSTEM PRIVATE ${PLAIT_DOCTEST_INCLUDE})
  target_link_libraries(test_gpu PRIVATE plait_comm)
  target_compile_options(test_gpu PRIVATE -O1)
  plait_precompile(test_gpu doctest/doctest.h)
  target_compile_definitions(test_gpu PRIVATE DOCTEST_CONFIG_NO_POSIX_SIGNALS)
  add_test(NAME test_gpu COMMAND test_gpu)
  set_tests_properties(test_gpu PROPERTIES TIMEOUT 600)
endif()
