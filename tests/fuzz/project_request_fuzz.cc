// Any bytes as a Project request: the node's own parser and protobuf's agree on whether it is one
// and on every field, however the transport cut the bytes into slices.
// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "fulcrum/v1/projection_service.pb.h"
#include "google/protobuf/stubs/logging.h"
#include "service/project_codec.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

// The first byte of the input says where to cut: in pieces of 1 to 256 bytes.
grpc::ByteBuffer Cut(const uint8_t* data, size_t size, size_t piece) {
  std::vector<grpc::Slice> slices;
  for (size_t begin = 0; begin < size; begin += piece) {
    slices.emplace_back(data + begin, std::min(piece, size - begin));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto silenced = google::protobuf::SetLogHandler(nullptr);  // bad UTF-8 is expected
  (void)silenced;
  if (size == 0) return 0;
  const size_t piece = data[0] + size_t{1};
  ++data, --size;

  fulcrum::v1::ProjectRequest theirs;
  const bool valid = theirs.ParseFromArray(data, static_cast<int>(size));
  fulcrum::service::ProjectRequest ours;
  const absl::Status status = fulcrum::service::ParseProjectRequest(Cut(data, size, piece), &ours);
  FUZZ_REQUIRE(status.ok() == valid);
  if (!valid) return 0;

  std::string activations;
  for (const auto& part : ours.activations) activations.append(part.begin(), part.end());
  FUZZ_REQUIRE(ours.call_id == theirs.call_id());
  FUZZ_REQUIRE(static_cast<int>(ours.shards.size()) == theirs.shards_size());
  for (int i = 0; i < theirs.shards_size(); ++i) {
    FUZZ_REQUIRE(ours.shards[static_cast<size_t>(i)] == theirs.shards(i));
  }
  FUZZ_REQUIRE(ours.rows == theirs.rows());
  FUZZ_REQUIRE(ours.activation_type == theirs.activation_type());
  FUZZ_REQUIRE(activations == theirs.activations());
  FUZZ_REQUIRE(ours.activations_size == static_cast<int64_t>(activations.size()));
  FUZZ_REQUIRE(ours.activation_pitch == theirs.activation_pitch());
  FUZZ_REQUIRE(ours.output_type == theirs.output_type());
  FUZZ_REQUIRE(ours.output_pitch == theirs.output_pitch());
  FUZZ_REQUIRE(ours.step == theirs.step());
  FUZZ_REQUIRE(ours.policy == theirs.policy());
  return 0;
}
