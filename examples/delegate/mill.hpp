// Mill: a small framework with its own scheduler. Tasks run on a pool of threads. A tensor is ready when the event of the
// task that fills it has settled, and callbacks report that. Mill knows nothing of Estafette.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace mill {

// Settles once: with success, or with the reason of a failure.
class Event {
 public:
  using Callback = std::function<void(const std::string *failure)>;
  enum class State { pending, done, failed };

  State state() const;
  // The reason of the failure. Empty without a failure.
  std::string failure() const;
  // Calls `callback` when the event settles, or at once if it has settled.
  void then(Callback callback);
  void settle(const std::string *failure);

 private:
  mutable std::mutex mutex_;
  State state_ = State::pending;
  std::string failure_;
  std::vector<Callback> waiting_;
};

// A vector of numbers that a task fills.
struct Tensor {
  explicit Tensor(size_t length) : values(length), ready(std::make_shared<Event>()) {}
  std::vector<float> values;
  std::shared_ptr<Event> ready;
};

class Pool {
 public:
  explicit Pool(unsigned threads);
  // Runs the tasks that were pushed, and stops.
  ~Pool();

  void push(std::function<void()> task);

  // A tensor that `fill` writes when the inputs are ready. The tensor fails if `fill` throws or an input has failed.
  std::shared_ptr<Tensor> run(size_t length, std::vector<std::shared_ptr<Tensor>> inputs,
                              std::function<void(const std::vector<std::shared_ptr<Tensor>> &, Tensor &)> fill);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace mill
