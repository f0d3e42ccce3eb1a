# find_package(estafette) gives estafette::estafette (shared) and estafette::static.

get_filename_component(_estafette_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(THREADS_PREFER_PTHREAD_FLAG ON)
include(CMakeFindDependencyMacro)
find_dependency(Threads)

if(NOT TARGET estafette::estafette)
  add_library(estafette::estafette SHARED IMPORTED)
  set_target_properties(estafette::estafette PROPERTIES
    IMPORTED_LOCATION "${_estafette_prefix}/lib/libestafette.so"
    IMPORTED_SONAME "libestafette.so.0"
    INTERFACE_INCLUDE_DIRECTORIES "${_estafette_prefix}/include")
  add_library(estafette::static STATIC IMPORTED)
  set_target_properties(estafette::static PROPERTIES
    IMPORTED_LOCATION "${_estafette_prefix}/lib/libestafette.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_estafette_prefix}/include"
    # The library's threads live on when a shared library that holds it is closed.
    INTERFACE_LINK_OPTIONS "LINKER:-z,nodelete"
    INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};m")
endif()

unset(_estafette_prefix)
