// The wire form of Project calls over grpc::ByteBuffer, without protobuf objects for the payloads:
// a request's activations stay where the transport received them (reference-counted slices), and a
// reply is one exactly sized slice into which each output is copied once. Field for field the same
// language as protobuf's own parser and serializer for these messages; what the values mean, and
// whether they are right, is admission.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "kernels/types.h"
#include "scheduler/call.h"

namespace fulcrum::service {

// Bytes of one request field as they lie in the received slices, in order.
using Pieces = absl::InlinedVector<std::span<const uint8_t>, 4>;

// Names of shards that a parsed request keeps; more than a call may have. The others are counted.
inline constexpr size_t kMaxKeptShards = 64;

// fulcrum.v1.ProjectRequest with its payload by reference. Enums are raw: a newer client's numbers
// arrive here. Owns the slices that `activations` points into; moving keeps them in place.
struct ProjectRequest {
  std::string call_id;
  absl::InlinedVector<std::string, 4> shards;
  int64_t more_shards = 0;  // names after the first kMaxKeptShards
  int64_t rows = 0;
  int32_t activation_type = 0;
  Pieces activations;
  int64_t activations_size = 0;
  int64_t activation_pitch = 0;
  int32_t output_type = 0;
  int64_t output_pitch = 0;
  int32_t step = 0;
  int32_t policy = 0;

  std::vector<grpc::Slice> slices;
};

// Parses a whole message. INVALID_ARGUMENT for bytes that protobuf would refuse, with the offset.
absl::Status ParseProjectRequest(const grpc::ByteBuffer& bytes, ProjectRequest* request);

// One output of a reply. `data` is [rows, n] tightly packed, as the launch slot holds it.
struct OutputView {
  std::string_view shard;
  std::span<const std::byte> data;
  int64_t n = 0;
  std::string_view hash;
  uint64_t version = 0;
  std::string_view arm;
  int numerics = 0;  // v1::NumericsClass
};

// What a reply is made of; everything is borrowed for the time of the encoding.
struct ResponseView {
  std::string_view call_id;
  int64_t rows = 0;
  size_t element_bytes = 2;
  int64_t output_pitch = 0;  // elements; 0 = dense. Gap elements are written as zero
  std::span<const OutputView> outputs;
  int batch_rows = 0;
  uint64_t lever_epoch = 0;
  int close_reason = 0;  // v1::CloseReason
  StageSeconds stages{};
  std::string_view node;
  std::string_view device;
};

// Bytes of one output's data on the wire.
int64_t OutputBytes(int64_t rows, int64_t n, int64_t output_pitch, size_t element_bytes);

// Bounds on the bytes of a reply beside the data: of each output (names, numbers), and once. They
// are for checks before a call is queued, when the arm that will run is not known yet.
inline constexpr int64_t kOutputOverheadBytes = 512;
inline constexpr int64_t kReplyOverheadBytes = 512;

// fulcrum.v1.ProjectResponse, byte for byte as protobuf writes it.
grpc::ByteBuffer EncodeProjectResponse(const ResponseView& response);
// fulcrum.v1.ProjectStreamResponse with a response, or with an error.
grpc::ByteBuffer EncodeStreamResponse(const ResponseView& response);
grpc::ByteBuffer EncodeStreamError(std::string_view call_id, const google::rpc::Status& error);

}  // namespace fulcrum::service
