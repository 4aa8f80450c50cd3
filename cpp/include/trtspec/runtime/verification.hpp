// Verification: the rows of a step's requests verified by the logits that the target gave them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <span>
#include <trtspec/draft_batch.hpp>
#include <trtspec/logits_processor.hpp>
#include <trtspec/runtime/device.hpp>
#include <trtspec/runtime/request.hpp>
#include <trtspec/runtime/sampler.hpp>

namespace trtspec {

// The logits processors of the requests that run; requests without any are not kept.
class RequestProcessors {
 public:
  // The request's processor, which knows its text; null: its logits stay as they are. Valid until
  // it is released.
  const LogitsProcessor* of(const Request& request);
  // Forgets a request that ended; unknown ids are ignored.
  void release(std::int64_t request_id) { processors_.erase(request_id); }
  bool empty() const { return processors_.empty(); }

 private:
  std::map<std::int64_t, LogitsProcessor> processors_;
};

// Has the rows of the items that sample and of their drafts sampled by their requests' options, and
// walks every draft.
// logits f32 [R, V] are where `device` samples; if a request changes them or asks for log
// probabilities, all come to the host and are changed in place there. Throws std::runtime_error for
// logits of another shape or dtype.
StepResult verify(std::span<const ScheduledRows> items, const DraftBatch& drafts,
                  RequestProcessors& processors, const at::Tensor& logits, Device& device);

}  // namespace trtspec
