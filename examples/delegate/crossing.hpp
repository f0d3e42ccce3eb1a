// What the two frameworks provide for exchange: fences that say when a tensor is ready, and DLPack structs of their memory.
// Estafette does the ordering, the waiting and the lifetimes.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "estafette.h"
#include "mill.hpp"
#include "tide.hpp"

namespace crossing {

// Throws Estafette's error text.
inline void check(estafette_status status) {
  if (status < 0) throw std::runtime_error(estafette_last_error());
}

// A fence with a reference count. `State` is the framework's state that the fence queries.
template <typename State>
struct Counted {
  explicit Counted(State state) : state(std::move(state)) {}
  State state;
  std::atomic<int> holders{1};
  std::string text;

  static Counted &of(void *context) { return *static_cast<Counted *>(context); }
  static void retain(void *context) { of(context).holders.fetch_add(1); }
  static void release(void *context) {
    if (of(context).holders.fetch_sub(1) == 1) delete &of(context);
  }

  // A struct with all fields but the functions of the framework. The caller owns one reference.
  static DLFence fence(State state) {
    DLFence fence;
    std::memset(&fence, 0, sizeof fence);
    fence.version = DLPACK_FENCE_VERSION;
    fence.size = sizeof fence;
    fence.context = new Counted(std::move(state));
    fence.device = DLDevice{kDLCPU, 0};
    fence.retain = retain;
    fence.release = release;
    return fence;
  }
};

// Mill calls back, so its fences notify.
inline DLFence fence_of(const mill::Tensor &tensor) {
  using Fence = Counted<std::shared_ptr<mill::Event>>;
  DLFence fence = Fence::fence(tensor.ready);
  fence.query = [](void *context) -> int32_t {
    switch (Fence::of(context).state->state()) {
      case mill::Event::State::pending: return ESTAFETTE_PENDING;
      case mill::Event::State::done: return ESTAFETTE_OK;
      default: return ESTAFETTE_FAILED;
    }
  };
  fence.subscribe = [](void *context, DLFenceCallback callback, void *argument, uint64_t *token) -> int32_t {
    *token = 0;
    Fence::of(context).state->then([callback, argument](const std::string *failure) {
      if (failure == nullptr) return callback(argument, ESTAFETTE_OK, nullptr);
      callback(argument, ESTAFETTE_FAILED, failure->c_str());
    });
    return ESTAFETTE_OK;
  };
  // Mill cannot remove a callback. The receiver ignores a late one.
  fence.unsubscribe = [](void *, uint64_t) -> int32_t { return ESTAFETTE_PENDING; };
  fence.error = [](void *context) -> const char * {
    Fence &fence = Fence::of(context);
    fence.text = fence.state->failure();
    return fence.text.empty() ? nullptr : fence.text.c_str();
  };
  return fence;
}

struct Ticket {
  const tide::Loop *loop;
  uint64_t number;
};

// Tide can only be polled, and so can its fences.
inline DLFence fence_of(const tide::Loop &loop, uint64_t ticket) {
  using Fence = Counted<Ticket>;
  DLFence fence = Fence::fence(Ticket{&loop, ticket});
  fence.query = [](void *context) -> int32_t {
    const Ticket &ticket = Fence::of(context).state;
    return ticket.loop->passed(ticket.number) ? ESTAFETTE_OK : ESTAFETTE_PENDING;
  };
  return fence;
}

// Numbers of structs made and released.
struct Counts {
  std::atomic<int> made{0}, released{0};
};

// A vector of a framework as a DLPack struct with a fence, which keeps the framework's tensor alive. Takes the caller's reference of `ready`.
template <typename Tensor>
DLManagedTensorFenced *fenced(std::shared_ptr<Tensor> tensor, DLDataType dtype, uint64_t flags, Counts &counts, DLFence ready) {
  struct Export {
    DLManagedTensorFenced fenced;
    int64_t shape, stride;
    std::shared_ptr<Tensor> owner;
    Counts *counts;
  };
  auto made = new Export{};
  made->shape = static_cast<int64_t>(tensor->values.size());
  made->stride = 1;
  made->fenced.version = DLPACK_FENCE_VERSION;
  made->fenced.size = sizeof made->fenced;
  made->fenced.ready = ready;
  // The frameworks keep no fences: the consumer calls the deleter after its last use.
  made->fenced.add_done = [](DLManagedTensorFenced *, const DLFence *) -> int32_t { return DLPACK_FENCE_PENDING; };
  DLManagedTensorVersioned &managed = made->fenced.managed;
  managed.version = DLPackVersion{DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  managed.manager_ctx = made;
  managed.flags = flags;
  managed.deleter = [](DLManagedTensorVersioned *self) {
    auto made = static_cast<Export *>(self->manager_ctx);
    dlpack_fence_release(&made->fenced.ready);
    made->counts->released++;
    delete made;
  };
  DLTensor &described = managed.dl_tensor;
  described.data = tensor->values.data();
  described.device = DLDevice{kDLCPU, 0};
  described.ndim = 1;
  described.dtype = dtype;
  described.shape = &made->shape;
  described.strides = &made->stride;
  made->owner = std::move(tensor);
  made->counts = &counts;
  counts.made++;
  return &made->fenced;
}

}  // namespace crossing
