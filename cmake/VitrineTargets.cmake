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

find_program(VITRINE_CCACHE ccache)
if(VITRINE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${VITRINE_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${VITRINE_CCACHE})
endif()

configure_file("${PROJECT_SOURCE_DIR}/cmake/version.h.in"
               "${PROJECT_BINARY_DIR}/include/vitrine/version.h" @ONLY)

# One precompiled ATen serves every translation unit that includes it.
function(vitrine_use_aten target)
  if(NOT TARGET vitrine_aten_pch)
    file(WRITE "${PROJECT_BINARY_DIR}/aten_pch.cc.new" "namespace vitrine {}\n")
    file(COPY_FILE "${PROJECT_BINARY_DIR}/aten_pch.cc.new" "${PROJECT_BINARY_DIR}/aten_pch.cc"
         ONLY_IF_DIFFERENT)
    add_library(vitrine_aten_pch OBJECT "${PROJECT_BINARY_DIR}/aten_pch.cc")
    target_compile_options(vitrine_aten_pch PRIVATE -fPIC)
    target_link_libraries(vitrine_aten_pch PRIVATE vitrine_flags vitrine_torch_cpu)
    target_precompile_headers(vitrine_aten_pch PRIVATE <ATen/ATen.h>)
    # 400 MB, and different each time: nothing for a cache.
    set_target_properties(vitrine_aten_pch PROPERTIES CXX_COMPILER_LAUNCHER "")
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
    INSTALL_RPATH "$ORIGIN;${VITRINE_TORCH_LIB_DIR}")
endfunction()
