#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <string>

#include "check.hpp"
#include "mapped_from.hpp"
#include "trtspec/safetensors.hpp"

using trtspec::SafetensorsFile;
using trtspec::StoredIn;
using trtspec::StoredType;

namespace {

class TempFile {
 public:
  explicit TempFile(std::string_view contents) {
    path_ = "/tmp/test_safetensors_" + std::to_string(::getpid());
    std::ofstream(path_, std::ios::binary) << contents;
  }
  ~TempFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string with_length(const std::string& header, const std::string& data) {
  std::string out;
  for (std::size_t i = 0; i < 8; ++i) out.push_back(static_cast<char>(header.size() >> 8 * i));
  return out + header + data;
}

// What opening says, "" if it succeeds.
std::string error_of(const std::string& contents) {
  const TempFile file(contents);
  try {
    SafetensorsFile(file.path());
    return "";
  } catch (const trtspec::Error& error) {
    return error.what();
  }
}

std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

bool says(const std::string& error, std::string_view what) {
  return error.find(what) != std::string::npos;
}

const std::string kGood =
    with_length("{\"__metadata__\":{\"a\":\"b\"},\"x\":" + tensor("F32", "[2,1]", "[8,16]") +
                    ",\"n\":" + tensor("I64", "[]", "[0,8]") +
                    ",\"e\":" + tensor("BF16", "[0,4]", "[8,8]") + "}  ",
                std::string("\7\0\0\0\0\0\0\0\0\0\200\77\0\0\0\300", 16));

void test_reads(StoredIn where) {
  const TempFile file(kGood);
  SafetensorsFile first(file.path(), where);
  const SafetensorsFile opened = std::move(first);
  CHECK_EQ(opened.tensors().size(), 3u);
  const auto& x = opened.at("x");
  CHECK_EQ(mapped_from(x.data), where == StoredIn::file ? file.path() : "");
  CHECK(x.type == StoredType::f32 && x.shape == (std::vector<std::int64_t>{2, 1}));
  float values[2];
  std::memcpy(values, x.data, x.num_bytes);
  CHECK(values[0] == 1.0f && values[1] == -2.0f);
  std::int64_t n = 0;
  std::memcpy(&n, opened.at("n").data, sizeof n);
  CHECK_EQ(n, 7);
  CHECK_EQ(opened.at("e").num_bytes, 0u);
  CHECK_EQ(x.describe(), "F32 [2, 1]");
  CHECK_EQ(opened.at("n").describe(), "I64 []");
  CHECK_EQ(opened.at("e").describe(), "BF16 [0, 4]");
  CHECK_THROWS(opened.at("y"));
  CHECK_EQ(error_of(with_length("{}", "")), "");
}

void test_refused() {
  CHECK_THROWS(SafetensorsFile("/nowhere/at/all"));
  CHECK_THROWS(SafetensorsFile("/tmp"));
  CHECK(says(error_of(""), "0 bytes"));
  CHECK(says(error_of("1234567"), "7 bytes"));
  CHECK(says(error_of(std::string(8, '\xff') + "{}"), "header"));
  CHECK(says(error_of(kGood.substr(0, kGood.size() - 1)), "tensor 'x' ends at byte 16"));
  CHECK(says(error_of(kGood.substr(0, 40)), "header"));
  CHECK(says(error_of(kGood + "z"), "of 17"));
  const auto one = [](const std::string& facts, std::size_t bytes) {
    return error_of(with_length("{\"t\":" + facts + "}", std::string(bytes, 0)));
  };
  CHECK_EQ(one(tensor("F16", "[3]", "[0,6]"), 6), "");
  CHECK(says(one(tensor("F8_E4M3", "[6]", "[0,6]"), 6), "F8_E4M3"));
  CHECK(says(one(tensor("F16", "[4]", "[0,6]"), 6), "need 8"));
  CHECK(says(one(tensor("F16", "[3]", "[2,8]"), 8), "begins at byte 2"));
  CHECK(says(one(tensor("F16", "[3]", "[6,0]"), 6), "takes bytes 6 to 0"));
  CHECK(says(one(tensor("F16", "[-3]", "[0,6]"), 6), "-3"));
  CHECK(says(one(tensor("F16", "[3]", "[0,6,7]"), 6), "two offsets"));
  CHECK(says(one(tensor("F16", "[4294967296,4294967296,4]", "[0,6]"), 6), "2^64"));
  CHECK(says(one("{\"dtype\":\"F16\",\"shape\":[3]}", 6), "data_offsets"));
  CHECK(says(error_of(with_length("[]", "")), "expected an object"));
  const std::string twice =
      "{\"a\":" + tensor("U8", "[4]", "[0,4]") + ",\"b\":" + tensor("U8", "[4]", "[2,6]") + "}";
  CHECK(says(error_of(with_length(twice, "123456")), "tensor 'b' begins at byte 2"));
}

void test_damaged() {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::string contents = kGood;
    contents[random() % contents.size()] = static_cast<char>(random());
    if (round % 3 == 0) contents.resize(random() % contents.size());
    CHECK(!says(error_of(contents), "\n"));
  }
}

}  // namespace

int main() {
  test_reads(StoredIn::memory);
  test_reads(StoredIn::file);
  test_refused();
  test_damaged();
  return check_result();
}
