// Mill: a small framework with a scheduler of its own. Tasks run on a pool of threads; a tensor is ready when the event of
// the task that fills it has settled, and whoever wants to know is called back. It knows nothing of Estafette.
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

// Settles once, well or with a reason.
class Event {
 public:
  using Callback = std::function<void(const std::string *failure)>;
  enum class State { pending, done, failed };

  State state() const;
  // The reason; empty unless it has failed.
  std::string failure() const;
  // Calls `callback` when it settles; at once if it has.
  void then(Callback callback);
  void settle(const std::string *failure);

 private:
  mutable std::mutex mutex_;
  State state_ = State::pending;
  std::string failure_;
  std::vector<Callback> waiting_;
};

// A vector of numbers that somebody fills.
struct Tensor {
  explicit Tensor(size_t length) : values(length), ready(std::make_shared<Event>()) {}
  std::vector<float> values;
  std::shared_ptr<Event> ready;
};

class Pool {
 public:
  explicit Pool(unsigned threads);
  // Runs what was pushed, then stops.
  ~Pool();

  void push(std::function<void()> task);

  // A tensor that `fill` writes when the inputs are ready. It may throw: then the tensor has failed, as it has when an input did.
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
