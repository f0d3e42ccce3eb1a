# find_package(estafette) gives estafette::estafette: the library in the Python package, for code that Python loads.

get_filename_component(_estafette_package "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)

if(NOT TARGET estafette::estafette)
  # By its name and not by its path: a module that is installed elsewhere finds the library that Python has loaded.
  add_library(estafette::estafette INTERFACE IMPORTED)
  set_target_properties(estafette::estafette PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${_estafette_package}/include"
    INTERFACE_LINK_DIRECTORIES "${_estafette_package}"
    INTERFACE_LINK_LIBRARIES "-l:_estafette.abi3.so"
    INTERFACE_LINK_OPTIONS "LINKER:-rpath,${_estafette_package}")
endif()

unset(_estafette_package)
