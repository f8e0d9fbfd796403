// Answers from protobuf's generated pool, one request of a stream at a time.
// SPDX-License-Identifier: Apache-2.0
#include "service/reflection_service.h"

#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "reflection.grpc.pb.h"
#include "service/bounded_methods.h"
#include "service/grpc_status.h"

namespace fulcrum::service {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;
using Request = grpc::reflection::v1alpha::ServerReflectionRequest;
using Response = grpc::reflection::v1alpha::ServerReflectionResponse;
using Rpc = grpc::reflection::v1alpha::ServerReflection;

const DescriptorPool& Pool() { return *DescriptorPool::generated_pool(); }

// The file and all that it imports, each once.
void AddFile(const FileDescriptor* file, std::set<const FileDescriptor*>* added,
             grpc::reflection::v1alpha::FileDescriptorResponse* out) {
  if (!added->insert(file).second) return;
  google::protobuf::FileDescriptorProto proto;
  file->CopyTo(&proto);
  out->add_file_descriptor_proto(proto.SerializeAsString());
  for (int i = 0; i < file->dependency_count(); ++i) AddFile(file->dependency(i), added, out);
}

absl::Status GiveFile(const FileDescriptor* file, std::string_view asked, Response* response) {
  if (file == nullptr) return absl::NotFoundError(absl::StrCat("no ", Quoted(asked)));
  std::set<const FileDescriptor*> added;
  AddFile(file, &added, response->mutable_file_descriptor_response());
  return absl::OkStatus();
}

absl::Status GiveExtensions(const std::string& type, Response* response) {
  const google::protobuf::Descriptor* message = Pool().FindMessageTypeByName(type);
  if (message == nullptr) return absl::NotFoundError(absl::StrCat("no ", Quoted(type)));
  std::vector<const google::protobuf::FieldDescriptor*> extensions;
  Pool().FindAllExtensions(message, &extensions);
  auto* out = response->mutable_all_extension_numbers_response();
  out->set_base_type_name(type);
  for (const auto* extension : extensions) out->add_extension_number(extension->number());
  return absl::OkStatus();
}

const FileDescriptor* FileOfExtension(const std::string& type, int number) {
  const google::protobuf::Descriptor* message = Pool().FindMessageTypeByName(type);
  const auto* extension =
      message == nullptr ? nullptr : Pool().FindExtensionByNumber(message, number);
  return extension == nullptr ? nullptr : extension->file();
}

absl::Status Give(const Request& request, const std::vector<std::string>& services,
                  Response* response) {
  switch (request.message_request_case()) {
    case Request::kListServices:
      for (const std::string& name : services) {
        response->mutable_list_services_response()->add_service()->set_name(name);
      }
      return absl::OkStatus();
    case Request::kFileByFilename:
      return GiveFile(Pool().FindFileByName(request.file_by_filename()), request.file_by_filename(),
                      response);
    case Request::kFileContainingSymbol:
      return GiveFile(Pool().FindFileContainingSymbol(request.file_containing_symbol()),
                      request.file_containing_symbol(), response);
    case Request::kFileContainingExtension: {
      const auto& asked = request.file_containing_extension();
      return GiveFile(FileOfExtension(asked.containing_type(), asked.extension_number()),
                      asked.containing_type(), response);
    }
    case Request::kAllExtensionNumbersOfType:
      return GiveExtensions(request.all_extension_numbers_of_type(), response);
    case Request::MESSAGE_REQUEST_NOT_SET:
      break;
  }
  return absl::UnimplementedError("the request asks for nothing that this node knows");
}

// One stream: reads, answers, writes, and again. Deletes itself when it is over.
class Stream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit Stream(const std::vector<std::string>& services) : services_(services) {
    StartRead(&bytes_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    Request request;
    if (absl::Status status = Parse(&request); !status.ok()) return Finish(ToGrpc(status));
    Response response;
    const absl::Status status = Give(request, services_, &response);
    if (!status.ok()) {
      response.mutable_error_response()->set_error_code(static_cast<int>(status.code()));
      response.mutable_error_response()->set_error_message(std::string(status.message()));
    }
    response.set_valid_host(request.host());
    *response.mutable_original_request() = std::move(request);
    bool own = false;
    grpc::SerializationTraits<Response>::Serialize(response, &bytes_, &own);
    StartWrite(&bytes_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    StartRead(&bytes_);
  }
  void OnDone() override { delete this; }

 private:
  absl::Status Parse(Request* request) {
    const size_t size = bytes_.Valid() ? bytes_.Length() : 0;
    if (size <= kMaxControlBytes &&
        grpc::SerializationTraits<Request>::Deserialize(&bytes_, request).ok()) {
      return absl::OkStatus();
    }
    return RequestRefused(size, Request::descriptor()->full_name());
  }

  const std::vector<std::string>& services_;
  grpc::ByteBuffer bytes_;
};

class ReflectionService final
    : public Rpc::WithRawCallbackMethod_ServerReflectionInfo<Rpc::Service> {
 public:
  explicit ReflectionService(std::vector<std::string> services) : services_(std::move(services)) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ServerReflectionInfo(
      grpc::CallbackServerContext* /*context*/) override {
    return new Stream(services_);
  }

 private:
  const std::vector<std::string> services_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeReflectionService(std::vector<std::string> services) {
  return std::make_unique<ReflectionService>(std::move(services));
}

}  // namespace fulcrum::service
