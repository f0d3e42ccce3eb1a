// Tide: another small framework, with another notion of time. One thread turns a loop, and a tensor is ready when the loop
// has passed the tensor's ticket. There are no callbacks, only polls. Tide knows nothing of Estafette.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace tide {

struct Tensor {
  explicit Tensor(size_t length) : values(length) {}
  std::vector<double> values;
  // The tensor is ready when its loop has completed this many steps.
  uint64_t ticket = 0;
};

class Loop {
 public:
  // Tries a step. A step that cannot run yet returns false, delays the steps behind it, and is tried again in the next turn.
  using Step = std::function<bool()>;

  uint64_t push(Step step) {
    steps_.push_back(std::move(step));
    return ++pushed_;
  }

  // Runs the steps that can run now. Returns how many steps are left. Never blocks.
  size_t turn() {
    while (!steps_.empty() && steps_.front()()) {
      steps_.pop_front();
      completed_.fetch_add(1, std::memory_order_release);
    }
    return steps_.size();
  }

  bool passed(uint64_t ticket) const { return completed_.load(std::memory_order_acquire) >= ticket; }

 private:
  std::deque<Step> steps_;
  uint64_t pushed_ = 0;
  std::atomic<uint64_t> completed_{0};
};

}  // namespace tide
