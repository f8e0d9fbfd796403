# Enables CUDA when asked for or found. Sets FULCRUM_HAS_CUDA. Architectures come from the preset
# (CMAKE_CUDA_ARCHITECTURES); nvcc 13 needs -std=c++20 spelled out, CMake 3.25 does not know it.
set(FULCRUM_HAS_CUDA OFF)
if(NOT FULCRUM_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(FULCRUM_NVCC nvcc PATHS /usr/local/cuda/bin)
    if(FULCRUM_NVCC)
      set(CMAKE_CUDA_COMPILER ${FULCRUM_NVCC})
    endif()
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80 90a)
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(FULCRUM_HAS_CUDA ON)
    # The C++ standard carries over to CUDA as a requirement CMake 3.25 thinks unmet; see above.
    set(CMAKE_CUDA_STANDARD_REQUIRED OFF)
    set(CMAKE_CUDA_EXTENSIONS ON)
  elseif(FULCRUM_CUDA STREQUAL "ON")
    message(FATAL_ERROR "FULCRUM_CUDA=ON but no CUDA compiler was found (set CUDACXX or PATH)")
  endif()
endif()
message(STATUS "CUDA backend: ${FULCRUM_HAS_CUDA}")

# How device code is compiled. -std is spelled out because CMake 3.25 does not know nvcc 13's C++20. A
# register spill fails the build: an arm that spills is not the arm that was measured. --fmad=false is
# the device half of -ffp-contract=off.
function(fulcrum_cuda_options target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--fmad=false;--Werror=all-warnings;-Xcompiler=-Wall,-Wextra,-ffp-contract=off;-Xptxas=-warn-spills,-Werror>)
endfunction()
