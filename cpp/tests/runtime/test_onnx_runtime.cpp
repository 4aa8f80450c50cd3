// The functions of ONNX Runtime that are called by their places in its table: each against what the
// library does, on a graph that is written here.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <trtspec/error.hpp>
#include <trtspec/files.hpp>
#include <trtspec/runtime/onnx_session.hpp>

#include "check.hpp"

namespace {

using namespace trtspec;

// Fields of a protocol buffer.
std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
  return out;
}
std::string number(int field, std::uint64_t value) { return varint(field << 3) + varint(value); }
std::string text(int field, const std::string& value) {
  return varint(field << 3 | 2) + varint(value.size()) + value;
}

constexpr int kFloat = 1, kInt64 = 7;  // of TensorProto's element types

// An input or output; size 0 is one that is free.
std::string value(const std::string& name, int type, std::initializer_list<int> sizes) {
  std::string shape;
  for (const int size : sizes) shape += text(1, size == 0 ? text(2, "n") : number(1, size));
  return text(1, name) + text(2, text(1, number(1, type) + text(2, shape)));
}
std::string node(const std::string& op, std::initializer_list<const char*> inputs,
                 const char* output) {
  std::string out;
  for (const char* input : inputs) out += text(1, input);
  return out + text(2, output) + text(4, op);
}

// sum = x + w, size = the sizes of x, cache_out = cache + cache; w is 0 in the file.
std::string graph() {
  const std::string weight =
      number(1, 2) + number(2, kFloat) + text(8, "model.w") + text(9, std::string(8, '\0'));
  const std::string body =
      text(1, node("Add", {"x", "model.w"}, "sum")) + text(1, node("Shape", {"x"}, "size")) +
      text(1, node("Add", {"cache", "cache"}, "cache_out")) + text(2, "test") + text(5, weight) +
      text(11, value("x", kFloat, {0, 2})) + text(11, value("cache", kFloat, {3})) +
      text(12, value("sum", kFloat, {0, 2})) + text(12, value("size", kInt64, {2})) +
      text(12, value("cache_out", kFloat, {3}));
  return number(1, 8) + text(7, body) + text(8, number(2, 13));
}

struct File {
  std::string path = "/tmp/trtspec_" + std::to_string(::getpid()) + ".onnx";
  explicit File(const std::string& contents) { write_file(path, contents); }
  ~File() { std::remove(path.c_str()); }
};

template <class Call>
std::string refusal(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// A session: every function of the table but those below has a part in it.
void test_session(const std::shared_ptr<const OnnxRuntime>& runtime) {
  const File file(graph());
  const at::Tensor weight = at::full({2}, 10.0F);
  // More weights than the graph has are no error.
  OnnxSession session(runtime, file.path, {{"w", weight}}, 1);
  CHECK(session.input_sizes(0) == (std::vector<std::int64_t>{-1, 2}));
  CHECK(session.input_sizes(1) == (std::vector<std::int64_t>{3}));
  for (const std::int64_t rows : {1, 4}) {
    const at::Tensor x = at::arange(2 * rows, at::kFloat).view({rows, 2});
    const at::Tensor cache = at::ones({3});
    const auto outputs = session.run({x, cache});
    CHECK_EQ(outputs.size(), 2U);
    CHECK(outputs[0].equal(x.add(10)));
    CHECK(outputs[1].scalar_type() == at::kLong);
    CHECK_EQ(outputs[1].const_data_ptr<std::int64_t>()[0], rows);
    CHECK(cache.equal(at::full({3}, 2.0F)));  // in place
  }
  // Weights are not copied: the session sees what becomes of them.
  weight.fill_(20);
  CHECK(session.run({at::ones({1, 2}), at::ones({3})})[0].equal(at::full({1, 2}, 21.0F)));
  CHECK(refusal([&] { session.run({at::ones({1, 3}), at::ones({3})}); }).find("x") !=
        std::string::npos);
}

void test_session_is_refused(const std::shared_ptr<const OnnxRuntime>& runtime) {
  const File file("not a graph");
  const std::string said = refusal([&] { OnnxSession(runtime, file.path, {}); });
  CHECK(said.find(file.path + " cannot be loaded (ONNX Runtime failed: ") == 0);
  CHECK(said.find('\n') == std::string::npos);
}

// What a session hands on but does not show: the counts and names of inputs and outputs apart, and
// options that can be refused.
void test_table(const std::shared_ptr<const OnnxRuntime>& runtime) {
  const ort::Api& api = runtime->api();
  const File file(graph());
  ort::SessionOptions* options = nullptr;
  runtime->check(api.create_session_options(&options));
  runtime->check(api.set_log_severity(options, 3));
  runtime->check(api.set_num_threads(options, 1));
  ort::Session* session = nullptr;
  runtime->check(api.create_session(runtime->env(), file.path.c_str(), options, &session));
  std::size_t inputs = 0, outputs = 0;
  runtime->check(api.input_count(session, &inputs));
  runtime->check(api.output_count(session, &outputs));
  CHECK_EQ(inputs, 2U);
  CHECK_EQ(outputs, 3U);
  ort::Allocator* allocator = nullptr;
  runtime->check(api.default_allocator(&allocator));
  const auto name = [&](const auto& function, std::size_t index) {
    char* found = nullptr;
    runtime->check(function(session, index, allocator, &found));
    const std::string copied = found;
    runtime->check(api.allocator_free(allocator, found));
    return copied;
  };
  CHECK_EQ(name(api.input_name, 0), "x");
  CHECK_EQ(name(api.input_name, 1), "cache");
  CHECK_EQ(name(api.output_name, 0), "sum");
  CHECK_EQ(name(api.output_name, 2), "cache_out");
  ort::TypeInfo* type = nullptr;
  runtime->check(api.input_type(session, 0, &type));
  const ort::TensorInfo* info = nullptr;
  runtime->check(api.to_tensor_info(type, &info));
  int element = 0;
  std::size_t dim = 0;
  std::int64_t sizes[2] = {};
  runtime->check(api.element_type(info, &element));
  runtime->check(api.num_dimensions(info, &dim));
  runtime->check(api.dimensions(info, sizes, 2));
  CHECK_EQ(element, kFloat);
  CHECK_EQ(dim, 2U);
  CHECK(sizes[0] == -1 && sizes[1] == 2);
  api.release_type_info(type);
  const std::string said = refusal([&] { runtime->check(api.input_type(session, 9, &type)); });
  CHECK(said.find("ONNX Runtime failed: ") == 0);
  api.release_session(session);
  api.release_session_options(options);
}

void test_other_libraries() {
  CHECK(refusal([] { OnnxRuntime::load("libc.so.6"); }).find("it lacks OrtGetApiBase") !=
        std::string::npos);
  CHECK(refusal([] {
          OnnxRuntime::load("/nowhere/libonnxruntime.so");
        }).find("/nowhere/libonnxruntime.so") != std::string::npos);
}

}  // namespace

int main() {
  test_other_libraries();
  std::shared_ptr<const OnnxRuntime> runtime;
  try {
    runtime = OnnxRuntime::load();
  } catch (const Error& error) {
    std::printf("skipped: %s\n", error.what());
    return check_result();
  }
  test_session(runtime);
  test_session_is_refused(runtime);
  test_table(runtime);
  return check_result();
}
