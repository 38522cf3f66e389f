# SPDX-License-Identifier: Apache-2.0
# Boost's headers (Asio, Beast), 1.81 or later: in the build folder, where `scripts/build all` puts
# Debian's, or in the system. Sets VITRINE_WITH_HTTP and the target vitrine_boost. Sets VITRINE_WITH_ZMQ
# where there is ZeroMQ (PkgConfig::ZMQ), by which events about blocks are published.
set(VITRINE_HTTP AUTO CACHE STRING "Build libvitrine_http.so: AUTO (where it can be), ON, OFF")
set_property(CACHE VITRINE_HTTP PROPERTY STRINGS AUTO ON OFF)
set(VITRINE_WITH_HTTP OFF)
set(VITRINE_WITH_ZMQ OFF)
if(NOT VITRINE_HTTP STREQUAL OFF)
  find_path(VITRINE_BOOST_DIR boost/beast/http/parser.hpp
            PATHS "${PROJECT_BINARY_DIR}/boost/usr/include" NO_DEFAULT_PATH)
  find_path(VITRINE_BOOST_DIR boost/beast/http/parser.hpp)
  set(boost_version 0)
  if(VITRINE_BOOST_DIR)
    file(STRINGS "${VITRINE_BOOST_DIR}/boost/version.hpp" line REGEX "^#define BOOST_VERSION ")
    string(REGEX REPLACE "[^0-9]*([0-9]+).*" "\\1" boost_version "${line}")
  endif()
  find_package(OpenSSL COMPONENTS SSL)
  if(boost_version GREATER_EQUAL 108100 AND TARGET OpenSSL::SSL)
    set(VITRINE_WITH_HTTP ON)
    find_package(PkgConfig REQUIRED)
    pkg_check_modules(ZMQ IMPORTED_TARGET libzmq)
    if(TARGET PkgConfig::ZMQ)
      set(VITRINE_WITH_ZMQ ON)
    endif()
    add_library(vitrine_boost INTERFACE)
    target_include_directories(vitrine_boost SYSTEM INTERFACE "${VITRINE_BOOST_DIR}")
    target_compile_definitions(vitrine_boost INTERFACE BOOST_ASIO_NO_DEPRECATED)
  elseif(VITRINE_HTTP STREQUAL ON)
    message(FATAL_ERROR "VITRINE_HTTP is ON, but there is no Boost 1.81 or later with Asio and Beast "
                        "(found: ${boost_version} in '${VITRINE_BOOST_DIR}'); run scripts/build all, or "
                        "pass -DVITRINE_BOOST_DIR=<folder of boost/>")
  endif()
endif()
message(STATUS "HTTP server: ${VITRINE_WITH_HTTP}, with events about blocks: ${VITRINE_WITH_ZMQ}")
