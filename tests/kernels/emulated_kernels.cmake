# SPDX-License-Identifier: Apache-2.0
# The kernel tests once more, with the tables for AVX-512, AMX and AVX-VNNI emulated: a machine that
# lacks these instructions tests what is written with them (not what the compiler makes of it).
get_target_property(emulated_sources vitrine_kernels_cpu SOURCES)
list(FILTER emulated_sources INCLUDE REGEX "^avx512/|_vnni\\.cc$")
if(NOT emulated_sources)  # another architecture
  return()
endif()
list(TRANSFORM emulated_sources PREPEND "${PROJECT_SOURCE_DIR}/kernels/cpu/")
# Without the instructions of their emulation: it asks first whether the machine has them.
set(emulated_features "${PROJECT_SOURCE_DIR}/kernels/cpu/cpu_features.cc")
set(emulation "${CMAKE_CURRENT_SOURCE_DIR}/kernels/emulated_x86.h")
set_source_files_properties(${emulated_sources} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
set_source_files_properties(${emulated_sources} ${emulated_features} PROPERTIES
  OBJECT_DEPENDS "${emulation}")

# Objects, so that they are linked in place of the ones of their names in vitrine_kernels_cpu, which
# gives the rest. -O2: they have many instances of large templates, and with -O3 take minutes each;
# with -O1 GCC 12 gets products of three and four rows wrong whose weights are fetched ahead.
add_library(vitrine_kernels_cpu_emulated OBJECT ${emulated_sources} ${emulated_features})
target_compile_options(vitrine_kernels_cpu_emulated PRIVATE
  -O2 -ffp-contract=off -fno-math-errno -include "${emulation}" -w -Wno-psabi)
target_compile_definitions(vitrine_kernels_cpu_emulated PRIVATE VITRINE_KERNELS_X86=1)
target_compile_features(vitrine_kernels_cpu_emulated PRIVATE cxx_std_20)
target_include_directories(vitrine_kernels_cpu_emulated PRIVATE "${PROJECT_SOURCE_DIR}")

vitrine_add_test(emulated_kernel_tests SOURCES ${kernel_tests} kernels/emulated_tables_test.cc
                 LIBRARIES vitrine_kernels_cpu_emulated ROOMS kernels_cpu)
