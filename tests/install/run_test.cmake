# Run by CTest (CMakeLists.txt has the variables). Anything that fails ends the test.
function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(result)
    string(REPLACE ";" " " command "${ARGV}")
    message(FATAL_ERROR "${command}\nended with ${result}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

set(prefix ${WORK}/prefix)
file(REMOVE_RECURSE ${prefix} ${WORK}/consumer)
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
foreach(path bin/offgraph lib/liboffgraph_executorch.so lib/liboffgraph_program.a
             include/offgraph/delegate/offgraph_executorch.h lib/offgraph/python/offgraph/__init__.py)
  if(NOT EXISTS ${prefix}/${path})
    message(FATAL_ERROR "${path} was not installed")
  endif()
endforeach()

set(flags "")
if(SANITIZE)
  set(flags "-fsanitize=${SANITIZE}")
endif()
run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${SOURCE} -B ${WORK}/consumer -D CMAKE_BUILD_TYPE=${CONFIG}
    -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_C_COMPILER=${C_COMPILER} -D CMAKE_PREFIX_PATH=${prefix}
    -D CMAKE_CXX_FLAGS=${flags} -D CMAKE_C_FLAGS=${flags})
run(${CMAKE_COMMAND} --build ${WORK}/consumer)
run(${WORK}/consumer/consumer ${MODEL})
if(NOT output MATCHES "first token 403\n")
  message(FATAL_ERROR "the consumer printed:\n${output}")
endif()
run(${WORK}/consumer/with_plugin ${MODEL})
run(${prefix}/bin/offgraph --help)

# Nothing in the installed program or plugin is found through the build tree.
foreach(path bin/offgraph lib/liboffgraph_executorch.so)
  run(ldd ${prefix}/${path})
  if(output MATCHES "not found" OR output MATCHES "${BUILD}/")
    message(FATAL_ERROR "${path} does not stand alone:\n${output}")
  endif()
endforeach()
