# The libraries that offgraph is linked with. Read by its own build, and by find_package(offgraph) where it is
# installed.
#
# offgraph_find_dependency(name) finds one and makes the target offgraph_dep_<name>, which hides the rest.
# OFFGRAPH_DEPS is the folder with the MLX and ExecuTorch wheels.

# Makes offgraph_dep_<name>. Its headers are system headers (it is imported): their warnings are not ours.
function(offgraph_dependency name)
  cmake_parse_arguments(ARG "" "" "INCLUDES;LIBRARIES;DEFINITIONS" ${ARGN})
  add_library(offgraph_dep_${name} INTERFACE IMPORTED)
  target_include_directories(offgraph_dep_${name} INTERFACE ${ARG_INCLUDES})
  target_link_libraries(offgraph_dep_${name} INTERFACE ${ARG_LIBRARIES})
  target_compile_definitions(offgraph_dep_${name} INTERFACE ${ARG_DEFINITIONS})
endfunction()

# Finds a header and a library by name, and says which Debian package brings them where they are missing.
function(offgraph_find_library out_header_dir out_library header library package)
  find_path(${out_header_dir} ${header})
  find_library(${out_library} ${library})
  if(NOT ${out_header_dir} OR NOT ${out_library})
    message(FATAL_ERROR "${header} or lib${library} is missing: apt-get install ${package}")
  endif()
endfunction()

# offgraph_find_simple(name header library package): a library with one header folder and nothing special about it.
function(offgraph_find_simple name header library package)
  cmake_parse_arguments(ARG "" "" "LIBRARIES;DEFINITIONS" ${ARGN})
  string(TOUPPER ${name} prefix)
  offgraph_find_library(${prefix}_INCLUDE ${prefix}_LIBRARY ${header} ${library} ${package})
  offgraph_dependency(${name} INCLUDES ${${prefix}_INCLUDE} LIBRARIES ${${prefix}_LIBRARY} ${ARG_LIBRARIES}
                      DEFINITIONS ${ARG_DEFINITIONS})
endfunction()

# OpenBLAS comes first on every link line, so that its cblas_sgemm is found before the reference BLAS that the MLX wheel
# brings (30 to 100 times slower).
function(offgraph_find_mlx)
  set(MLX_DIR ${OFFGRAPH_DEPS}/mlx/share/cmake/MLX)
  find_package(MLX CONFIG REQUIRED)
  offgraph_find_library(OPENBLAS_INCLUDE OPENBLAS_LIBRARY cblas.h openblas libopenblas-dev)
  offgraph_dependency(mlx LIBRARIES -Wl,--no-as-needed ${OPENBLAS_LIBRARY} -Wl,--as-needed mlx)
endfunction()

# The package's imported targets need CMake 3.28; its variables do not. Only the runtime is linked: kernels and other
# backends are the application's choice.
function(offgraph_find_executorch)
  set(CMAKE_MESSAGE_LOG_LEVEL WARNING)
  set(executorch_DIR ${OFFGRAPH_DEPS}/executorch/share/cmake)
  find_package(executorch CONFIG REQUIRED)
  offgraph_dependency(executorch INCLUDES ${EXECUTORCH_INCLUDE_DIRS}
                      LIBRARIES ${OFFGRAPH_DEPS}/executorch/lib/libexecutorch.so
                      DEFINITIONS ${EXECUTORCH_COMPILE_DEFINITIONS})
endfunction()

function(offgraph_find_dependency name)
  if(TARGET offgraph_dep_${name})
    return()
  elseif(name STREQUAL mlx)
    offgraph_find_mlx()
  elseif(name STREQUAL executorch)
    offgraph_find_executorch()
  elseif(name STREQUAL highway)
    offgraph_find_simple(highway hwy/highway.h hwy libhwy-dev)
  elseif(name STREQUAL flatbuffers)
    offgraph_find_simple(flatbuffers flatbuffers/flatbuffers.h flatbuffers libflatbuffers-dev)
  elseif(name STREQUAL json)
    find_package(nlohmann_json REQUIRED)
    offgraph_dependency(json LIBRARIES nlohmann_json::nlohmann_json)
  elseif(name STREQUAL pcre2)
    offgraph_find_simple(pcre2 pcre2.h pcre2-8 libpcre2-dev DEFINITIONS PCRE2_CODE_UNIT_WIDTH=8)
  elseif(name STREQUAL utf8proc)
    offgraph_find_simple(utf8proc utf8proc.h utf8proc libutf8proc-dev)
  elseif(name STREQUAL cli11)
    find_package(CLI11 REQUIRED)
    offgraph_dependency(cli11 LIBRARIES CLI11::CLI11)
  elseif(name STREQUAL edit)
    offgraph_find_simple(edit histedit.h edit libedit-dev)
  else()
    message(FATAL_ERROR "offgraph knows no dependency named ${name}")
  endif()
endfunction()
