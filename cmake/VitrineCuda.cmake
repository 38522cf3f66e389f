# SPDX-License-Identifier: Apache-2.0
# Decides VITRINE_WITH_CUDA. The backend is a shared library of its own, loaded when a CUDA device is
# asked for; where it cannot be built, everything else can. It needs a libtorch with CUDA and the
# CUDA 13 runtime's headers: those of a toolkit, else those that the torch wheel's packages bring.
set(VITRINE_WITH_CUDA OFF)
if(VITRINE_CUDA STREQUAL "OFF")
  set(reason "switched off")
elseif(NOT VITRINE_WITH_TORCH)
  set(reason "it needs libtorch, and there is no torch backend")
elseif(NOT EXISTS "${VITRINE_TORCH_LIB_DIR}/libtorch_cuda.so")
  set(reason "this libtorch has no CUDA")
else()
  find_package(CUDAToolkit 13 QUIET)
  if(CUDAToolkit_FOUND)
    set(VITRINE_WITH_CUDA ON)
    set(VITRINE_CUDA_INCLUDE_DIRS ${CUDAToolkit_INCLUDE_DIRS})
    set(reason "toolkit ${CUDAToolkit_VERSION}")
  elseif(EXISTS "${VITRINE_TORCH_CUDA_INCLUDE_DIR}/cuda_runtime_api.h")
    set(VITRINE_WITH_CUDA ON)
    set(VITRINE_CUDA_INCLUDE_DIRS "${VITRINE_TORCH_CUDA_INCLUDE_DIR}")
    set(reason "no toolkit; the wheel's headers")
  else()
    set(reason "no CUDA 13 headers")
  endif()
endif()
if(VITRINE_CUDA STREQUAL "ON" AND NOT VITRINE_WITH_CUDA)
  message(FATAL_ERROR "VITRINE_CUDA is ON, but the backend cannot be built: ${reason}. Set "
                      "CUDAToolkit_ROOT to a CUDA 13 toolkit and VITRINE_TORCH to ON, or "
                      "VITRINE_CUDA to OFF.")
endif()
message(STATUS "CUDA backend: ${VITRINE_WITH_CUDA} (${reason})")

# Our own kernels need nvcc besides; without it the backend has the reference path alone.
set(VITRINE_CUDA_COMPILER OFF)
if(VITRINE_WITH_CUDA AND CUDAToolkit_FOUND AND EXISTS "${CUDAToolkit_NVCC_EXECUTABLE}")
  set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}" CACHE FILEPATH "nvcc")
  set(CMAKE_CUDA_ARCHITECTURES 80)  # of CMake's own checks: its default is one that nvcc 13 lacks
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has C++20
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  endif()
  set(VITRINE_CUDA_COMPILER ON)
endif()
message(STATUS "CUDA kernels: ${VITRINE_CUDA_COMPILER}")
