// Writing half of project_codec.h. One description of each message serves both passes: counting its
// bytes, then writing them, so the two cannot disagree.
// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cstring>
#include <new>

#include "google/protobuf/io/coded_stream.h"
#include "service/project_codec.h"

namespace fulcrum::service {
namespace {

using google::protobuf::io::CodedOutputStream;

// Sinks: both have Tag, Varint, Double, Bytes and Rows.
class Counter {
 public:
  void Tag(uint32_t field, uint32_t /*type*/) { size_ += field < 16 ? 1 : 2; }
  void Varint(uint64_t v) { size_ += CodedOutputStream::VarintSize64(v); }
  void Double(double) { size_ += 8; }
  void Bytes(std::string_view s) { size_ += s.size(); }
  void Rows(std::span<const std::byte>, int64_t rows, size_t /*row*/, size_t pitch) {
    size_ += static_cast<size_t>(rows) * pitch;
  }
  size_t size() const { return size_; }

 private:
  size_t size_ = 0;
};

class Writer {
 public:
  explicit Writer(uint8_t* out) : out_(out) {}
  void Tag(uint32_t field, uint32_t type) { Varint(field << 3 | type); }
  void Varint(uint64_t v) { out_ = CodedOutputStream::WriteVarint64ToArray(v, out_); }
  void Double(double v) {
    out_ = CodedOutputStream::WriteLittleEndian64ToArray(std::bit_cast<uint64_t>(v), out_);
  }
  void Bytes(std::string_view s) {
    std::memcpy(out_, s.data(), s.size());
    out_ += s.size();
  }
  void Rows(std::span<const std::byte> data, int64_t rows, size_t row, size_t pitch) {
    if (row == pitch) {
      std::memcpy(out_, data.data(), data.size());
      out_ += data.size();
      return;
    }
    for (int64_t r = 0; r < rows; ++r, out_ += pitch) {
      std::memcpy(out_, data.data() + static_cast<size_t>(r) * row, row);
      std::memset(out_ + row, 0, pitch - row);
    }
  }

 private:
  uint8_t* out_;
};

constexpr uint32_t kVarint = 0, kFixed64 = 1, kLength = 2;

template <class Sink>
void PutInt(Sink& sink, uint32_t field, uint64_t value) {
  if (value == 0) return;
  sink.Tag(field, kVarint);
  sink.Varint(value);
}

template <class Sink>
void PutDouble(Sink& sink, uint32_t field, double value) {
  if (std::bit_cast<uint64_t>(value) == 0) return;
  sink.Tag(field, kFixed64);
  sink.Double(value);
}

template <class Sink>
void PutString(Sink& sink, uint32_t field, std::string_view value) {
  if (value.empty()) return;
  sink.Tag(field, kLength);
  sink.Varint(value.size());
  sink.Bytes(value);
}

// A nested message: its size first, by the same description.
template <class Sink, class Body>
void PutMessage(Sink& sink, uint32_t field, const Body& body) {
  Counter counter;
  body(counter);
  sink.Tag(field, kLength);
  sink.Varint(counter.size());
  body(sink);
}

template <class Sink>
void PutOutput(Sink& sink, const ResponseView& response, const OutputView& output) {
  PutString(sink, 1, output.shard);
  const auto size = static_cast<size_t>(
      OutputBytes(response.rows, output.n, response.output_pitch, response.element_bytes));
  if (size > 0) {
    sink.Tag(2, kLength);
    sink.Varint(size);
    sink.Rows(output.data, response.rows, static_cast<size_t>(output.n) * response.element_bytes,
              size / static_cast<size_t>(response.rows));
  }
  PutInt(sink, 3, static_cast<uint64_t>(output.n));
  PutString(sink, 4, output.hash);
  PutInt(sink, 5, output.version);
  PutString(sink, 6, output.arm);
  PutInt(sink, 7, static_cast<uint64_t>(output.numerics));
}

template <class Sink>
void PutProvenance(Sink& sink, const ResponseView& response) {
  PutInt(sink, 1, static_cast<uint64_t>(response.batch_rows));
  PutInt(sink, 2, response.lever_epoch);
  PutInt(sink, 3, static_cast<uint64_t>(response.close_reason));
  PutMessage(sink, 4, [&response](auto& inner) {
    static constexpr Stage kOnWire[] = {Stage::kAdmit,  Stage::kQueue,  Stage::kGather,
                                        Stage::kCopyIn, Stage::kKernel, Stage::kCopyOut};
    uint32_t field = 1;
    for (Stage stage : kOnWire) {
      PutDouble(inner, field++, response.stages[static_cast<size_t>(stage)]);
    }
  });
  PutString(sink, 5, response.node);
  PutString(sink, 6, response.device);
}

template <class Sink>
void PutResponse(Sink& sink, const ResponseView& response) {
  PutString(sink, 1, response.call_id);
  for (const OutputView& output : response.outputs) {
    PutMessage(sink, 2, [&](auto& inner) { PutOutput(inner, response, output); });
  }
  PutMessage(sink, 3, [&response](auto& inner) { PutProvenance(inner, response); });
}

// gRPC's own allocation ends the process where there is no memory; a large reply, which is what
// there may be none for, is asked for so that it throws.
grpc_slice NewSlice(size_t size) {
  constexpr size_t kLarge = 64 << 10;
  if (size < kLarge) return grpc_slice_malloc(size);
  void* const memory = ::operator new(size);
  return grpc_slice_new(memory, size, [](void* m) { ::operator delete(m); });
}

// Counts, allocates once, writes.
template <class Body>
grpc::ByteBuffer Encode(const Body& body) {
  Counter counter;
  body(counter);
  grpc_slice raw = NewSlice(counter.size());
  Writer writer(GRPC_SLICE_START_PTR(raw));
  body(writer);
  grpc::Slice slice(raw, grpc::Slice::STEAL_REF);
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace

int64_t OutputBytes(int64_t rows, int64_t n, int64_t output_pitch, size_t element_bytes) {
  const int64_t pitch = output_pitch == 0 ? n : output_pitch;
  return rows * pitch * static_cast<int64_t>(element_bytes);
}

grpc::ByteBuffer EncodeProjectResponse(const ResponseView& response) {
  return Encode([&response](auto& sink) { PutResponse(sink, response); });
}

grpc::ByteBuffer EncodeStreamResponse(const ResponseView& response) {
  return Encode([&response](auto& sink) {
    PutString(sink, 1, response.call_id);
    PutMessage(sink, 2, [&response](auto& inner) { PutResponse(inner, response); });
  });
}

grpc::ByteBuffer EncodeStreamError(std::string_view call_id, const google::rpc::Status& error) {
  const std::string body = error.SerializeAsString();
  return Encode([&](auto& sink) {
    PutString(sink, 1, call_id);
    sink.Tag(3, kLength);
    sink.Varint(body.size());
    sink.Bytes(body);
  });
}

}  // namespace fulcrum::service
