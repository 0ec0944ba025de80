# cmake --install: headers, libraries, the plugin, the command line, the Python module, and a package that
# find_package(offgraph) finds. Its targets are offgraph::<room> for every room that is a library, and
# offgraph::executorch, the plugin.
#
# MLX, ExecuTorch and the system's libraries are not installed: the package finds them again, and programs find the
# wheels' libraries by the paths of this build.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/offgraph)

get_property(rooms GLOBAL PROPERTY OFFGRAPH_ROOMS)
list(REMOVE_ITEM rooms apps delegate)  # a program, and a part of the plugin
set(OFFGRAPH_INSTALLED_DEPENDENCIES "")
foreach(room ${rooms})
  set_target_properties(offgraph_${room} PROPERTIES EXPORT_NAME ${room})
  install(TARGETS offgraph_${room} EXPORT offgraph ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  get_property(uses GLOBAL PROPERTY OFFGRAPH_ROOM_${room}_USES)
  list(APPEND OFFGRAPH_INSTALLED_DEPENDENCIES ${uses})
endforeach()
list(REMOVE_DUPLICATES OFFGRAPH_INSTALLED_DEPENDENCIES)

set_target_properties(offgraph_executorch PROPERTIES EXPORT_NAME executorch)
install(TARGETS offgraph_executorch EXPORT offgraph LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS offgraph RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
# Named, since CMake's INSTALL_RPATH_USE_LINK_PATH leaves out folders of the source tree, which these may be.
# In the build folder they have the same paths: CMake would else fill the place of a longer one with empty paths, and
# each of them means the folder that the program is called from.
set_target_properties(offgraph offgraph_executorch PROPERTIES
  BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "${OFFGRAPH_DEPS}/mlx/lib;${OFFGRAPH_DEPS}/executorch/lib")

install(DIRECTORY ${PROJECT_SOURCE_DIR}/offgraph DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h" PATTERN "*-inl.h" EXCLUDE PATTERN apps EXCLUDE)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/python/offgraph DESTINATION ${CMAKE_INSTALL_LIBDIR}/offgraph/python
        FILES_MATCHING PATTERN "*.py")

install(EXPORT offgraph NAMESPACE offgraph:: DESTINATION ${package_dir} FILE offgraph-targets.cmake)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/offgraph-config.cmake.in
                              ${PROJECT_BINARY_DIR}/offgraph-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/offgraph-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/offgraph-config.cmake ${PROJECT_BINARY_DIR}/offgraph-config-version.cmake
              ${PROJECT_SOURCE_DIR}/cmake/OffgraphLibraries.cmake DESTINATION ${package_dir})
