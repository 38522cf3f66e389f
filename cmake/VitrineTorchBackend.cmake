# SPDX-License-Identifier: Apache-2.0
# Decides VITRINE_WITH_TORCH. The reference path is a shared library of its own, loaded when it is asked
# for; where it cannot be built, everything but it and the CUDA backend can.
set(VITRINE_TORCH AUTO CACHE STRING "Build libvitrine_torch.so: AUTO (where it can be), ON, OFF")
set_property(CACHE VITRINE_TORCH PROPERTY STRINGS AUTO ON OFF)
set(VITRINE_WITH_TORCH OFF)
if(VITRINE_TORCH STREQUAL "OFF")
  set(reason "switched off")
else()
  include("${CMAKE_CURRENT_LIST_DIR}/VitrineTorch.cmake")
  if(VITRINE_TORCH_PROBLEM)
    set(reason "${VITRINE_TORCH_PROBLEM}")
  else()
    set(VITRINE_WITH_TORCH ON)
    set(reason "torch ${VITRINE_TORCH_VERSION}")
  endif()
endif()
if(VITRINE_TORCH STREQUAL "ON" AND NOT VITRINE_WITH_TORCH)
  message(FATAL_ERROR "VITRINE_TORCH is ON, but the backend cannot be built: ${reason}. Run "
                      "scripts/setup, pass -DVITRINE_TORCH_DIR=<site-packages>/torch, or set "
                      "VITRINE_TORCH to OFF.")
endif()
message(STATUS "Torch backend: ${VITRINE_WITH_TORCH} (${reason})")
