# SPDX-License-Identifier: Apache-2.0
# The virtual environment whose wheels hold libtorch and Arrow: $VITRINE_VENV, else the scripts' own.
if(DEFINED ENV{VITRINE_VENV})
  set(VITRINE_VENV "$ENV{VITRINE_VENV}")
else()
  set(VITRINE_VENV "$ENV{HOME}/.cache/vitrine/venv")
endif()

# vitrine_find_python_package(NAME OUT): the folder of the environment's package NAME; empty: none.
function(vitrine_find_python_package name out)
  set(found "")
  if(EXISTS "${VITRINE_VENV}/bin/python")
    execute_process(
      COMMAND "${VITRINE_VENV}/bin/python" -c
              "import importlib.util as u; print(u.find_spec('${name}').submodule_search_locations[0])"
      OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
    if(NOT status EQUAL 0)
      set(found "")
    endif()
  endif()
  set(${out} "${found}" PARENT_SCOPE)
endfunction()
