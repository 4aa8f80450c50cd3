#include "trtspec/safetensors.hpp"

#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "trtspec/files.hpp"
#include "trtspec/json.hpp"
#include "trtspec/memory_nodes.hpp"

namespace trtspec {

namespace {

struct TypeFacts {
  const char* name;
  std::size_t size;
};
// In the order of StoredType.
constexpr std::array<TypeFacts, 10> kTypes{{{"F32", 4},
                                            {"F64", 8},
                                            {"F16", 2},
                                            {"BF16", 2},
                                            {"I64", 8},
                                            {"I32", 4},
                                            {"I16", 2},
                                            {"I8", 1},
                                            {"U8", 1},
                                            {"BOOL", 1}}};

constexpr std::size_t kLengthBytes = 8;
// The limit of the format's own reader: a larger header is a damaged length.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

// Memory in pages of 2 MiB where the system has such: a processor that reads all weights for each
// token looks up the addresses of small pages for a good part of its time, and a mapped file has no
// others.
class LargePages {
 public:
  // For the contents of a file, which an Error names if there is not so much memory.
  LargePages(const std::string& path, std::size_t size) : size_(size) {
    if (size == 0) return;
    constexpr int kAccess = PROT_READ | PROT_WRITE, kKind = MAP_PRIVATE | MAP_ANONYMOUS;
    void* data = ::mmap(nullptr, size, kAccess, kKind, -1, 0);
    if (data == MAP_FAILED) throw Error(path + " cannot be read: " + std::strerror(errno));
    data_ = static_cast<std::byte*>(data);
    ::madvise(data_, size, MADV_HUGEPAGE);  // small pages are slower, no more
  }
  ~LargePages() {
    if (data_ != nullptr) ::munmap(data_, size_);
  }
  LargePages(const LargePages&) = delete;
  LargePages& operator=(const LargePages&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_;
};

}  // namespace

std::size_t size_of(StoredType type) { return kTypes[static_cast<std::size_t>(type)].size; }

const char* name_of(StoredType type) { return kTypes[static_cast<std::size_t>(type)].name; }

std::string StoredTensor::describe() const {
  std::string sizes;
  for (const std::int64_t size : shape) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  return std::string(name_of(type)) + " [" + sizes + "]";
}

struct SafetensorsFile::Impl {
  Impl(const std::string& path, StoredIn where) : path(path) {
    file = mapped.emplace(path).bytes();
    const std::uint64_t header = header_bytes();
    const char* text = reinterpret_cast<const char*>(file.data()) + kLengthBytes;
    const Json json = Json::parse({text, static_cast<std::size_t>(header)}, path + " (header)");
    const std::byte* data = file.data() + kLengthBytes + header;
    const std::size_t num_bytes = file.size() - kLengthBytes - header;
    for (const auto& [name, facts] : json.members()) {
      if (name != "__metadata__") tensors.emplace(name, read(name, facts, data, num_bytes));
    }
    check_gaps(data, num_bytes);
    if (where == StoredIn::memory) copy(data, num_bytes);
  }

  [[noreturn]] void fail(std::string_view name, const std::string& what) const {
    throw Error(path + ": tensor '" + std::string(name) + "' " + what);
  }

  std::uint64_t header_bytes() const {
    if (file.size() < kLengthBytes) {
      throw Error(path + " holds " + std::to_string(file.size()) +
                  " bytes, too few for a safetensors file");
    }
    std::uint64_t length = 0;
    for (std::size_t i = 0; i < kLengthBytes; ++i) {
      length |= std::to_integer<std::uint64_t>(file.data()[i]) << 8 * i;
    }
    if (length > kMaxHeaderBytes || length > file.size() - kLengthBytes) {
      throw Error(path + ": the header takes " + std::to_string(length) + " bytes, the file has " +
                  std::to_string(file.size() - kLengthBytes) + "; it is damaged or truncated");
    }
    return length;
  }

  StoredTensor read(const std::string& name, const Json& facts, const std::byte* data,
                    std::size_t num_bytes) const {
    constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
    const std::string& type_name = facts.at("dtype").as_string();
    const auto type = std::find_if(kTypes.begin(), kTypes.end(),
                                   [&](const TypeFacts& known) { return known.name == type_name; });
    if (type == kTypes.end()) fail(name, "has the type " + type_name + ", which is not supported");
    StoredTensor tensor{static_cast<StoredType>(type - kTypes.begin()), {}, nullptr, type->size};
    for (const Json& size : facts.at("shape").items()) {
      tensor.shape.push_back(size.as_int(0, kMax));
      if (__builtin_mul_overflow(tensor.num_bytes, static_cast<std::size_t>(tensor.shape.back()),
                                 &tensor.num_bytes)) {
        fail(name, "has a shape of more than 2^64 bytes");
      }
    }
    const auto offsets = facts.at("data_offsets").items();
    if (offsets.size() != 2) facts.at("data_offsets").refuse("expected two offsets");
    const auto begin = static_cast<std::size_t>(offsets[0].as_int(0, kMax));
    const auto end = static_cast<std::size_t>(offsets[1].as_int(0, kMax));
    if (end > num_bytes) {
      fail(name, "ends at byte " + std::to_string(end) + ", the file has " +
                     std::to_string(num_bytes) + " bytes of data; it is truncated");
    }
    if (begin > end || end - begin != tensor.num_bytes) {
      fail(name, "takes bytes " + std::to_string(begin) + " to " + std::to_string(end) +
                     ", its type and shape need " + std::to_string(tensor.num_bytes));
    }
    tensor.data = data + begin;
    return tensor;
  }

  // The format knows no gaps, no overlaps and nothing behind the last tensor.
  void check_gaps(const std::byte* data, std::size_t num_bytes) const {
    std::vector<std::pair<const std::byte*, const Tensors::value_type*>> order;
    for (const auto& tensor : tensors) order.emplace_back(tensor.second.data, &tensor);
    std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      const auto end = [](const auto& x) { return x.first + x.second->second.num_bytes; };
      return std::pair(a.first, end(a)) < std::pair(b.first, end(b));
    });
    const std::byte* expected = data;
    for (const auto& [begin, tensor] : order) {
      if (begin != expected) {
        fail(tensor->first, "begins at byte " + std::to_string(begin - data) +
                                ", the one before it ends at " + std::to_string(expected - data));
      }
      expected = begin + tensor->second.num_bytes;
    }
    if (expected != data + num_bytes) {
      throw Error(path + ": its tensors end at byte " + std::to_string(expected - data) + " of " +
                  std::to_string(num_bytes));
    }
  }

  // Puts the tensors where the threads are that will read them.
  void copy(const std::byte* data, std::size_t num_bytes) {
    std::byte* own = copied.emplace(path, num_bytes).data();
    std::vector<Copy> copies;
    for (auto& [name, tensor] : tensors) {
      std::byte* to = own + (tensor.data - data);
      copies.push_back({to, tensor.data, static_cast<std::int64_t>(tensor.num_bytes)});
      tensor.data = to;
    }
    copy_to_nodes(copies, omp_get_max_threads());
    mapped.reset();
    file = {};
  }

  std::string path;
  std::optional<LargePages> copied;
  std::optional<MappedFile> mapped;
  std::span<const std::byte> file;
  Tensors tensors;
};

SafetensorsFile::SafetensorsFile(const std::string& path, StoredIn where)
    : impl_(std::make_unique<Impl>(path, where)) {}
SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;

const std::string& SafetensorsFile::path() const { return impl_->path; }

const SafetensorsFile::Tensors& SafetensorsFile::tensors() const { return impl_->tensors; }

const StoredTensor& SafetensorsFile::at(std::string_view name) const {
  const auto found = impl_->tensors.find(name);
  if (found == impl_->tensors.end()) impl_->fail(name, "is missing");
  return found->second;
}

}  // namespace trtspec
