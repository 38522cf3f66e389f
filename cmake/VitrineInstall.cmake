# SPDX-License-Identifier: Apache-2.0
# find_package(vitrine) for a host: target vitrine::vitrine; with its component torch also
# vitrine::torch and the variable VITRINE_TORCH_DIR. For others, vitrine.pc, and vitrine-torch.pc with
# the variable torch_libdir. What is installed carries no path of this machine, but for backends where
# VITRINE_INSTALL_RPATH names one.
#
# Components: vitrine (the library, the tool, headers, the HTTP server where it is built), and each
# backend by itself (torch, cuda, parquet). `cmake --install build --component vitrine` is a package that
# needs none of libtorch.
include(CMakePackageConfigHelpers)
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME vitrine)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/vitrine")

install(TARGETS vitrine EXPORT vitrineTargets
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
if(TARGET vitrine_http)  # the tool links it: target vitrine::http
  install(TARGETS vitrine_http EXPORT vitrineTargets
          LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endif()
if(TARGET vitrine_cli)
  set_target_properties(vitrine_cli PROPERTIES
    INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS vitrine_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  # The tool prints its man page and its completions itself.
  set(pages "${PROJECT_BINARY_DIR}/pages")
  install(CODE "
    file(MAKE_DIRECTORY \"${pages}\")
    foreach(page IN ITEMS vitrine.1:--man vitrine:--completion=bash _vitrine:--completion=zsh)
      string(REPLACE \":\" \";\" parts \"\${page}\")
      list(GET parts 0 name)
      list(GET parts 1 option)
      execute_process(COMMAND \"$<TARGET_FILE:vitrine_cli>\" \"\${option}\"
                      OUTPUT_FILE \"${pages}/\${name}\" COMMAND_ERROR_IS_FATAL ANY)
    endforeach()")
  install(FILES "${pages}/vitrine.1" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1")
  install(FILES "${pages}/vitrine"
          DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions")
  install(FILES "${pages}/_vitrine" DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/site-functions")
endif()
foreach(backend torch cuda parquet)
  if(TARGET vitrine_${backend})
    install(TARGETS vitrine_${backend}
            LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT ${backend})
  endif()
endforeach()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/vitrine" "${PROJECT_BINARY_DIR}/include/vitrine"
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h")
install(FILES "${PROJECT_SOURCE_DIR}/docs/audit_stream.proto"
        DESTINATION "${CMAKE_INSTALL_DATADIR}/vitrine")
install(EXPORT vitrineTargets NAMESPACE vitrine:: DESTINATION "${package_dir}")
# A host finds the package in the build folder, too, where it is not installed.
export(EXPORT vitrineTargets NAMESPACE vitrine:: FILE "${PROJECT_BINARY_DIR}/vitrineTargets.cmake")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/vitrineConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/vitrineConfig.cmake" INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/vitrineConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/vitrineConfig.cmake"
              "${PROJECT_BINARY_DIR}/vitrineConfigVersion.cmake"
        DESTINATION "${package_dir}")

# Relative to the file itself, so that the prefix can be chosen when it is installed.
file(RELATIVE_PATH VITRINE_PC_PREFIX
  "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")
string(REGEX REPLACE "/$" "" VITRINE_PC_PREFIX "${VITRINE_PC_PREFIX}")
file(RELATIVE_PATH VITRINE_PC_LIBDIR "${CMAKE_INSTALL_PREFIX}" "${CMAKE_INSTALL_FULL_LIBDIR}")
file(RELATIVE_PATH VITRINE_PC_INCLUDEDIR
  "${CMAKE_INSTALL_PREFIX}" "${CMAKE_INSTALL_FULL_INCLUDEDIR}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/vitrine.pc.in" "${PROJECT_BINARY_DIR}/vitrine.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/vitrine.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
if(VITRINE_WITH_TORCH)
  configure_file("${PROJECT_SOURCE_DIR}/cmake/vitrine-torch.pc.in"
                 "${PROJECT_BINARY_DIR}/vitrine-torch.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/vitrine-torch.pc"
          DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT torch)
  install(FILES "${PROJECT_SOURCE_DIR}/cmake/VitrinePython.cmake"
                "${PROJECT_SOURCE_DIR}/cmake/VitrineTorch.cmake"
          DESTINATION "${package_dir}" COMPONENT torch)
endif()
