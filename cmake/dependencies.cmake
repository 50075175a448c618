# Finds foreign headers: nlohmann/json (core) and doctest (tests). Order: .deps, the build Python's
# site-packages (PyPI's nlohmann-json wheel), the system.
find_package(Python 3.9 COMPONENTS Interpreter Development.Module)
set(PLAIT_HINTS ${PROJECT_SOURCE_DIR}/.deps/include ${PROJECT_SOURCE_DIR}/.deps/usr/include)
if(Python_Interpreter_FOUND)
  execute_process(COMMAND ${Python_EXECUTABLE} -c
    "import sys,os;print(';'.join(p+s for p in sys.path if p for s in ('/nlohmann_json/include','/../../../include','/include')))"
    OUTPUT_VARIABLE PLAIT_PYTHON_HINTS OUTPUT_STRIP_TRAILING_WHITESPACE)
  list(APPEND PLAIT_HINTS ${PLAIT_PYTHON_HINTS})
endif()
find_path(PLAIT_JSON_INCLUDE nlohmann/json.hpp HINTS ${PLAIT_HINTS})
if(NOT PLAIT_JSON_INCLUDE)
  message(FATAL_ERROR "wanted nlohmann/json.hpp, found none: run `make deps`, or install nlohmann-json3-dev")
endif()
add_library(plait_json INTERFACE)
target_include_directories(plait_json SYSTEM INTERFACE ${PLAIT_JSON_INCLUDE})
if(PLAIT_TESTS)
  find_path(PLAIT_DOCTEST_INCLUDE doctest/doctest.h HINTS ${PLAIT_HINTS})
  if(NOT PLAIT_DOCTEST_INCLUDE)
    message(FATAL_ERROR "wanted doctest/doctest.h, found none: run `make deps`, or install doctest-dev")
  endif()
endif()
