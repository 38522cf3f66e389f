# The kernel tests once more, with the tables for AVX-512, AMX and AVX-VNNI emulated: a machine that
# lacks these instructions tests what is written with them (not what the compiler makes of it).
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  return()
endif()
get_target_property(kernel_sources vitrine_kernels_cpu SOURCES)
list(TRANSFORM kernel_sources PREPEND "${PROJECT_SOURCE_DIR}/kernels/cpu/")
add_library(vitrine_kernels_cpu_emulated STATIC ${kernel_sources})
# -O1: these files have many instances of large templates, and with -O3 take minutes each.
target_compile_options(vitrine_kernels_cpu_emulated PRIVATE -O1 -ffp-contract=off -fno-math-errno)
target_compile_definitions(vitrine_kernels_cpu_emulated PRIVATE VITRINE_KERNELS_X86=1)
target_compile_features(vitrine_kernels_cpu_emulated PUBLIC cxx_std_20)
target_include_directories(vitrine_kernels_cpu_emulated PUBLIC "${PROJECT_SOURCE_DIR}")

set(emulation "${CMAKE_CURRENT_SOURCE_DIR}/kernels/emulated_x86.h")
foreach(source IN LISTS kernel_sources)
  set(options)
  if(source MATCHES "/avx(2|512)/")
    list(APPEND options -mavx2 -mfma -mf16c)
  endif()
  if(source MATCHES "/avx512/|_vnni\\.cc$|/dispatch\\.cc$")
    list(APPEND options -include "${emulation}" -Wno-psabi -w)
    set_source_files_properties("${source}" PROPERTIES OBJECT_DEPENDS "${emulation}")
  endif()
  set_source_files_properties("${source}" PROPERTIES COMPILE_OPTIONS "${options}")
endforeach()

vitrine_add_test(emulated_kernel_tests SOURCES ${kernel_tests} kernels/emulated_tables_test.cc
                 LIBRARIES vitrine_kernels_cpu_emulated ROOMS core)
