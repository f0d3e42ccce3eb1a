#include "mill.hpp"

#include <atomic>
#include <exception>
#include <utility>

namespace mill {

Event::State Event::state() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return state_;
}

std::string Event::failure() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

void Event::then(Callback callback) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (state_ == State::pending) {
    waiting_.push_back(std::move(callback));
    return;
  }
  std::string failure = failure_;
  bool failed = state_ == State::failed;
  lock.unlock();
  callback(failed ? &failure : nullptr);
}

void Event::settle(const std::string *failure) {
  std::vector<Callback> callbacks;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (state_ != State::pending) return;
    state_ = failure == nullptr ? State::done : State::failed;
    if (failure != nullptr) failure_ = *failure;
    callbacks.swap(waiting_);
  }
  for (Callback &callback : callbacks) callback(failure);
}

Pool::Pool(unsigned threads) {
  for (unsigned at = 0; at < threads; at++) threads_.emplace_back([this] { work(); });
}

Pool::~Pool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread &thread : threads_) thread.join();
}

void Pool::push(std::function<void()> task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
}

void Pool::work() {
  for (;;) {
    std::unique_lock<std::mutex> lock(mutex_);
    wake_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
  }
}

namespace {

// A task that waits for its inputs.
struct Waiting {
  std::atomic<size_t> missing;
  std::mutex mutex;
  std::string failure;
};

}  // namespace

std::shared_ptr<Tensor> Pool::run(
    size_t length, std::vector<std::shared_ptr<Tensor>> inputs,
    std::function<void(const std::vector<std::shared_ptr<Tensor>> &, Tensor &)> fill) {
  auto out = std::make_shared<Tensor>(length);
  auto waiting = std::make_shared<Waiting>();
  // One more than the inputs, so that the task does not begin before its description is complete.
  waiting->missing = inputs.size() + 1;
  auto one_less = [this, waiting, out, inputs, fill](const std::string *failure) {
    if (failure != nullptr) {
      std::lock_guard<std::mutex> lock(waiting->mutex);
      waiting->failure = *failure;
    }
    if (waiting->missing.fetch_sub(1) != 1) return;
    push([waiting, out, inputs, fill] {
      if (!waiting->failure.empty()) return out->ready->settle(&waiting->failure);
      try {
        fill(inputs, *out);
        out->ready->settle(nullptr);
      } catch (const std::exception &error) {
        std::string why = error.what();
        out->ready->settle(&why);
      }
    });
  };
  for (const std::shared_ptr<Tensor> &input : inputs) input->ready->then(one_less);
  one_less(nullptr);
  return out;
}

}  // namespace mill
