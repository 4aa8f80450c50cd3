#include "plugins.hpp"

#include <array>

#include "keyed_sample.hpp"
#include "logging.hpp"
#include "paged_attention.hpp"
#include "tree_accept.hpp"
#include "tree_mask.hpp"

namespace trtspec::tensorrt {

namespace {

const auto& creators() {
  static Creator<TreeMask> tree_mask;
  static Creator<KeyedSample> keyed_sample;
  static Creator<TreeAccept> tree_accept;
  static Creator<PagedTreeAttention> paged_attention;
  static const std::array<nvinfer1::IPluginCreatorInterface*, 4> all = {
      &tree_mask, &keyed_sample, &tree_accept, &paged_attention};
  return all;
}

}  // namespace

bool init_plugins(nvinfer1::IPluginRegistry& registry) {
  bool registered = true;
  for (nvinfer1::IPluginCreatorInterface* creator : creators()) {
    registered = registry.registerCreator(*creator, kNamespace) && registered;
  }
  return registered;
}

}  // namespace trtspec::tensorrt

nvinfer1::IPluginCreatorInterface* const* getCreators(std::int32_t& num_creators) {
  const auto& all = trtspec::tensorrt::creators();
  num_creators = std::int32_t(all.size());
  return all.data();
}

void setLoggerFinder(nvinfer1::ILoggerFinder* finder) {
  trtspec::tensorrt::set_logger_finder(finder);
}
