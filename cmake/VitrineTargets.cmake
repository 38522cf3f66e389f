# SPDX-License-Identifier: Apache-2.0
# Flags and target helpers. Everything here is on our own targets only, never global.

# Warnings are errors; an FMA happens only where one is written (docs/numerics.md).
add_library(vitrine_flags INTERFACE)
target_compile_options(vitrine_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror -ffp-contract=off>
  # GCC 12 sees an overlap in `"text" + std::string` where there is none (GCC bug 105651).
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
target_include_directories(vitrine_flags INTERFACE
  "${PROJECT_SOURCE_DIR}/include" "${PROJECT_BINARY_DIR}/include" "${PROJECT_SOURCE_DIR}"
  "${PROJECT_SOURCE_DIR}/src")

# Paths are hashed as relative ones, so that a second clone finds what the first one compiled.
find_program(VITRINE_CCACHE ccache)
if(VITRINE_CCACHE)
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
      "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1 CCACHE_PCH_EXTSUM=1 ${VITRINE_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
endif()

# Rooms and the command line tool are compiled several files at a time: what their headers cost is
# paid once for each batch. Names in anonymous namespaces are therefore unique within a room.
option(VITRINE_UNITY "Compile several files of a room as one" ON)

# vitrine_unity(TARGET FILES): so many of TARGET's files at a time.
function(vitrine_unity target files)
  set_target_properties(${target} PROPERTIES
    UNITY_BUILD ${VITRINE_UNITY} UNITY_BUILD_BATCH_SIZE ${files})
  # A class of a file's own that holds another such class: no other file can include it.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endfunction()

# What a target consists of that is there for its precompiled headers.
set(VITRINE_EMPTY_SOURCE "${PROJECT_BINARY_DIR}/empty.cc")
if(NOT EXISTS "${VITRINE_EMPTY_SOURCE}")
  file(WRITE "${VITRINE_EMPTY_SOURCE}" "namespace vitrine {}\n")
endif()

# vitrine_precompile(TARGET VERSIONS HEADER...): headers that TARGET, and who reuses them, parses once.
# GCC writes them differently each time, so ccache goes by what they were made of: VERSIONS, the
# compiler and its flags.
function(vitrine_precompile target versions)
  target_precompile_headers(${target} PRIVATE ${ARGN})
  string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
  string(SHA256 sum "${ARGN} ${versions} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_CXX_FLAGS} \
${CMAKE_CXX_FLAGS_${type}} ${target}")
  file(WRITE "${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/${target}.dir/cmake_pch.hxx.gch.sum" "${sum}")
  # Hundreds of megabytes, and nothing that a cache would find again.
  set_target_properties(${target} PROPERTIES CXX_COMPILER_LAUNCHER "")
endfunction()

configure_file("${PROJECT_SOURCE_DIR}/cmake/version.h.in"
               "${PROJECT_BINARY_DIR}/include/vitrine/version.h" @ONLY)

# One precompiled ATen serves every translation unit that includes it.
function(vitrine_use_aten target)
  if(NOT TARGET vitrine_aten_pch)
    add_library(vitrine_aten_pch OBJECT "${VITRINE_EMPTY_SOURCE}")
    target_compile_options(vitrine_aten_pch PRIVATE -fPIC)
    target_link_libraries(vitrine_aten_pch PRIVATE vitrine_flags vitrine_torch_cpu)
    vitrine_precompile(vitrine_aten_pch "${VITRINE_TORCH_VERSION}" <ATen/ATen.h>)
  endif()
  # ccache can see through a precompiled header only with -fpch-preprocess.
  target_compile_options(${target} PRIVATE -fPIC -fpch-preprocess)
  target_link_libraries(${target} PRIVATE vitrine_flags vitrine_torch_cpu)
  target_precompile_headers(${target} REUSE_FROM vitrine_aten_pch)
endfunction()

# libvitrine.so from the rooms' object libraries.
function(vitrine_add_library)
  set(objects ${VITRINE_ROOMS})
  list(TRANSFORM objects PREPEND vitrine_)
  foreach(object IN LISTS objects)
    set_target_properties(${object} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_link_libraries(${object} PRIVATE vitrine_flags)
  endforeach()

  add_library(vitrine SHARED)
  add_library(vitrine::vitrine ALIAS vitrine)
  target_link_libraries(vitrine PRIVATE ${objects} vitrine_kernels_cpu Threads::Threads ${CMAKE_DL_LIBS})
  target_include_directories(vitrine PUBLIC
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>"
    "$<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>"
    "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  target_compile_features(vitrine PUBLIC cxx_std_20)
  set_target_properties(vitrine PROPERTIES
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}"
    BUILD_RPATH "$ORIGIN"
    INSTALL_RPATH "$ORIGIN")
endfunction()
