# SPDX-License-Identifier: Apache-2.0
# The target `docs`, where doxygen is found: pages of the public headers, in docs/html of the build
# folder. What is not documented, or documented wrongly, is an error.
find_package(Doxygen QUIET)
if(NOT DOXYGEN_FOUND)
  return()
endif()
set(DOXYGEN_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/docs")
set(DOXYGEN_STRIP_FROM_PATH "${PROJECT_SOURCE_DIR}/include")
set(DOXYGEN_STRIP_FROM_INC_PATH "${PROJECT_SOURCE_DIR}/include")
set(DOXYGEN_JAVADOC_AUTOBRIEF YES)
set(DOXYGEN_MACRO_EXPANSION YES)
set(DOXYGEN_EXPAND_ONLY_PREDEF YES)
set(DOXYGEN_PREDEFINED "VITRINE_API=")
set(DOXYGEN_GENERATE_LATEX NO)
set(DOXYGEN_QUIET YES)
set(DOXYGEN_INPUT_FILTER "sed -E -f \"${PROJECT_SOURCE_DIR}/cmake/docs_filter.sed\"")
set(DOXYGEN_WARN_AS_ERROR FAIL_ON_WARNINGS)
doxygen_add_docs(docs "${PROJECT_SOURCE_DIR}/include/vitrine"
                 COMMENT "Making the pages of the public headers with doxygen")
