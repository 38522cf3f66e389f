# SPDX-License-Identifier: Apache-2.0
# Run by each build (cmake -DSOURCE=… -DHEADER=… -P): writes the checkout's commit into a header, and
# leaves the header alone where nothing changed. A folder that is no checkout has no commit.
set(commit "")
find_program(git git)
if(git)
  execute_process(COMMAND "${git}" rev-parse --show-toplevel WORKING_DIRECTORY "${SOURCE}"
                  OUTPUT_VARIABLE root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(root STREQUAL SOURCE)
    execute_process(COMMAND "${git}" describe --always --dirty --exclude=* --abbrev=12
                    WORKING_DIRECTORY "${SOURCE}"
                    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endif()
configure_file("${SOURCE}/examples/cli/commit.h.in" "${HEADER}" @ONLY)
