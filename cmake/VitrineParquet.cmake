# SPDX-License-Identifier: Apache-2.0
# libarrow and libparquet of PyPI's pyarrow, beside torch in the virtual environment. Sets
# VITRINE_WITH_PARQUET and the target vitrine_arrow.
set(VITRINE_PARQUET AUTO CACHE STRING "Build libvitrine_parquet.so: AUTO (where it can be), ON, OFF")
set_property(CACHE VITRINE_PARQUET PROPERTY STRINGS AUTO ON OFF)
set(VITRINE_WITH_PARQUET OFF)
if(NOT VITRINE_PARQUET STREQUAL OFF)
  get_filename_component(pyarrow "${VITRINE_TORCH_DIR}/../pyarrow" ABSOLUTE)
  file(GLOB arrow_library "${pyarrow}/libarrow.so.[0-9]*")
  file(GLOB parquet_library "${pyarrow}/libparquet.so.[0-9]*")
  list(LENGTH arrow_library num_arrow)
  list(LENGTH parquet_library num_parquet)
  if(num_arrow EQUAL 1 AND num_parquet EQUAL 1 AND EXISTS "${pyarrow}/include/parquet/arrow/writer.h")
    set(VITRINE_WITH_PARQUET ON)
    set(VITRINE_ARROW_LIB_DIR "${pyarrow}")
    add_library(vitrine_arrow INTERFACE)
    target_include_directories(vitrine_arrow SYSTEM INTERFACE "${pyarrow}/include")
    target_link_libraries(vitrine_arrow INTERFACE "${parquet_library}" "${arrow_library}")
  elseif(VITRINE_PARQUET STREQUAL ON)
    message(FATAL_ERROR "VITRINE_PARQUET is ON, but ${pyarrow} has no libarrow, libparquet and "
                        "headers; install the PyPI package pyarrow there")
  endif()
endif()
