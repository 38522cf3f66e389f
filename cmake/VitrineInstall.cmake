# SPDX-License-Identifier: Apache-2.0
# find_package(vitrine) for a host: target vitrine::vitrine, variable VITRINE_TORCH_DIR.
include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/vitrine")

install(TARGETS vitrine EXPORT vitrineTargets
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
if(TARGET vitrine_cli)
  set_target_properties(vitrine_cli PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
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
if(TARGET vitrine_cuda)
  install(TARGETS vitrine_cuda LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endif()
if(TARGET vitrine_parquet)
  install(TARGETS vitrine_parquet LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endif()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/vitrine" "${PROJECT_BINARY_DIR}/include/vitrine"
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h")
install(FILES "${PROJECT_SOURCE_DIR}/docs/audit_stream.proto"
        DESTINATION "${CMAKE_INSTALL_DATADIR}/vitrine")
install(EXPORT vitrineTargets NAMESPACE vitrine:: DESTINATION "${package_dir}")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/vitrineConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/vitrineConfig.cmake" INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/vitrineConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/vitrineConfig.cmake"
              "${PROJECT_BINARY_DIR}/vitrineConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/VitrineTorch.cmake"
        DESTINATION "${package_dir}")
