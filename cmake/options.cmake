# Compiler rules every target of ours follows. Contraction is off everywhere: a fused multiply-add
# appears only where the numerics contract asks for one (std::fma or an intrinsic).
add_library(fulcrum_options INTERFACE)
target_include_directories(fulcrum_options INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(fulcrum_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow=local;-Werror;-ffp-contract=off;-fno-fast-math>)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # -Wshadow=local is GCC's; clang also checks lock annotations.
  target_compile_options(fulcrum_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-unknown-warning-option;-Wthread-safety>)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False in GCC 12 at -O3: string concatenation (its bug 105651) and ordered vectors of bytes.
  target_compile_options(fulcrum_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict;-Wno-stringop-overread>)
endif()
target_compile_definitions(fulcrum_options INTERFACE FULCRUM_VERSION="${PROJECT_VERSION}")
if(FULCRUM_SANITIZE)
  target_compile_options(fulcrum_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${FULCRUM_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all>)
  target_link_options(fulcrum_options INTERFACE -fsanitize=${FULCRUM_SANITIZE})
endif()
find_program(FULCRUM_LLD ld.lld)
if(FULCRUM_LLD)
  target_link_options(fulcrum_options INTERFACE -fuse-ld=lld)
endif()
find_program(FULCRUM_CCACHE ccache)
if(FULCRUM_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${FULCRUM_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${FULCRUM_CCACHE})
endif()
