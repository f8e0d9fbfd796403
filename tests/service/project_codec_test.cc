// The hand-written codec speaks exactly protobuf's language: same messages accepted, same values
// read, same bytes written, however the transport cuts the message into slices.
// SPDX-License-Identifier: Apache-2.0
#include "service/project_codec.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "fulcrum/v1/projection_service.pb.h"
#include "google/protobuf/stubs/logging.h"
#include "gtest/gtest.h"

namespace fulcrum::service {
namespace {

using Random = std::mt19937_64;

int64_t Below(Random& random, int64_t n) {
  return std::uniform_int_distribution<int64_t>(0, n - 1)(random);
}

std::string RandomBytes(Random& random, size_t size) {
  std::string out(size, '\0');
  for (char& c : out) c = static_cast<char>(random());
  return out;
}

// Each slice is an allocation of its own, so that a sanitizer sees a read past any of them.
grpc::ByteBuffer Cut(Random& random, const std::string& bytes, int max_slices) {
  std::vector<grpc::Slice> slices;
  size_t begin = 0;
  const auto count = static_cast<size_t>(1 + Below(random, max_slices));
  for (size_t i = 0; i < count; ++i) {
    const size_t rest = bytes.size() - begin;
    const size_t size =
        i + 1 == count ? rest : static_cast<size_t>(Below(random, static_cast<int64_t>(rest) + 1));
    slices.emplace_back(bytes.data() + begin, size);
    begin += size;
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string Join(const Pieces& pieces) {
  std::string out;
  for (const auto& piece : pieces) {
    out.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  return out;
}

std::string Flat(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(bytes.Dump(&slices).ok());
  std::string out;
  for (const auto& slice : slices) {
    out.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return out;
}

void ExpectSame(const v1::ProjectRequest& want, const ProjectRequest& got) {
  EXPECT_EQ(want.call_id(), got.call_id);
  ASSERT_EQ(static_cast<size_t>(want.shards_size()), got.shards.size());
  for (int i = 0; i < want.shards_size(); ++i) {
    EXPECT_EQ(want.shards(i), got.shards[static_cast<size_t>(i)]);
  }
  EXPECT_EQ(want.rows(), got.rows);
  EXPECT_EQ(static_cast<int>(want.activation_type()), got.activation_type);
  EXPECT_EQ(want.activations(), Join(got.activations));
  EXPECT_EQ(static_cast<int64_t>(want.activations().size()), got.activations_size);
  EXPECT_EQ(want.activation_pitch(), got.activation_pitch);
  EXPECT_EQ(static_cast<int>(want.output_type()), got.output_type);
  EXPECT_EQ(want.output_pitch(), got.output_pitch);
  EXPECT_EQ(static_cast<int>(want.step()), got.step);
  EXPECT_EQ(static_cast<int>(want.policy()), got.policy);
}

// The property: protobuf and the codec agree on whether `bytes` is a message, and on its values.
// Returns whether it is one.
bool ExpectAgreement(Random& random, const std::string& bytes, int max_slices = 6) {
  const google::protobuf::LogSilencer quiet;  // it logs every string that is not UTF-8
  v1::ProjectRequest want;
  const bool accepted = want.ParseFromString(bytes);
  ProjectRequest got;
  const absl::Status status = ParseProjectRequest(Cut(random, bytes, max_slices), &got);
  EXPECT_EQ(accepted, status.ok())
      << status << " for " << bytes.size() << " bytes: " << testing::PrintToString(bytes);
  if (!status.ok()) {
    EXPECT_EQ(absl::StatusCode::kInvalidArgument, status.code());
  }
  if (accepted && status.ok()) ExpectSame(want, got);
  return accepted;
}

v1::ProjectRequest RandomRequest(Random& random) {
  static constexpr const char* kNames[] = {"models/m/shards/a", "", "models/mod\xc3\xa8le/shards/b",
                                           "\xe2\x82\xac\xf0\x9f\x98\x80"};
  v1::ProjectRequest request;
  const auto flip = [&random] { return Below(random, 2) == 0; };
  if (flip()) request.set_call_id("call-" + std::to_string(random()));
  for (int64_t i = Below(random, 4); i > 0; --i) request.add_shards(kNames[Below(random, 4)]);
  if (flip()) request.set_rows(static_cast<int64_t>(random() >> Below(random, 64)));
  if (flip()) request.set_activation_type(static_cast<v1::DType>(Below(random, 5) - 1));
  if (flip()) {
    request.set_activations(RandomBytes(random, static_cast<size_t>(Below(random, 600))));
  }
  if (flip()) request.set_activation_pitch(static_cast<int64_t>(random()));
  if (flip()) request.set_output_type(static_cast<v1::DType>(static_cast<int32_t>(random())));
  if (flip()) request.set_output_pitch(Below(random, 1000));
  if (flip()) request.set_step(static_cast<v1::Step>(Below(random, 3)));
  if (flip()) request.set_policy(static_cast<v1::Policy>(Below(random, 4)));
  return request;
}

v1::ProjectRequest FullRequest() {
  v1::ProjectRequest request;
  request.set_call_id("call-1");
  request.add_shards("models/m/shards/q");
  request.add_shards("models/m/shards/k");
  request.set_rows(2);
  request.set_activation_type(v1::DTYPE_F32);
  request.set_activations(std::string(300, 'x'));
  request.set_activation_pitch(40);
  request.set_output_type(v1::DTYPE_F32);
  request.set_output_pitch(70);
  request.set_step(v1::STEP_PREFILL);
  request.set_policy(v1::POLICY_FASTEST);
  return request;
}

TEST(ProjectCodecParse, RandomRequestsAgreeWithProtobuf) {
  Random random(1);
  for (int i = 0; i < 3000; ++i) {
    EXPECT_TRUE(ExpectAgreement(random, RandomRequest(random).SerializeAsString()));
  }
}

TEST(ProjectCodecParse, EveryPrefixAgreesWithProtobuf) {
  Random random(2);
  const std::string whole = FullRequest().SerializeAsString();
  int refused = 0;
  for (size_t size = 0; size <= whole.size(); ++size) {
    if (!ExpectAgreement(random, whole.substr(0, size), 1)) ++refused;
    ExpectAgreement(random, whole.substr(0, size), 8);
  }
  EXPECT_GT(refused, 300);  // most cuts fall inside the payload
}

TEST(ProjectCodecParse, RepeatedAndUnorderedFieldsAgree) {
  Random random(3);
  for (int i = 0; i < 1000; ++i) {
    std::string bytes;
    for (int part = 0; part < 3; ++part) bytes += RandomRequest(random).SerializeAsString();
    EXPECT_TRUE(ExpectAgreement(random, bytes));
  }
}

TEST(ProjectCodecParse, UnknownFieldsAndWrongWireTypesAreSkipped) {
  Random random(4);
  const std::string tail = FullRequest().SerializeAsString();
  const std::string cases[] = {
      std::string("\x98\x06\x01", 3),  // field 99, varint
      std::string("\x99\x06"
                  "12345678",
                  10),  // fixed64
      std::string("\x9d\x06"
                  "1234",
                  6),  // fixed32
      std::string("\x9a\x06\x03"
                  "abc",
                  6),                                                // length-delimited
      std::string("\x9b\x06\x98\x06\x05\x9a\x06\x01z\x9c\x06", 11),  // a group with fields
      std::string("\x1a\x02hi", 4),                                  // rows as a string
      std::string("\x28\x07", 2),                                    // activations as a varint
      std::string("\x80\x80\x80\x80\x08\x01", 6),                    // a field number past 2^28
  };
  for (const std::string& unknown : cases) {
    ExpectAgreement(random, unknown + tail);
    ExpectAgreement(random, tail + unknown);
  }
  EXPECT_TRUE(ExpectAgreement(random, cases[4] + tail));
}

TEST(ProjectCodecParse, MalformedBytesAreRefused) {
  Random random(5);
  const std::string cases[] = {
      std::string("\x00", 1),  // tag zero
      std::string("\x00\x01", 2),
      std::string("\x05"
                  "1234",
                  5),                      // field number zero
      std::string("\x1e\x01", 2),          // wire type 6
      std::string("\x1f\x01", 2),          // wire type 7
      std::string("\x9c\x06", 2),          // the end of no group
      std::string("\x9b\x06\x98\x06", 4),  // a group cut off
      std::string("\x9b\x06\xa4\x06", 4),  // a group ended by another's end
      std::string("\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 12),  // varint of 11 bytes
      std::string("\x0a\x02\xc3\x28", 4),                         // a call id that is not UTF-8
      std::string("\x0a\x03\xed\xa0\x80", 5),                     // a surrogate
      std::string("\x12\x02\xc0\x80", 4),                         // overlong
      std::string("\x2a\xff\xff\xff\xff\x07", 6) + "0123456789",  // 2 GiB declared
      std::string("\x2a\x80\x80\x80\x80\x80\x80\x80\x80\x40", 10) + "0123456789",  // 2^62 declared
      std::string("\x2a\xff\xff\xff\xff\x0f", 6) + "0123456789",  // 2^32 - 1 declared
      std::string("\x2a\x0b", 2) + "0123456789",                  // one more than there is
  };
  for (const std::string& bytes : cases) EXPECT_FALSE(ExpectAgreement(random, bytes));
}

TEST(ProjectCodecParse, GroupDepthIsBoundedAsInProtobuf) {
  Random random(6);
  for (int depth : {1, 50, 99, 100, 101, 5000}) {
    std::string bytes;
    for (int i = 0; i < depth; ++i) bytes += "\x9b\x06";
    for (int i = 0; i < depth; ++i) bytes += "\x9c\x06";
    EXPECT_EQ(depth <= 100, ExpectAgreement(random, bytes)) << depth;
  }
}

TEST(ProjectCodecParse, MutatedMessagesAgreeWithProtobuf) {
  Random random(7);
  int accepted = 0;
  constexpr int kRounds = 60000;
  for (int i = 0; i < kRounds; ++i) {
    v1::ProjectRequest request = RandomRequest(random);
    request.set_activations(RandomBytes(random, static_cast<size_t>(Below(random, 20))));
    std::string bytes = request.SerializeAsString();
    for (int64_t edits = 1 + Below(random, 3); edits > 0; --edits) {
      const auto at = static_cast<size_t>(Below(random, static_cast<int64_t>(bytes.size()) + 1));
      switch (Below(random, 3)) {
        case 0:
          bytes.insert(at, 1, static_cast<char>(random()));
          break;
        case 1:
          bytes.erase(at, static_cast<size_t>(1 + Below(random, 3)));
          break;
        default:
          if (at < bytes.size()) bytes[at] = static_cast<char>(random());
      }
    }
    accepted += ExpectAgreement(random, bytes);
    if (HasFailure()) return;
  }
  EXPECT_GT(accepted, kRounds / 10);  // both outcomes are exercised
  EXPECT_LT(accepted, kRounds * 9 / 10);
}

TEST(ProjectCodecParse, PayloadIsNotCopied) {
  Random random(8);
  const std::string bytes = FullRequest().SerializeAsString();
  const grpc::ByteBuffer buffer = Cut(random, bytes, 3);
  ProjectRequest request;
  ASSERT_TRUE(ParseProjectRequest(buffer, &request).ok());
  ProjectRequest moved = std::move(request);
  for (const auto& piece : moved.activations) {
    const bool inside =
        std::any_of(moved.slices.begin(), moved.slices.end(), [&piece](const grpc::Slice& slice) {
          return piece.data() >= slice.begin() && piece.data() + piece.size() <= slice.end();
        });
    EXPECT_TRUE(inside);
  }
  EXPECT_EQ(std::string(300, 'x'), Join(moved.activations));
}

TEST(ProjectCodecParse, AnEmptyBufferIsAnEmptyMessage) {
  ProjectRequest request;
  EXPECT_TRUE(ParseProjectRequest(grpc::ByteBuffer(), &request).ok());
  EXPECT_TRUE(request.shards.empty());
}

// A reply as a view and as the message it must equal.
struct Reply {
  std::vector<std::vector<std::byte>> data;
  std::vector<OutputView> outputs;
  ResponseView view;
  v1::ProjectResponse want;
};

void FillReply(Random& random, Reply* reply) {
  ResponseView& view = reply->view;
  v1::ProjectResponse& want = reply->want;
  const auto flip = [&random] { return Below(random, 2) == 0; };
  view.rows = 1 + Below(random, 5);
  view.element_bytes = flip() ? 2 : 4;
  const int64_t gap = flip() ? 0 : Below(random, 9);
  const int64_t n = 1 + Below(random, 300);
  view.output_pitch = gap == 0 ? 0 : n + gap;
  if (flip()) view.call_id = "a call";
  want.set_call_id(std::string(view.call_id));
  const auto count = static_cast<size_t>(Below(random, 4));
  for (size_t i = 0; i < count; ++i) {
    const size_t row = static_cast<size_t>(n) * view.element_bytes;
    auto& data = reply->data.emplace_back(row * static_cast<size_t>(view.rows));
    for (std::byte& b : data) b = static_cast<std::byte>(random());
    std::string wire;
    for (int64_t r = 0; r < view.rows; ++r) {
      wire.append(reinterpret_cast<const char*>(data.data()) + static_cast<size_t>(r) * row, row);
      wire.append(static_cast<size_t>(gap) * view.element_bytes, '\0');
    }
    OutputView output;
    output.shard = "models/m/shards/s";
    output.data = data;
    output.n = n;
    output.hash = "cafe";
    output.version = random() >> Below(random, 64);
    output.arm = "fp8_exact";
    output.numerics = static_cast<int>(Below(random, 5));
    auto* message = want.add_outputs();
    message->set_shard(std::string(output.shard));
    message->set_data(wire);
    message->set_n(n);
    message->set_hash(std::string(output.hash));
    message->set_version(output.version);
    message->set_arm(std::string(output.arm));
    message->set_numerics(static_cast<v1::NumericsClass>(output.numerics));
    reply->outputs.push_back(output);
  }
  view.outputs = reply->outputs;
  view.batch_rows = static_cast<int>(Below(random, 40));
  view.lever_epoch = random() >> Below(random, 64);
  view.close_reason = static_cast<int>(Below(random, 7));
  for (double& seconds : view.stages) seconds = flip() ? 0.0 : 1e-6 * double(random() % 1000);
  view.node = "node-1";
  view.device = flip() ? "cpu:0" : "";
  auto* provenance = want.mutable_provenance();
  provenance->set_batch_rows(view.batch_rows);
  provenance->set_lever_epoch(view.lever_epoch);
  provenance->set_close_reason(static_cast<v1::CloseReason>(view.close_reason));
  auto* stages = provenance->mutable_stages();
  stages->set_admit(view.stages[static_cast<size_t>(Stage::kAdmit)]);
  stages->set_queue(view.stages[static_cast<size_t>(Stage::kQueue)]);
  stages->set_gather(view.stages[static_cast<size_t>(Stage::kGather)]);
  stages->set_copy_in(view.stages[static_cast<size_t>(Stage::kCopyIn)]);
  stages->set_kernel(view.stages[static_cast<size_t>(Stage::kKernel)]);
  stages->set_copy_out(view.stages[static_cast<size_t>(Stage::kCopyOut)]);
  provenance->set_node(std::string(view.node));
  provenance->set_device(std::string(view.device));
}

TEST(ProjectCodecEncode, RepliesAreProtobufsBytes) {
  Random random(9);
  for (int i = 0; i < 2000; ++i) {
    Reply reply;
    FillReply(random, &reply);
    const grpc::ByteBuffer unary = EncodeProjectResponse(reply.view);
    ASSERT_EQ(reply.want.SerializeAsString(), Flat(unary));
    grpc::Slice single;
    EXPECT_TRUE(unary.TrySingleSlice(&single).ok());  // one allocation, exactly sized

    v1::ProjectStreamResponse stream;
    stream.set_call_id(reply.want.call_id());
    *stream.mutable_response() = reply.want;
    ASSERT_EQ(stream.SerializeAsString(), Flat(EncodeStreamResponse(reply.view)));
    int64_t bound = kReplyOverheadBytes;
    for (const OutputView& output : reply.outputs) {
      bound +=
          kOutputOverheadBytes +
          OutputBytes(reply.view.rows, output.n, reply.view.output_pitch, reply.view.element_bytes);
    }
    EXPECT_LE(static_cast<int64_t>(unary.Length()), bound);
  }
}

TEST(ProjectCodecEncode, StreamErrorsAreProtobufsBytes) {
  google::rpc::Status error;
  error.set_code(5);
  error.set_message("no shard of that name");
  error.add_details()->set_type_url("type.googleapis.com/google.rpc.ResourceInfo");
  for (const char* id : {"", "id-7"}) {
    v1::ProjectStreamResponse want;
    want.set_call_id(id);
    *want.mutable_error() = error;
    EXPECT_EQ(want.SerializeAsString(), Flat(EncodeStreamError(id, error)));
  }
}

}  // namespace
}  // namespace fulcrum::service
