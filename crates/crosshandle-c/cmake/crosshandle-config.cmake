# The CMake package of Crosshandle. `find_package(crosshandle 0.1)` defines these targets:
#
#   crosshandle::crosshandle   the shared library
#   crosshandle::static        the static library
#
# The file finds the library relative to itself, so an installed directory can be moved.

get_filename_component(_crosshandle_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
find_path(CROSSHANDLE_INCLUDE_DIR crosshandle.h
          PATHS "${_crosshandle_prefix}/include" NO_DEFAULT_PATH)
foreach(_crosshandle_kind IN ITEMS so a)
  find_library(CROSSHANDLE_LIBRARY_${_crosshandle_kind} "libcrosshandle.${_crosshandle_kind}"
               PATHS "${_crosshandle_prefix}"
               PATH_SUFFIXES lib lib64 "lib/${CMAKE_LIBRARY_ARCHITECTURE}"
               NO_DEFAULT_PATH)
endforeach()

include(CMakeFindDependencyMacro)
find_dependency(Threads)
if(CROSSHANDLE_INCLUDE_DIR AND CROSSHANDLE_LIBRARY_so AND NOT TARGET crosshandle::crosshandle)
  add_library(crosshandle::crosshandle SHARED IMPORTED)
  set_target_properties(crosshandle::crosshandle PROPERTIES
    IMPORTED_LOCATION "${CROSSHANDLE_LIBRARY_so}"
    INTERFACE_INCLUDE_DIRECTORIES "${CROSSHANDLE_INCLUDE_DIR}")
endif()
if(CROSSHANDLE_INCLUDE_DIR AND CROSSHANDLE_LIBRARY_a AND NOT TARGET crosshandle::static)
  add_library(crosshandle::static STATIC IMPORTED)
  set_target_properties(crosshandle::static PROPERTIES
    IMPORTED_LOCATION "${CROSSHANDLE_LIBRARY_a}"
    INTERFACE_INCLUDE_DIRECTORIES "${CROSSHANDLE_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES "Threads::Threads;dl;m;gcc_s")
endif()
if(NOT TARGET crosshandle::crosshandle)
  set(crosshandle_FOUND FALSE)
  set(crosshandle_NOT_FOUND_MESSAGE "libcrosshandle.so is not under ${_crosshandle_prefix}")
endif()
