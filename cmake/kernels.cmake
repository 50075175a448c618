# src/exec/cuda/kernels/*.cu -> one fatbin a file, embedded in plait_exec as read-only data, and a
# table of them. No CMake CUDA language and no cudart: host code loads the blobs by the driver API.
# Without nvcc (or with PLAIT_CUDA=0) the table is empty and everything else still builds.
set(PLAIT_CUDA_ARCHS 90 CACHE STRING "compute capabilities to compile for, as 80;90;100; the last also as PTX")

function(plait_find_nvcc result)
  set(hints $ENV{CUDACXX} $ENV{CUDA_HOME}/bin/nvcc /usr/local/cuda/bin/nvcc)
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
    message(FATAL_ERROR "PLAIT_CUDA=1 wants nvcc, found none: set CUDACXX, or install cuda-toolkit[nvcc,nvvm,crt,cudart]==13.0.2")
  endif()
endif()
get_target_property(PLAIT_EXEC_TYPE plait_exec TYPE)
if(NOT PLAIT_EXEC_TYPE STREQUAL "STATIC_LIBRARY")
  return()
endif()

set(PLAIT_GENCODE "")
foreach(arch ${PLAIT_CUDA_ARCHS})
  list(APPEND PLAIT_GENCODE -gencode arch=compute_${arch},code=sm_${arch})
  set(PLAIT_LAST_ARCH ${arch})
endforeach()
list(APPEND PLAIT_GENCODE -gencode arch=compute_${PLAIT_LAST_ARCH},code=compute_${PLAIT_LAST_ARCH})

# -fmad=false: a multiply and an add round twice, as on the CPU.
set(PLAIT_NVCC_FLAGS -fatbin -std=c++20 -O3 -fmad=false -Werror all-warnings
  -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/include -compress-mode=size)
set(kernel_folder ${PROJECT_BINARY_DIR}/kernels)
file(MAKE_DIRECTORY ${kernel_folder})
set(assembly "# Device code as data.\n.section .note.GNU-stack,\"\",%progbits\n.section .rodata\n")
set(table "")
set(fatbins "")
if(PLAIT_NVCC)
  file(GLOB kernel_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/exec/cuda/kernels/*.cu)
  foreach(source ${kernel_sources})
    get_filename_component(stem ${source} NAME_WE)
    set(fatbin ${kernel_folder}/${stem}.fatbin)
    add_custom_command(OUTPUT ${fatbin} DEPENDS ${source} DEPFILE ${fatbin}.d VERBATIM
      COMMAND ${PLAIT_NVCC} ${PLAIT_NVCC_FLAGS} ${PLAIT_GENCODE} -MD -MF ${fatbin}.d -MT ${fatbin} -o ${fatbin} ${source}
      COMMENT "nvcc ${stem}.cu")
    list(APPEND fatbins ${fatbin})
    string(APPEND assembly ".balign 64\nplait_fatbin_${stem}:\n.incbin \"${fatbin}\"\n.byte 0\n")
    string(APPEND table ".quad plait_fatbin_${stem}\n")
  endforeach()
endif()
string(APPEND assembly ".section .data.rel.ro,\"aw\"\n.balign 8\n.globl plait_fatbins\n"
  ".hidden plait_fatbins\nplait_fatbins:\n${table}.quad 0\n")
file(GENERATE OUTPUT ${kernel_folder}/fatbins.S CONTENT "${assembly}")
set_source_files_properties(${kernel_folder}/fatbins.S PROPERTIES GENERATED TRUE OBJECT_DEPENDS "${fatbins}")
target_sources(plait_exec PRIVATE ${kernel_folder}/fatbins.S)
if(PLAIT_NVCC)
  message(STATUS "plait: device code by ${PLAIT_NVCC} for ${PLAIT_CUDA_ARCHS}")
else()
  message(STATUS "plait: no device code (PLAIT_CUDA=${PLAIT_CUDA}, no nvcc)")
endif()
