# Services whose .proto Debian packages (grpc-proto) without generated code.
#   fulcrum_packaged_proto(TARGET grpc/health/v1/health.proto)
# makes a library of its messages and service; include it as "health.grpc.pb.h".
function(fulcrum_packaged_proto target proto)
  find_path(FULCRUM_GRPC_PROTO_DIR grpc/health/v1/health.proto PATH_SUFFIXES grpc-proto
    HINTS /usr/share)
  if(NOT FULCRUM_GRPC_PROTO_DIR)
    message(FATAL_ERROR "grpc/health/v1/health.proto not found: install Debian package grpc-proto, "
                        "or set FULCRUM_GRPC_PROTO_DIR")
  endif()
  cmake_path(GET proto STEM stem)
  set(file ${FULCRUM_GRPC_PROTO_DIR}/${proto})
  cmake_path(GET file PARENT_PATH dir)
  set(gen ${CMAKE_CURRENT_BINARY_DIR}/gen)
  set(outputs ${gen}/${stem}.pb.cc ${gen}/${stem}.pb.h ${gen}/${stem}.grpc.pb.cc
    ${gen}/${stem}.grpc.pb.h)
  add_custom_command(
    OUTPUT ${outputs}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${gen}
    COMMAND protobuf::protoc --proto_path=${dir} --cpp_out=${gen} --grpc_out=${gen}
      --plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin> ${file}
    DEPENDS ${file}
    VERBATIM)
  add_library(${target} STATIC ${outputs})
  target_include_directories(${target} SYSTEM PUBLIC ${gen})
  target_link_libraries(${target} PUBLIC gRPC::grpc++ protobuf::libprotobuf)
endfunction()
