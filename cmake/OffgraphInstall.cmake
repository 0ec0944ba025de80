# cmake --install: headers, libraries, the plugin, the command line, and a package for find_package(offgraph).
