// estafette.h for C++17: handles that give themselves up, errors as exceptions, and `co_await tensor.ready()` under C++20.
//
// Every function throws `estafette::Error` where the C function returns an error or ESTAFETTE_TIMEOUT. Header-only; a program that
// uses it links to the same library as one that uses estafette.h.

#ifndef ESTAFETTE_HPP
#define ESTAFETTE_HPP

#if __cplusplus < 201703L && !(defined(_MSVC_LANG) && _MSVC_LANG >= 201703L)
#error "estafette.hpp needs C++17: -std=c++17, or a later one"
#endif

#include "estafette.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#if defined(__cpp_impl_coroutine) && __cpp_impl_coroutine >= 201902L
#include <coroutine>
#define ESTAFETTE_HAS_COROUTINES 1
#endif

namespace estafette {

/// Status of a call that did not succeed, and the reason.
class Error : public std::runtime_error {
 public:
  Error(int status, const std::string &message)
      : std::runtime_error(message.empty() ? estafette_status_text(status) : message), status_(status) {}

  /// An `estafette_status`.
  int status() const noexcept { return status_; }

 private:
  int status_;
};

/// Throws unless `status` is ESTAFETTE_OK.
inline void check(int status) {
  // "Not yet" leaves the text of an earlier error where it is.
  if (status != ESTAFETTE_OK) throw Error(status, status == ESTAFETTE_PENDING ? "" : estafette_last_error());
}

/// A point in the work of some scheduler. Copies share it.
class Fence {
 public:
  /// Adopts one reference.
  static Fence adopt(const DLFence &raw) { return Fence(raw); }

  /// Adds a reference.
  static Fence share(const DLFence &raw) {
    if (raw.retain) raw.retain(raw.context);
    return Fence(raw);
  }

  Fence(const Fence &other) : raw_(other.raw_) {
    if (raw_.retain) raw_.retain(raw_.context);
  }
  Fence(Fence &&other) noexcept : raw_(other.raw_) { other.raw_ = dlpack_fence_done(other.raw_.device); }
  Fence &operator=(Fence other) noexcept {
    std::swap(raw_, other.raw_);
    return *this;
  }
  ~Fence() {
    if (raw_.release) raw_.release(raw_.context);
  }

  const DLFence *get() const noexcept { return &raw_; }

  /// True if it is done. Throws when it has failed.
  bool is_done() const {
    int status = dlpack_fence_query(&raw_);
    if (status < 0) throw Error(status, text());
    return status == ESTAFETTE_OK;
  }

 private:
  explicit Fence(const DLFence &raw) : raw_(raw) {}

  std::string text() const {
    const char *text = raw_.error ? raw_.error(raw_.context) : nullptr;
    return text ? text : "";
  }

  DLFence raw_;
};

/// A fence that this program settles, once. Dropped without a word, it fails the fence as cancelled.
class Promise {
 public:
  explicit Promise(const char *name = nullptr) : Promise(make(name)) {}

  estafette_promise *get() const noexcept { return promise_.get(); }

  const Fence &fence() const noexcept { return fence_; }

  void complete() { settle(ESTAFETTE_OK, nullptr); }
  /// `status` is a negative `estafette_status`.
  void fail(const std::string &message, int status = ESTAFETTE_FAILED) {
    if (status == ESTAFETTE_OK) throw Error(ESTAFETTE_INVALID, "status is ESTAFETTE_OK, which is no failure");
    settle(status, message.c_str());
  }

 private:
  struct Drop {
    void operator()(estafette_promise *promise) const { estafette_promise_drop(promise); }
  };
  using Handle = std::unique_ptr<estafette_promise, Drop>;
  using Made = std::pair<estafette_promise *, DLFence>;

  explicit Promise(Made made) : promise_(made.first), fence_(Fence::adopt(made.second)) {}

  static Made make(const char *name) {
    Made made;
    check(estafette_promise_create(name, &made.first, &made.second));
    return made;
  }

  void settle(int status, const char *message) {
    check(estafette_promise_settle(promise_.get(), status, message));
    promise_.release();
  }

  Handle promise_;
  Fence fence_;
};

/// A use of a tensor outside of every operation. Ends when dropped, or by `release` after the owner's last device work.
class Lease {
 public:
  explicit Lease(estafette_lease *lease) : lease_(lease) {}

  estafette_lease *get() const noexcept { return lease_.get(); }

  void release(const Fence &done) {
    if (!lease_) throw Error(ESTAFETTE_INVALID, "the lease was moved or released before");
    check(estafette_lease_release(lease_.get(), done.get()));
    lease_.release();
  }

  /// Its end, for the producer.
  Fence end() const {
    DLFence fence;
    check(estafette_lease_fence(lease_.get(), &fence));
    return Fence::adopt(fence);
  }

 private:
  struct Drop {
    void operator()(estafette_lease *lease) const { estafette_lease_release(lease, nullptr); }
  };
  std::unique_ptr<estafette_lease, Drop> lease_;
};

/// Condition under which another process gets a copy of a tensor that it is shown.
enum class Copy {
  /// A copy if the memory is not shared.
  if_needed = 0,
  always = 1,
  /// Throws with ESTAFETTE_NOT_SHARED instead.
  never = -1,
};

/// Options of a ticket; see `estafette_ticket_options`.
struct TicketOptions {
  /// For one use.
  bool once = false;
  Copy copy = Copy::if_needed;
  /// Address at which other machines reach this process; empty if they do not.
  std::string reach;
  /// With `reach`: silence after which a process on another machine is suspected, and takes this one for dead, at least 2 s; 0 for 10 s.
  std::uint64_t deadline_ns = 0;
};

/// Names a version of a tensor for processes that no link joins: `Tensor::ticket`, `Engine::from_ticket`. Dropped, it is revoked, unless it is
/// for one use, which nothing has to keep.
class Ticket {
 public:
  explicit Ticket(estafette_ticket *ticket) : ticket_(ticket) {}

  estafette_ticket *get() const noexcept { return ticket_.get(); }

  /// They may travel through anything.
  std::vector<std::uint8_t> bytes() const {
    std::size_t size;
    check(estafette_ticket_bytes(ticket_.get(), nullptr, 0, &size));
    std::vector<std::uint8_t> bytes(size);
    check(estafette_ticket_bytes(ticket_.get(), bytes.data(), size, &size));
    return bytes;
  }

  /// Nothing new can be made with it, also if it is for one use.
  void revoke() { check(estafette_ticket_revoke(ticket_.release())); }

 private:
  struct Drop {
    void operator()(estafette_ticket *ticket) const { estafette_ticket_release(ticket); }
  };
  std::unique_ptr<estafette_ticket, Drop> ticket_;
};

/// Address at which other processes make links to this one: `Engine::accept`, and there `Engine::connect`.
class Door {
 public:
  Door() {
    estafette_door *out;
    check(estafette_door_open(&out));
    door_.reset(out);
  }

  estafette_door *get() const noexcept { return door_.get(); }

  std::string address() const {
    char *text;
    check(estafette_door_address(get(), &text));
    std::unique_ptr<char, void (*)(char *)> held(text, estafette_string_free);
    return text;
  }

 private:
  struct Drop {
    void operator()(estafette_door *door) const { estafette_door_close(door); }
  };
  std::unique_ptr<estafette_door, Drop> door_;
};

/// Calls a DLPack deleter.
struct DeleteManaged {
  template <typename M>
  void operator()(M *managed) const {
    if (managed && managed->deleter) managed->deleter(managed);
  }
};

/// Calls the DLPack deleter of a tensor with fences.
struct DeleteFenced {
  void operator()(DLManagedTensorFenced *fenced) const {
    if (fenced && fenced->managed.deleter) fenced->managed.deleter(&fenced->managed);
  }
};

/// An exported tensor of which this program is the consumer.
using Managed = std::unique_ptr<DLManagedTensorVersioned, DeleteManaged>;

/// The same in the struct from before DLPack 1.0.
using ManagedLegacy = std::unique_ptr<DLManagedTensor, DeleteManaged>;

/// The same with fences of both sides.
using ManagedFenced = std::unique_ptr<DLManagedTensorFenced, DeleteFenced>;

namespace detail {

inline estafette_export_options lease_options(estafette_access access, DLDevice device, void *stream, std::uint64_t timeout_ns,
                                              bool any_thread) {
  estafette_export_options options = {};
  options.size = sizeof options;
  options.access = access;
  options.device = device;
  options.stream = stream;
  options.nonblocking = timeout_ns == 0;
  options.timeout_ns = timeout_ns;
  options.any_thread = any_thread;
  return options;
}

}  // namespace detail

#ifdef ESTAFETTE_HAS_COROUTINES
/// Gets a function that resumes a coroutine, and calls it, now or later, on a thread of its choice. The first call counts, and does nothing
/// where the coroutine was destroyed. If the executor throws, or is empty, the coroutine resumes on the thread that called the executor.
using Executor = std::function<void(std::function<void()>)>;
#endif

/// A promise of an n-dimensional array. Copies share it.
class Tensor {
 public:
  /// Adopts one reference.
  static Tensor adopt(estafette_tensor *tensor) { return Tensor(tensor); }

  Tensor(const Tensor &other) : tensor_(other.tensor_) { estafette_tensor_retain(tensor_); }
  Tensor(Tensor &&other) noexcept : tensor_(std::exchange(other.tensor_, nullptr)) {}
  Tensor &operator=(Tensor other) noexcept {
    std::swap(tensor_, other.tensor_);
    return *this;
  }
  ~Tensor() { estafette_tensor_release(tensor_); }

  estafette_tensor *get() const noexcept { return tensor_; }

  /// True if the current version may be read. Throws when it is poisoned.
  bool is_ready() const {
    int status = estafette_query(tensor_);
    if (status < 0) check(status);
    return status == ESTAFETTE_OK;
  }

  void wait(std::uint64_t timeout_ns = ESTAFETTE_FOREVER) const { check(estafette_wait(tensor_, timeout_ns)); }

  /// Shape, type, place and address, lent for as long as this lives.
  DLTensor lend() const {
    DLTensor out;
    check(estafette_tensor_lend(tensor_, &out));
    return out;
  }

  /// The address of the first element; for bodies of operations that declare this tensor.
  template <typename T>
  T *data() const {
    void *data;
    check(estafette_tensor_data(tensor_, &data));
    return static_cast<T *>(data);
  }

  /// `any_thread`: the struct goes to another thread, see `estafette_export_options`.
  Managed export_to_dlpack(estafette_access access = ESTAFETTE_READ, bool any_thread = false) const {
    return export_by<Managed>(estafette_export, access, any_thread);
  }

  /// For consumers that know no DLPack 1.0; the struct does not tell them `access`.
  ManagedLegacy export_to_legacy(estafette_access access = ESTAFETTE_READ, bool any_thread = false) const {
    return export_by<ManagedLegacy>(estafette_export_legacy, access, any_thread);
  }

  /// As `export_to_dlpack`, at once: the consumer waits for the fence in the struct.
  ManagedFenced export_fenced(estafette_access access = ESTAFETTE_READ) const {
    DLManagedTensorFenced *out;
    check(estafette_export_fenced(tensor_, access, &out));
    return ManagedFenced(out);
  }

  /// A `timeout_ns` of 0 only looks, and throws with ESTAFETTE_PENDING.
  Lease order_on(estafette_access access, DLDevice device = {kDLCPU, 0}, void *stream = nullptr,
                 std::uint64_t timeout_ns = ESTAFETTE_FOREVER, bool any_thread = false) const {
    estafette_export_options options = detail::lease_options(access, device, stream, timeout_ns, any_thread);
    estafette_lease *lease;
    check(estafette_order_on_with(tensor_, &options, &lease));
    return Lease(lease);
  }

  /// The lengths of its dimensions. Known before the data is when they were declared.
  std::vector<std::int64_t> shape() const {
    std::int32_t ndim;
    check(estafette_tensor_shape(tensor_, nullptr, 0, &ndim));
    std::vector<std::int64_t> shape(static_cast<std::size_t>(ndim));
    check(estafette_tensor_shape(tensor_, shape.data(), ndim, &ndim));
    return shape;
  }

  /// Declares the current version good after a failure that has left the data intact.
  void clear_error() const { check(estafette_clear_error(tensor_)); }

  /// A ticket for the current version, ready or not; for one use, or until it is dropped.
  Ticket ticket(bool once = false) const {
    TicketOptions options;
    options.once = once;
    return ticket(options);
  }

  /// A text would become `once`: `TicketOptions::reach` is where it belongs.
  Ticket ticket(const char *reach) const = delete;

  Ticket ticket(const TicketOptions &from) const {
    estafette_ticket_options options = {};
    options.size = sizeof options;
    options.once = from.once;
    options.copy = static_cast<std::int32_t>(from.copy);
    if (!from.reach.empty()) options.reach = from.reach.c_str();
    options.deadline_ns = from.deadline_ns;
    estafette_ticket *out;
    check(estafette_ticket_create(tensor_, &options, &out));
    return Ticket(out);
  }

  /// Gives this handle up; the memory's deleter waits for `fence`.
  void release_after(const Fence &fence) {
    if (!tensor_) throw Error(ESTAFETTE_INVALID, "the tensor was moved or released before");
    check(estafette_tensor_release_after(tensor_, fence.get()));
    tensor_ = nullptr;
  }

  /// Readiness of the current version, for other schedulers.
  Fence fence() const {
    DLFence fence;
    check(estafette_tensor_fence(tensor_, &fence));
    return Fence::adopt(fence);
  }

  /// The end of every use so far, for producers that want to write in place.
  Fence writable() const {
    DLFence fence;
    check(estafette_writable_fence(tensor_, &fence));
    return Fence::adopt(fence);
  }

#ifdef ESTAFETTE_HAS_COROUTINES
  class Ready;
  /// `co_await tensor.ready()` goes on when the current version is finished: on this thread if it is already, else where `executor` resumes
  /// the coroutine, by default on the thread that reports the version as finished, where nothing may block. Throws when the version is poisoned.
  /// `Engine::executor` is an executor. What a coroutine throws to the function that resumes it is dropped.
  inline Ready ready(Executor executor = {}) const;
#endif

 private:
  explicit Tensor(estafette_tensor *tensor) : tensor_(tensor) {}

  template <typename M, typename F>
  M export_by(F function, estafette_access access, bool any_thread) const {
    estafette_export_options options = {};
    options.size = sizeof options;
    options.access = access;
    options.any_thread = any_thread;
    typename M::pointer out;
    check(function(tensor_, &options, &out));
    return M(out);
  }

  estafette_tensor *tensor_;
};

#ifdef ESTAFETTE_HAS_COROUTINES
class Tensor::Ready {
 public:
  Ready(Tensor tensor, Executor executor) : tensor_(std::move(tensor)), state_(std::make_shared<State>()) {
    state_->executor = std::move(executor);
  }
  Ready(const Ready &) = delete;
  Ready &operator=(const Ready &) = delete;

  /// A coroutine may be destroyed while it waits, for the tensor or in an executor: it is not resumed then. While it is resumed it must not be destroyed.
  ~Ready() { state_->is_over.store(true); }

  bool await_ready() {
    if (state_->waiting) {  // Awaited before.
      auto fresh = std::make_shared<State>();
      fresh->executor = state_->executor;
      state_ = std::move(fresh);
    }
    return tensor_.is_ready();
  }

  void await_suspend(std::coroutine_handle<> waiting) {
    state_->waiting = waiting;
    auto context = std::make_unique<std::shared_ptr<State>>(state_);
    // The coroutine may go on, and end, before this returns: nothing of it may be touched afterwards.
    check(estafette_on_ready(tensor_.get(), &Ready::call, context.get(), &Ready::drop));
    context.release();
  }

  void await_resume() const {
    if (state_->status != ESTAFETTE_OK) throw Error(state_->status, state_->message);
  }

 private:
  struct State {
    Executor executor;
    std::coroutine_handle<> waiting;
    int status = ESTAFETTE_OK;
    std::string message;
    std::atomic<bool> is_over{false};
  };

  static void call(void *context, estafette_status status, const char *message) {
    std::shared_ptr<State> state = *static_cast<std::shared_ptr<State> *>(context);
    if (state->is_over.load()) return;
    state->status = status;
    auto resume = [state] {
      if (!state->is_over.exchange(true)) state->waiting.resume();
    };
    // No exception may leave a callback of C.
    try {
      if (message) state->message = message;
    } catch (...) {
      // Memory is short: the error has the text of its status.
    }
    try {
      if (state->executor) return state->executor(resume);
    } catch (...) {
      // The executor did not take the coroutine.
    }
    try {
      resume();
    } catch (...) {
      // The coroutine threw, and has ended by that.
    }
  }

  static void drop(void *context) { delete static_cast<std::shared_ptr<State> *>(context); }

  Tensor tensor_;
  std::shared_ptr<State> state_;
};

inline Tensor::Ready Tensor::ready(Executor executor) const { return Ready(*this, std::move(executor)); }
#endif

/// A link to another process. Dropped, it is closed, and what other threads wait for at it throws.
class Link {
 public:
  explicit Link(estafette_link *link) : link_(link) {}

  estafette_link *get() const noexcept { return link_.get(); }

  /// The number of the other process.
  std::uint32_t process() const {
    std::uint32_t out;
    check(estafette_link_process(link_.get(), &out));
    return out;
  }

  /// Waits only while the link is full.
  void send(const Tensor &tensor, std::uint64_t timeout_ns = ESTAFETTE_FOREVER, Copy copy = Copy::if_needed) const {
    send(tensor, timeout_ns, copy, ESTAFETTE_READ);
  }

  /// Lends a tensor of `Engine::zeros_shared_for_writing` to the other process, which alone uses it until it has released it. What it has
  /// written is the next version.
  void lend(const Tensor &tensor, std::uint64_t timeout_ns = ESTAFETTE_FOREVER) const {
    send(tensor, timeout_ns, Copy::if_needed, ESTAFETTE_WRITE);
  }

  /// The next tensor of the other process; none once that process has closed the link.
  std::optional<Tensor> receive(std::uint64_t timeout_ns = ESTAFETTE_FOREVER) const {
    estafette_tensor *out;
    check(estafette_link_receive(link_.get(), timeout_ns, &out));
    if (!out) return std::nullopt;
    return Tensor::adopt(out);
  }

  /// Readable while a tensor may be there; see `estafette_link_descriptor`.
  int descriptor() const {
    std::int32_t out;
    check(estafette_link_descriptor(link_.get(), &out));
    return out;
  }

 private:
  void send(const Tensor &tensor, std::uint64_t timeout_ns, Copy copy, estafette_access access) const {
    estafette_send_options options = {sizeof options, static_cast<std::int32_t>(copy), access};
    check(estafette_link_send(link_.get(), tensor.get(), &options, timeout_ns));
  }

  struct Drop {
    void operator()(estafette_link *link) const { estafette_link_close(link); }
  };
  std::unique_ptr<estafette_link, Drop> link_;
};

/// The right to report how an operation ended, for its function. May be copied to any thread; the first word counts, and another
/// one throws.
class Completion {
 public:
  explicit Completion(estafette_op *op) : op_(op) {}

  estafette_op *get() const noexcept { return op_; }

  void complete() const { check(estafette_op_complete(op_, ESTAFETTE_OK, nullptr)); }
  void fail(const std::string &message) const {
    check(estafette_op_complete(op_, ESTAFETTE_FAILED, message.c_str()));
  }
  /// Marks what the operation writes as cancelled.
  void cancel(const std::string &message) const {
    check(estafette_op_complete(op_, ESTAFETTE_CANCELLED, message.c_str()));
  }
  void complete_after(const Fence &fence) const { check(estafette_op_complete_after(op_, fence.get())); }

  /// Ends an operation of `Engine::produce` with its result; `managed` is empty afterwards, unless this throws.
  void complete_with(Managed &managed) const {
    check(estafette_op_complete_with(op_, managed.get()));
    managed.release();
  }

  /// The stream to enqueue on, of an operation that was submitted for a device: a `CUstream`, or a pointer to a `sycl::queue`.
  void *stream() const {
    void *stream;
    check(estafette_op_stream(op_, &stream));
    return stream;
  }

 private:
  estafette_op *op_;
};

/// Options of a submission, besides its operands. A call of an operator takes no `on_skip`.
struct SubmitOptions {
  /// Among ready operations, higher ones are started first.
  std::int32_t priority = 0;
  /// Throws with ESTAFETTE_IN_FLIGHT_LIMIT instead of waiting for room.
  bool nonblocking = false;
  /// The device that the function enqueues on, at `Completion::stream`.
  DLDevice on = {};
  /// Called in place of the function where the operation is skipped, with why. What it throws is dropped.
  std::function<void(const Error &)> on_skip;
};

/// A submitted operation. Dropping it changes nothing.
class Operation {
 public:
  explicit Operation(estafette_op *op) : op_(op) {}

  estafette_op *get() const noexcept { return op_.get(); }

  void wait(std::uint64_t timeout_ns = ESTAFETTE_FOREVER) const { check(estafette_op_wait(op_.get(), timeout_ns)); }

  /// True if it has ended, with its work on devices. Throws when it has failed.
  bool is_done() const {
    int status = estafette_op_query(op_.get());
    if (status < 0) check(status);
    return status == ESTAFETTE_OK;
  }

  /// True if it was cancelled; false when it has begun or ended.
  bool cancel() const {
    int status = estafette_op_cancel(op_.get());
    if (status != ESTAFETTE_CONFLICT) check(status);
    return status == ESTAFETTE_OK;
  }

  Fence end() const {
    DLFence fence;
    check(estafette_op_fence(op_.get(), &fence));
    return Fence::adopt(fence);
  }

 private:
  struct Drop {
    void operator()(estafette_op *op) const { estafette_op_release(op); }
  };
  std::unique_ptr<estafette_op, Drop> op_;
};

namespace detail {

inline std::vector<estafette_tensor *> handles(const std::vector<Tensor> &tensors) {
  std::vector<estafette_tensor *> handles;
  handles.reserve(tensors.size());
  for (const Tensor &tensor : tensors) handles.push_back(tensor.get());
  return handles;
}

using Function = std::function<void(Completion)>;

// The context of an operation or a node, which holds itself until it is dropped.
struct Work {
  Function function;
  std::function<void(const Error &)> on_skip;
  std::shared_ptr<Work> self;
};

inline void drop(void *context) { std::shared_ptr<Work> last = std::move(static_cast<Work *>(context)->self); }

using Body = std::unique_ptr<Work, void (*)(void *)>;

inline Body body_of(Function function, std::function<void(const Error &)> on_skip = nullptr) {
  auto work = std::make_shared<Work>();
  work->function = std::move(function);
  work->on_skip = std::move(on_skip);
  work->self = work;
  return Body(work.get(), &drop);
}

// Exceptions must not leave a callback: they become the operation's failure, unless its end was reported before.
inline void call(void *context, estafette_op *op) {
  // The end may be reported inside, which drops the context: the function is kept until it has returned.
  std::shared_ptr<Work> work = static_cast<Work *>(context)->self;
  try {
    work->function(Completion(op));
  } catch (const std::exception &error) {
    estafette_op_complete(op, ESTAFETTE_FAILED, error.what());
  } catch (...) {
    estafette_op_complete(op, ESTAFETTE_FAILED, "an exception that is no std::exception");
  }
}

inline void skip(void *context, estafette_status status, const char *message) {
  try {
    static_cast<Work *>(context)->on_skip(Error(status, message));
  } catch (...) {
    // The operation has failed already.
  }
}

inline estafette_submit_options options_of(const char *name, const SubmitOptions &from) {
  estafette_submit_options options = {};
  options.size = sizeof options;
  options.name = name;
  options.priority = from.priority;
  options.nonblocking = from.nonblocking;
  options.on = from.on;
  if (from.on_skip) options.on_skip = &skip;
  return options;
}

// A handle of an engine, and the coroutines that found no room in it. One thread at a time waits for room for them, in turn.
struct EngineHandle {
  EngineHandle() = default;
  EngineHandle(const EngineHandle &) = delete;
  EngineHandle &operator=(const EngineHandle &) = delete;
  ~EngineHandle() { estafette_engine_destroy(engine); }

  estafette_engine *engine = nullptr;
  std::mutex mutex;
  std::vector<std::function<void()>> waiting;
  bool has_thread = false;
};

// False if the engine does not take the operation that calls `resume`, or memory is short: then `resume` may be called all the same.
inline bool submit_resumption(estafette_engine *engine, const std::function<void()> &resume, bool nonblocking) noexcept {
  try {
    SubmitOptions how;
    how.nonblocking = nonblocking;
    estafette_submit_options options = options_of("a coroutine", how);
    Body body = body_of([resume](Completion op) {
      op.complete();
      resume();
    });
    estafette_op *op;
    int status = estafette_submit_with(engine, &options, &call, body.get(), &drop, nullptr, 0, nullptr, 0, &op);
    if (status != ESTAFETTE_OK) return false;
    body.release();
    // Nothing waits for the operation, and an engine without workers runs only what is waited for: a fence of the end is a wait.
    Operation(op).end();
    return true;
  } catch (...) {
    return false;
  }
}

// Waits for room for each coroutine in `waiting`, until there is none.
inline void resume_waiting(EngineHandle &handle) noexcept {
  for (;;) {
    std::vector<std::function<void()>> taken;
    {
      std::lock_guard<std::mutex> guard(handle.mutex);
      handle.has_thread = !handle.waiting.empty();
      if (!handle.has_thread) return;
      taken.swap(handle.waiting);
    }
    for (const std::function<void()> &resume : taken) {
      if (submit_resumption(handle.engine, resume, false)) continue;
      try {
        resume();
      } catch (...) {
        // The coroutine threw, and has ended by that.
      }
    }
  }
}

// The caller must not block.
inline void resume_when_there_is_room(const std::shared_ptr<EngineHandle> &handle, std::function<void()> resume) {
  {
    std::lock_guard<std::mutex> guard(handle->mutex);
    handle->waiting.push_back(std::move(resume));
    if (std::exchange(handle->has_thread, true)) return;
  }
  try {
    // It keeps the engine, and ends when no coroutine waits.
    std::thread([handle] { resume_waiting(*handle); }).detach();
  } catch (...) {
    resume_waiting(*handle);  // The system refuses threads. In a callback the engine refuses to wait, and the coroutines resume here.
  }
}

}  // namespace detail

/// Operations that are recorded once and then run any number of times, each time as one operation. Made by `Engine::program`.
class Program {
 public:
  using Function = std::function<void(Completion)>;

  estafette_program *get() const noexcept { return program_.get(); }

  /// Records a node. Every replay calls this one `function`, which may keep state. Calls for replays that run at the same time may overlap, and
  /// the function must allow that: replays overlap where all that the program does is to read, and in what a function does after it has
  /// reported its end. Nothing runs before the program is finished and replayed.
  void add(const char *name, const std::vector<Tensor> &reads, const std::vector<Tensor> &writes, Function function,
           const SubmitOptions &how = {}) {
    estafette_submit_options options = detail::options_of(name, how);
    std::vector<estafette_tensor *> read = detail::handles(reads), write = detail::handles(writes);
    detail::Body body = detail::body_of(std::move(function), how.on_skip);
    check(estafette_program_add(get(), &options, &detail::call, body.get(), &detail::drop, read.data(), read.size(),
                                write.data(), write.size()));
    body.release();
  }

  /// Ends the recording; with `graph`, it becomes one graph of its CUDA device.
  void finish(bool graph = false) { check(estafette_program_finish(get(), graph)); }

  /// Submits one run of all nodes; with `nonblocking`, it throws with ESTAFETTE_IN_FLIGHT_LIMIT instead of waiting for room.
  Operation replay(bool nonblocking = false) const {
    estafette_op *op;
    check(estafette_program_replay(get(), nonblocking, &op));
    return Operation(op);
  }

 private:
  friend class Engine;
  explicit Program(estafette_program *program) : program_(program) {}

  struct Drop {
    void operator()(estafette_program *program) const { estafette_program_destroy(program); }
  };
  std::unique_ptr<estafette_program, Drop> program_;
};

/// Options of an engine; 0 is a default, see `estafette_engine_options`.
struct EngineOptions {
  /// Threads that run operations: 0 for one per core, -1 for none.
  std::int32_t workers = 0;
  /// Operations in flight before a submission waits.
  std::uint64_t in_flight_limit = 0;
  /// Time for which leases alone may hold up a wait.
  std::uint64_t lease_timeout_ns = 0;
  /// Bytes of stack of each thread that runs operations.
  std::uint64_t stack_size = 0;
  /// All host memory can be shown to other processes.
  bool shared = false;
  /// A stall of this length is logged as a warning; 0 for no such watch.
  std::uint64_t watchdog_ns = 0;
};

/// Arguments of the function of an operator; see `estafette_operator_function`.
struct OperatorArguments {
  const DLTensor *const *inputs;
  std::size_t n_inputs;
  DLManagedTensorVersioned **outputs;
  std::size_t n_outputs;
  const estafette_attribute *attributes;
  std::size_t n_attributes;
  void *stream;

  /// The value of an attribute, or `otherwise`.
  const char *attribute(const std::string &name, const char *otherwise = nullptr) const {
    for (std::size_t at = 0; at < n_attributes; at++)
      if (name == attributes[at].key) return attributes[at].value;
    return otherwise;
  }
};

/// An exception in it fails the call with its text. Any thread may call it, several at once.
using OperatorFunction = std::function<void(const OperatorArguments &)>;

/// Options of a call of an operator; see `estafette_operator_options`.
struct OperatorOptions {
  std::uint32_t kind = ESTAFETTE_OPERATOR_DESTINATION;
  bool in_place = false;
  std::int32_t n_inputs = ESTAFETTE_OPERATOR_ANY_NUMBER;
  std::int32_t n_outputs = 1;
  /// For operators of the kind ESTAFETTE_OPERATOR_INFERRED.
  OperatorFunction infer;
};

namespace detail {

// The context of an operator.
struct Operator {
  OperatorFunction function, infer;
};

inline const char *run_operator(const OperatorFunction &function, const OperatorArguments &arguments) noexcept {
  try {
    function(arguments);
    return nullptr;
  } catch (const std::exception &error) {
    try {
      static thread_local std::string why;
      return (why = error.what()).c_str();
    } catch (...) {
      return "memory is short";
    }
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

inline const char *call_operator(const DLTensor *const *inputs, std::size_t n_inputs, DLManagedTensorVersioned **outputs,
                                 std::size_t n_outputs, const estafette_attribute *attributes, std::size_t n_attributes,
                                 void *stream, void *context) {
  return run_operator(static_cast<Operator *>(context)->function,
                      {inputs, n_inputs, outputs, n_outputs, attributes, n_attributes, stream});
}

inline const char *infer_operator(const DLTensor *const *inputs, std::size_t n_inputs, DLManagedTensorVersioned **outputs,
                                  std::size_t n_outputs, const estafette_attribute *attributes, std::size_t n_attributes,
                                  void *stream, void *context) {
  return run_operator(static_cast<Operator *>(context)->infer,
                      {inputs, n_inputs, outputs, n_outputs, attributes, n_attributes, stream});
}

}  // namespace detail

/// Schedules operations in the order that their data demands.
class Engine {
 public:
  /// Starts a function's work; an exception in it fails the operation with its text.
  using Function = std::function<void(Completion)>;

  /// `workers` threads; 0 for one per core, -1 for none.
  explicit Engine(int workers = 0) : Engine(of(workers)) {}

  explicit Engine(const EngineOptions &from) {
    estafette_engine_options options = {};
    options.size = sizeof options;
    options.workers = from.workers;
    options.in_flight_limit = from.in_flight_limit;
    options.lease_timeout_ns = from.lease_timeout_ns;
    options.stack_size = from.stack_size;
    options.shared = from.shared;
    options.watchdog_ns = from.watchdog_ns;
    check(estafette_engine_create(&options, &handle_->engine));
  }

  /// Adopts a handle, such as Python's `eng.c_handle()`.
  static Engine adopt(estafette_engine *engine) { return Engine(engine); }

  estafette_engine *get() const noexcept { return handle_ ? handle_->engine : nullptr; }

  Tensor zeros(const std::vector<std::int64_t> &shape, DLDataType dtype) const {
    return zeros_by(estafette_zeros, shape, dtype);
  }

  /// In memory that other processes can be shown.
  Tensor zeros_shared(const std::vector<std::int64_t> &shape, DLDataType dtype) const {
    return zeros_by(estafette_zeros_shared, shape, dtype);
  }

  /// In memory that other processes can also be lent for writing: `Link::lend`.
  Tensor zeros_shared_for_writing(const std::vector<std::int64_t> &shape, DLDataType dtype) const {
    return zeros_by(estafette_zeros_shared_for_writing, shape, dtype);
  }

  /// In memory of a device of the engine. The bytes are arbitrary where the host cannot use the memory.
  Tensor empty(DLDevice device, const std::vector<std::int64_t> &shape, DLDataType dtype) const {
    estafette_tensor *out;
    check(estafette_empty(get(), device, shape.data(), static_cast<std::int32_t>(shape.size()), dtype, &out));
    return Tensor::adopt(out);
  }

  /// A promise of a copy in memory of `device`.
  Tensor copy(const Tensor &tensor, DLDevice device = {kDLCPU, 0}) const {
    estafette_tensor *out;
    check(estafette_copy(get(), tensor.get(), device, &out));
    return Tensor::adopt(out);
  }

  /// Leases that are granted together, in the order of `wanted`. A `timeout_ns` of 0 only looks, and throws with ESTAFETTE_PENDING.
  std::vector<Lease> lease_all(const std::vector<std::pair<Tensor, estafette_access>> &wanted, DLDevice device = {kDLCPU, 0},
                               void *stream = nullptr, std::uint64_t timeout_ns = ESTAFETTE_FOREVER, bool any_thread = false) const {
    estafette_export_options options = detail::lease_options(ESTAFETTE_READ, device, stream, timeout_ns, any_thread);
    std::vector<estafette_tensor *> tensors;
    std::vector<std::int32_t> accesses;
    for (const auto &[tensor, access] : wanted) {
      tensors.push_back(tensor.get());
      accesses.push_back(access);
    }
    std::vector<estafette_lease *> out(wanted.size());
    std::vector<Lease> leases;
    leases.reserve(out.size());  // Owned leases then need no memory, which may be short.
    check(estafette_lease_all(get(), tensors.data(), accesses.data(), wanted.size(), &options, out.data()));
    for (estafette_lease *lease : out) leases.emplace_back(lease);
    return leases;
  }

  /// A promise of the tensor that a ticket of another process names.
  Tensor from_ticket(const std::vector<std::uint8_t> &bytes) const {
    estafette_tensor *out;
    check(estafette_from_ticket(get(), bytes.data(), bytes.size(), &out));
    return Tensor::adopt(out);
  }

  /// The next link that another process makes at a door of this one.
  Link accept(const Door &door, std::uint64_t timeout_ns = ESTAFETTE_FOREVER) const {
    estafette_link *out;
    check(estafette_door_accept(door.get(), get(), timeout_ns, &out));
    return Link(out);
  }

  /// A link to the process with a door at `address`.
  Link connect(const std::string &address, std::uint64_t timeout_ns = ESTAFETTE_FOREVER) const {
    estafette_link *out;
    check(estafette_connect(get(), address.c_str(), timeout_ns, &out));
    return Link(out);
  }

  /// Adopts a tensor; `managed` is empty afterwards, unless this throws.
  Tensor import(Managed &managed, const Fence *ready = nullptr) const {
    estafette_tensor *out;
    check(estafette_import(get(), managed.get(), ready ? ready->get() : nullptr, &out));
    managed.release();
    return Tensor::adopt(out);
  }

  /// As `import`, of a struct that does not say whether the memory may be written.
  Tensor import_legacy(ManagedLegacy &managed, bool writable = false, const Fence *ready = nullptr) const {
    estafette_tensor *out;
    check(estafette_import_legacy(get(), managed.get(), writable, ready ? ready->get() : nullptr, &out));
    managed.release();
    return Tensor::adopt(out);
  }

  /// As `import`, of a tensor with fences of both sides.
  Tensor import_fenced(ManagedFenced &fenced) const {
    estafette_tensor *out;
    check(estafette_import_fenced(get(), fenced.get(), &out));
    fenced.release();
    return Tensor::adopt(out);
  }

  /// A pointer would become `writable`.
  Tensor import_legacy(ManagedLegacy &managed, const Fence *ready) const = delete;

  Operation submit(const char *name, const std::vector<Tensor> &reads, const std::vector<Tensor> &writes,
                   Function function, const SubmitOptions &how = {}) const {
    estafette_submit_options options = detail::options_of(name, how);
    std::vector<estafette_tensor *> read = detail::handles(reads), write = detail::handles(writes);
    detail::Body body = detail::body_of(std::move(function), how.on_skip);
    estafette_op *op;
    check(estafette_submit_with(get(), &options, &detail::call, body.get(), &detail::drop, read.data(), read.size(),
                                write.data(), write.size(), &op));
    body.release();
    return Operation(op);
  }

  /// Submits an operation that makes a tensor: its function ends with `Completion::complete_with`. Returns the promise at once.
  Tensor produce(const char *name, const std::vector<Tensor> &reads, Function function, const SubmitOptions &how = {}) const {
    return produce_by(name, reads, std::move(function), how, nullptr);
  }

  /// As `produce`, with the operation, which may be cancelled.
  std::pair<Tensor, Operation> produce_with_operation(const char *name, const std::vector<Tensor> &reads, Function function,
                                                      const SubmitOptions &how = {}) const {
    estafette_op *op;
    Tensor made = produce_by(name, reads, std::move(function), how, &op);
    return {std::move(made), Operation(op)};
  }

  /// Names of attributes of operators, and their values.
  using Attributes = std::vector<std::pair<std::string, std::string>>;

  /// Submits a call of an operator that makes its results, and returns the promises of them.
  std::vector<Tensor> call(const char *name, const std::vector<Tensor> &inputs, std::size_t n_outputs,
                           const Attributes &attributes = {}, const SubmitOptions &how = {}) const {
    return call_with_operation(name, inputs, n_outputs, attributes, how).first;
  }

  /// As `call`, with the operation, which may be cancelled.
  std::pair<std::vector<Tensor>, Operation> call_with_operation(const char *name, const std::vector<Tensor> &inputs,
                                                                std::size_t n_outputs, const Attributes &attributes = {},
                                                                const SubmitOptions &how = {}) const {
    std::vector<estafette_tensor *> outputs(n_outputs);
    std::vector<Tensor> results;
    results.reserve(n_outputs);  // Owned results then need no memory, which may be short.
    Operation op = call_operator(name, inputs, outputs, attributes, how);
    for (estafette_tensor *output : outputs) results.push_back(Tensor::adopt(output));
    return {std::move(results), std::move(op)};
  }

  /// Submits a call of an operator that overwrites `outputs`.
  Operation call_into(const char *name, const std::vector<Tensor> &inputs, const std::vector<Tensor> &outputs,
                      const Attributes &attributes = {}, const SubmitOptions &how = {}) const {
    std::vector<estafette_tensor *> written = detail::handles(outputs);
    return call_operator(name, inputs, written, attributes, how);
  }

  /// Registers an operator, for all engines of this process.
  static void register_operator(const std::string &name, OperatorFunction function, OperatorOptions how = {}) {
    estafette_operator_options options = {};
    options.size = sizeof options;
    options.kind = how.kind;
    options.flags = how.in_place ? ESTAFETTE_OPERATOR_IN_PLACE : 0;
    options.n_inputs = how.n_inputs;
    options.n_outputs = how.n_outputs;
    if (how.infer) options.infer = &detail::infer_operator;
    auto context = std::make_unique<detail::Operator>(detail::Operator{std::move(function), std::move(how.infer)});
    check(estafette_register_operator(name.c_str(), &detail::call_operator, &options, context.get(),
                                      [](void *held) { delete static_cast<detail::Operator *>(held); }));
    context.release();
  }

  /// Takes an operator out of the registry.
  static void unregister_operator(const std::string &name) { check(estafette_unregister_operator(name.c_str())); }

  /// Loads a shared library of operators, for all engines of this process, and returns how many it has.
  static std::size_t load_operators(const std::string &path) {
    std::size_t count;
    check(estafette_load_operators(path.c_str(), &count));
    return count;
  }

  estafette_stats stats() const {
    estafette_stats stats = {};
    stats.size = sizeof stats;
    check(estafette_engine_stats(get(), &stats));
    return stats;
  }

#ifdef ESTAFETTE_HAS_COROUTINES
  /// Resumes coroutines on the workers of this engine, which it keeps; where it has none, on a thread that it starts. While the in-flight limit is reached, coroutines wait for room in turn,
  /// on one thread that all executors of an engine share. Where the engine takes no more operations they resume on that thread, one
  /// after the other. The thread ends when no coroutine waits; as workers do, it ends with the process where `main` returns before.
  Executor executor() const {
    if (!get()) throw Error(ESTAFETTE_INVALID, "engine is NULL");
    return [handle = handle_](std::function<void()> resume) {
      if (detail::submit_resumption(handle->engine, resume, true)) return;
      detail::resume_when_there_is_room(handle, std::move(resume));
    };
  }
#endif

  /// Begins to record a program.
  Program program(const char *name) const {
    estafette_program *out;
    check(estafette_program_begin(get(), name, &out));
    return Program(out);
  }

  void wait_all(std::uint64_t timeout_ns = ESTAFETTE_FOREVER) const { check(estafette_wait_all(get(), timeout_ns)); }

  /// Refuses new submissions and waits; see `estafette_engine_shutdown`.
  void shutdown(std::uint64_t timeout_ns = ESTAFETTE_FOREVER) const { check(estafette_engine_shutdown(get(), timeout_ns)); }

  /// Runs what is ready in an engine without workers, and waits for nothing. Whether there was anything.
  bool run_ready() const {
    std::int32_t ran;
    check(estafette_run_ready(get(), &ran));
    return ran != 0;
  }

  std::string diagnose() const {
    char *text;
    check(estafette_diagnose(get(), &text));
    std::unique_ptr<char, void (*)(char *)> held(text, estafette_string_free);
    return text;
  }

 private:
  explicit Engine(estafette_engine *engine) { handle_->engine = engine; }

  static EngineOptions of(int workers) {
    EngineOptions options;
    options.workers = workers;
    return options;
  }

  template <typename F>
  Tensor zeros_by(F function, const std::vector<std::int64_t> &shape, DLDataType dtype) const {
    estafette_tensor *out;
    check(function(get(), shape.data(), static_cast<std::int32_t>(shape.size()), dtype, &out));
    return Tensor::adopt(out);
  }

  Tensor produce_by(const char *name, const std::vector<Tensor> &reads, Function function, const SubmitOptions &how,
                    estafette_op **op) const {
    estafette_submit_options options = detail::options_of(name, how);
    std::vector<estafette_tensor *> read = detail::handles(reads);
    detail::Body body = detail::body_of(std::move(function), how.on_skip);
    estafette_tensor *out;
    check(estafette_produce_with(get(), &options, &detail::call, body.get(), &detail::drop, read.data(), read.size(), &out, op));
    body.release();
    return Tensor::adopt(out);
  }

  Operation call_operator(const char *name, const std::vector<Tensor> &inputs, std::vector<estafette_tensor *> &outputs,
                          const Attributes &attributes, const SubmitOptions &how) const {
    estafette_submit_options options = detail::options_of(nullptr, how);
    std::vector<estafette_tensor *> read = detail::handles(inputs);
    std::vector<estafette_attribute> given;
    for (const auto &[key, value] : attributes) given.push_back({key.c_str(), value.c_str()});
    estafette_op *op;
    check(estafette_call_operator_with(get(), &options, name, read.data(), read.size(), outputs.data(), outputs.size(),
                                       given.data(), given.size(), &op));
    return Operation(op);
  }

  // Shared with executors.
  std::shared_ptr<detail::EngineHandle> handle_ = std::make_shared<detail::EngineHandle>();
};

/// Says that a process on another machine is dead, or with 0 all processes on that machine; see `estafette_declare_dead`.
inline void declare_dead(const std::string &host, std::uint32_t process = 0) {
  check(estafette_declare_dead(host.c_str(), process));
}

/// Waits until one of the operations has ended or one of the tensors is finished, well or not, and returns its place: operations are counted
/// first, then tensors.
inline std::size_t wait_any(const std::vector<const Operation *> &ops, const std::vector<Tensor> &tensors,
                            std::uint64_t timeout_ns = ESTAFETTE_FOREVER) {
  std::vector<estafette_op *> operations;
  for (const Operation *op : ops) operations.push_back(op ? op->get() : nullptr);
  std::vector<estafette_tensor *> promises = detail::handles(tensors);
  std::size_t place;
  check(estafette_wait_any(operations.data(), operations.size(), promises.data(), promises.size(), timeout_ns, &place));
  return place;
}

/// Waits until the deleters of all memory that was given up before have been called; see `estafette_flush_deleters`.
inline void flush_deleters(std::uint64_t timeout_ns = ESTAFETTE_FOREVER) { check(estafette_flush_deleters(timeout_ns)); }

/// Lets functions of the library run operations on the calling thread, or not. Returns the earlier setting.
inline bool set_helping(bool allowed) noexcept { return estafette_set_helping(allowed) != 0; }

/// Gets a level, from 1 for errors to 5, and a text. What it throws is dropped.
using LogFunction = std::function<void(int, const char *)>;

/// Sets where log events go, up to `level`; an empty function turns logging off. See `estafette_set_log`.
inline void set_log(int level, LogFunction function) {
  if (!function) return check(estafette_set_log(level, nullptr, nullptr, nullptr));
  auto context = std::make_unique<LogFunction>(std::move(function));
  auto call = [](void *held, std::int32_t at, const char *message) {
    try {
      (*static_cast<LogFunction *>(held))(at, message);
    } catch (...) {
      // No exception may leave a callback of C.
    }
  };
  check(estafette_set_log(level, call, context.get(), [](void *held) { delete static_cast<LogFunction *>(held); }));
  context.release();
}

/// Options of a trace; 0 is a default, see `estafette_trace_options`.
struct TraceOptions {
  /// A signal that asks for a snapshot.
  std::int32_t signal = 0;
  /// Bytes for what is noted until it is written.
  std::uint64_t memory_max = 0;
  /// Keeps only so much time before the end, or before a snapshot.
  std::uint64_t last_ns = 0;
};

/// A trace of everything that this process does, which `end`, or the end of this object, writes to its file.
class Trace {
 public:
  explicit Trace(const std::string &path, const TraceOptions &from = {}) {
    estafette_trace_options options = {};
    options.size = sizeof options;
    options.signal = from.signal;
    options.memory_max = from.memory_max;
    options.last_ns = from.last_ns;
    estafette_trace *out;
    check(estafette_trace_begin(path.c_str(), &options, &out));
    trace_.reset(out);
  }

  estafette_trace *get() const noexcept { return trace_.get(); }

  /// Writes what there is so far to another file.
  void snapshot(const std::string &path) const { check(estafette_trace_snapshot(trace_.get(), path.c_str())); }

  /// Throws where the file cannot be written; the end of the object says nothing.
  void end() { check(estafette_trace_end(trace_.release())); }

 private:
  struct Drop {
    void operator()(estafette_trace *trace) const { estafette_trace_end(trace); }
  };
  std::unique_ptr<estafette_trace, Drop> trace_;
};

}  // namespace estafette

#endif  // ESTAFETTE_HPP
