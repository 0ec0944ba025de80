# Language level, warnings and sanitizers, for every target of the project.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

add_library(offgraph_compiler INTERFACE)
# A product and a sum are fused only where the code says so: the same expression inlined in two places must give the
# same bits in both.
target_compile_options(offgraph_compiler INTERFACE -ffp-contract=off)
target_compile_options(offgraph_compiler INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False alarms on "text" + std::string at -O3, https://gcc.gnu.org/bugzilla/show_bug.cgi?id=105651.
  target_compile_options(offgraph_compiler INTERFACE -Wno-restrict)
endif()
if(OFFGRAPH_WERROR)
  target_compile_options(offgraph_compiler INTERFACE -Werror)
endif()
if(OFFGRAPH_SANITIZE)
  target_compile_options(offgraph_compiler INTERFACE -fsanitize=${OFFGRAPH_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(offgraph_compiler INTERFACE -fsanitize=${OFFGRAPH_SANITIZE})
  if(OFFGRAPH_SANITIZE MATCHES undefined)
    target_compile_options(offgraph_compiler INTERFACE -fno-sanitize-recover=undefined)
  endif()
endif()

find_program(OFFGRAPH_CCACHE ccache)
if(OFFGRAPH_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${OFFGRAPH_CCACHE})
endif()
