# SPDX-License-Identifier: Apache-2.0
# libtorch, taken out of PyPI's torch wheel. Torch's own CMake package links libtorch_cuda whole, and
# a CPU process must never map that, so the libraries are named here one by one. The installed
# package ships this file and includes it for its component torch, with VITRINE_TORCH_REMEMBERED_DIR
# set.
#
# In:  VITRINE_TORCH_DIR  the folder site-packages/torch (found in the virtual environment if unset)
# Out: VITRINE_TORCH_PROBLEM (what is missing; empty: nothing), and where nothing is
#      vitrine_torch_cpu, vitrine_torch_cuda (imported), VITRINE_TORCH_LIB_DIR
include("${CMAKE_CURRENT_LIST_DIR}/VitrinePython.cmake")

set(VITRINE_TORCH_VERSION 2.11.0)
set(VITRINE_TORCH_DIR "${VITRINE_TORCH_REMEMBERED_DIR}" CACHE PATH
    "The torch folder of a Python site-packages folder that holds torch ${VITRINE_TORCH_VERSION}")
if(NOT VITRINE_TORCH_DIR)
  vitrine_find_python_package(torch found)
  set_property(CACHE VITRINE_TORCH_DIR PROPERTY VALUE "${found}")
endif()

set(VITRINE_TORCH_PROBLEM "")
set(version_file "${VITRINE_TORCH_DIR}/version.py")
if(NOT VITRINE_TORCH_DIR)
  set(VITRINE_TORCH_PROBLEM "no torch in the virtual environment ${VITRINE_VENV}")
elseif(NOT EXISTS "${version_file}")
  set(VITRINE_TORCH_PROBLEM "VITRINE_TORCH_DIR is ${VITRINE_TORCH_DIR}, where there is no version.py")
else()
  file(STRINGS "${version_file}" version_line REGEX "^__version__")
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" found_version "${version_line}")
  if(NOT found_version STREQUAL VITRINE_TORCH_VERSION)
    set(VITRINE_TORCH_PROBLEM "${version_file} is of ${found_version}, not ${VITRINE_TORCH_VERSION}")
  endif()
endif()
if(VITRINE_TORCH_PROBLEM)
  return()
endif()

set(VITRINE_TORCH_LIB_DIR "${VITRINE_TORCH_DIR}/lib")
get_filename_component(site_packages "${VITRINE_TORCH_DIR}" DIRECTORY)
set(VITRINE_TORCH_CUDA_INCLUDE_DIR "${site_packages}/nvidia/cu13/include")

foreach(library c10 torch_cpu c10_cuda torch_cuda)
  if(NOT TARGET vitrine_${library}_library)
    add_library(vitrine_${library}_library SHARED IMPORTED)
    set_target_properties(vitrine_${library}_library PROPERTIES
      IMPORTED_LOCATION "${VITRINE_TORCH_LIB_DIR}/lib${library}.so"
      IMPORTED_SONAME "lib${library}.so")
  endif()
endforeach()

# What CPU code compiles and links against.
if(NOT TARGET vitrine_torch_cpu)
  add_library(vitrine_torch_cpu INTERFACE IMPORTED)
  target_include_directories(vitrine_torch_cpu SYSTEM INTERFACE
    "${VITRINE_TORCH_DIR}/include" "${VITRINE_TORCH_DIR}/include/torch/csrc/api/include")
  target_link_libraries(vitrine_torch_cpu INTERFACE
    vitrine_torch_cpu_library vitrine_c10_library)
  # The libraries that libtorch_cpu itself needs stand beside torch in site-packages.
  target_link_options(vitrine_torch_cpu INTERFACE
    "LINKER:-rpath-link,${site_packages}/nvidia/cu13/lib" "LINKER:-rpath-link,${VITRINE_TORCH_LIB_DIR}")
endif()

# What the CUDA backend, and nothing else, links against.
if(NOT TARGET vitrine_torch_cuda)
  add_library(vitrine_torch_cuda INTERFACE IMPORTED)
  target_link_libraries(vitrine_torch_cuda INTERFACE
    vitrine_torch_cpu vitrine_torch_cuda_library vitrine_c10_cuda_library)
endif()
