// The plugins as applications and TensorRT find them.
//
// IPluginRegistry::loadLibrary(path of libtrtspec_plugins.so) loads and registers all of them; it
// is the way from Python too. Programs that link the library call init_plugins.
#pragma once
#include <NvInferRuntime.h>

#include <cstdint>

#define TRTSPEC_EXPORT __attribute__((visibility("default")))

namespace trtspec::tensorrt {

// Registers the plugins; false if the registry refuses one (it has one of that name already).
TRTSPEC_EXPORT bool init_plugins(nvinfer1::IPluginRegistry& registry);

}  // namespace trtspec::tensorrt

// What TensorRT looks up in a plugin library.
extern "C" TRTSPEC_EXPORT nvinfer1::IPluginCreatorInterface* const* getCreators(
    std::int32_t& num_creators);
extern "C" TRTSPEC_EXPORT void setLoggerFinder(nvinfer1::ILoggerFinder* finder);
