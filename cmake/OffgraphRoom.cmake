# offgraph_room(name DEPENDS rooms... USES dependencies... PRIVATE_USES dependencies... SOURCES files... TESTS files...)
#
# One static library, offgraph_<name>, for offgraph/<name>. DEPENDS names other rooms, USES names dependencies of
# OffgraphLibraries that appear in the room's headers, PRIVATE_USES those that only its sources see.
# Every file in TESTS (x_test.cc) becomes a CTest test of its own, named <room>.<x>.
function(offgraph_room name)
  cmake_parse_arguments(ARG "" "" "DEPENDS;USES;PRIVATE_USES;SOURCES;TESTS;TEST_DEPENDS;BENCHMARKS" ${ARGN})
  set(target offgraph_${name})
  add_library(${target} STATIC ${ARG_SOURCES})
  add_library(offgraph::${name} ALIAS ${target})
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                              $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/generated>
                                              $<INSTALL_INTERFACE:include>)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:offgraph_compiler>)
  if(OFFGRAPH_SANITIZE AND ${name} STREQUAL "kernels")
    # Checks in code that is inlined this deep, once per instruction set, take the compiler ten minutes a file at -O2.
    target_compile_options(${target} PRIVATE -O1 -g1)
  endif()
  foreach(room ${ARG_DEPENDS})
    target_link_libraries(${target} PUBLIC offgraph_${room})
  endforeach()
  foreach(dependency ${ARG_USES})
    target_link_libraries(${target} PUBLIC offgraph_dep_${dependency})
  endforeach()
  foreach(dependency ${ARG_PRIVATE_USES})
    target_link_libraries(${target} PRIVATE offgraph_dep_${dependency})
  endforeach()
  set_property(GLOBAL APPEND PROPERTY OFFGRAPH_ROOMS ${name})
  set_property(GLOBAL PROPERTY OFFGRAPH_ROOM_${name}_DEPENDS "${ARG_DEPENDS}")
  set_property(GLOBAL PROPERTY OFFGRAPH_ROOM_${name}_USES "${ARG_USES};${ARG_PRIVATE_USES}")
  if(OFFGRAPH_BUILD_TESTS)
    foreach(test ${ARG_TESTS})
      string(REGEX REPLACE "_test\\.cc$" "" stem ${test})
      offgraph_test(${name}.${stem} SOURCES ${test} LIBRARIES ${target} ${ARG_TEST_DEPENDS})
    endforeach()
  endif()
  if(OFFGRAPH_BUILD_BENCHMARKS)
    foreach(source ${ARG_BENCHMARKS})
      string(REGEX REPLACE "\\.cc$" "" stem ${source})
      add_executable(${stem} ${source})
      target_link_libraries(${stem} PRIVATE ${target} offgraph_compiler benchmark::benchmark)
    endforeach()
  endif()
endfunction()

# offgraph_test(name SOURCES files... LIBRARIES targets...): a GoogleTest program that CTest runs as one test.
# OFFGRAPH_TEST_DATA is the folder with the project's test data, OFFGRAPH_SHARED a folder with larger sets that may
# be absent.
function(offgraph_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  string(REPLACE "." "_" target test_${name})
  add_executable(${target} ${ARG_SOURCES})
  target_link_libraries(${target} PRIVATE ${ARG_LIBRARIES} offgraph_compiler GTest::gmock GTest::gtest_main)
  target_compile_definitions(${target} PRIVATE OFFGRAPH_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data"
                                               OFFGRAPH_MODELS="${PROJECT_SOURCE_DIR}/models"
                                               OFFGRAPH_SHARED="${PROJECT_SOURCE_DIR}/../shared")
  add_test(NAME ${name} COMMAND ${target})
  set_tests_properties(${name} PROPERTIES ENVIRONMENT "${OFFGRAPH_TEST_ENVIRONMENT}")
endfunction()
