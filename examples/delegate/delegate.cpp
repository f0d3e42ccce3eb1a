// The two frameworks as one library for Python: each leg of the relay is a function that never blocks.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "crossing.hpp"

namespace {

thread_local std::string failure;

// Catches exceptions, and keeps their text for the caller.
template <typename F>
auto guarded(F inside) -> decltype(inside()) {
  try {
    return inside();
  } catch (const std::exception &error) {
    failure = error.what();
    return {};
  }
}

struct World {
  // Destroyed in this order: the engine first, and then the pool, which may still run tasks of the engine.
  crossing::Counts counts;
  tide::Loop loop;
  mill::Pool pool{2};
  estafette_engine *engine;

  explicit World(estafette_engine *engine) : engine(engine) {}
  ~World() {
    estafette_wait_all(engine, ESTAFETTE_FOREVER);
    estafette_engine_destroy(engine);
  }
};

using MillTensor = std::shared_ptr<mill::Tensor>;
using TideTensor = std::shared_ptr<tide::Tensor>;

// A tensor with its fence as a tensor of Estafette. Takes `tensor`, also on an error.
estafette_tensor *imported(World &world, DLManagedTensorFenced *tensor) {
  estafette_tensor *handle = nullptr;
  estafette_status status = estafette_import_fenced(world.engine, tensor, &handle);
  if (status < 0) tensor->managed.deleter(&tensor->managed);
  crossing::check(status);
  return handle;
}

// A tensor of Mill as a tensor of Estafette, which is ready when Mill's tensor is.
estafette_tensor *to_estafette(World &world, const MillTensor &tensor) {
  const DLDataType f32{kDLFloat, 32, 1};
  return imported(world, crossing::fenced(tensor, f32, DLPACK_FLAG_BITMASK_READ_ONLY, world.counts, crossing::fence_of(*tensor)));
}

// A task of Mill in Estafette's schedule: it sums a tensor, and reports its end.
struct Sum {
  World *world;
  estafette_tensor *input;
  MillTensor out;
};

void begin_sum(void *context, estafette_op *op) {
  auto sum = static_cast<Sum *>(context);
  sum->world->pool.push([sum, op] {
    DLTensor seen;
    if (estafette_tensor_lend(sum->input, &seen) != ESTAFETTE_OK) {
      std::string why = estafette_last_error();
      sum->out->ready->settle(&why);
      estafette_op_complete(op, ESTAFETTE_FAILED, why.c_str());
      return;
    }
    auto values = reinterpret_cast<const double *>(static_cast<char *>(seen.data) + seen.byte_offset);
    double total = 0;
    for (int64_t at = 0; at < seen.shape[0]; at++) total += values[at];
    sum->out->values[0] = static_cast<float>(total);
    sum->out->ready->settle(nullptr);
    // The context is dropped as soon as the end is reported.
    estafette_op_complete(op, ESTAFETTE_OK, nullptr);
  });
}

void drop_sum(void *context) {
  auto sum = static_cast<Sum *>(context);
  // Never called if the input has failed: Mill's tensor fails then, unless it was settled before.
  std::string why = "its input has failed";
  sum->out->ready->settle(&why);
  estafette_tensor_release(sum->input);
  delete sum;
}

}  // namespace

extern "C" {

const char *delegate_error() { return failure.c_str(); }

// Adopts the handle of an engine.
World *delegate_create(estafette_engine *engine) {
  return guarded([=] { return new World(engine); });
}

void delegate_destroy(World *world) { delete world; }

int delegate_made(World *world) { return world->counts.made; }
int delegate_released(World *world) { return world->counts.released; }

// Mill computes a ramp from `start`, slowly.
MillTensor *mill_ramp(World *world, float start, int64_t length, int milliseconds) {
  return guarded([=] {
    auto fill = [=](const std::vector<MillTensor> &, mill::Tensor &out) {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      for (size_t at = 0; at < out.values.size(); at++) out.values[at] = start + static_cast<float>(at);
    };
    return new MillTensor(world->pool.run(static_cast<size_t>(length), {}, fill));
  });
}

// Mill doubles a ramp: a dependence inside of Mill, which Estafette does not see.
MillTensor *mill_double(World *world, MillTensor *input) {
  return guarded([=] {
    auto fill = [](const std::vector<MillTensor> &inputs, mill::Tensor &out) {
      for (size_t at = 0; at < out.values.size(); at++) out.values[at] = 2 * inputs[0]->values[at];
    };
    return new MillTensor(world->pool.run((*input)->values.size(), {*input}, fill));
  });
}

// Tide reads a tensor of Mill as doubles: a step that polls the tensor in each turn.
TideTensor *tide_take(World *world, MillTensor *input) {
  return guarded([=] {
    auto out = std::make_shared<tide::Tensor>((*input)->values.size());
    std::shared_ptr<estafette_tensor> handle(to_estafette(*world, *input), estafette_tensor_release);
    out->ticket = world->loop.push([out, handle] {
      estafette_export_options options{};
      options.size = sizeof options;
      options.nonblocking = 1;
      DLManagedTensorVersioned *view = nullptr;
      estafette_status status = estafette_export(handle.get(), &options, &view);
      if (status == ESTAFETTE_PENDING) return false;
      crossing::check(status);
      auto values = reinterpret_cast<const float *>(static_cast<char *>(view->dl_tensor.data) + view->dl_tensor.byte_offset);
      for (size_t at = 0; at < out->values.size(); at++) out->values[at] = values[at];
      view->deleter(view);
      return true;
    });
    return new TideTensor(out);
  });
}

// Returns how many steps are left; -1 if a step has failed.
int64_t tide_turn(World *world) {
  try {
    return static_cast<int64_t>(world->loop.turn());
  } catch (const std::exception &error) {
    failure = error.what();
    return -1;
  }
}

// A tensor of Tide as a tensor of Estafette, ready or not. The caller owns the handle.
estafette_tensor *tide_tensor(World *world, TideTensor *tensor) {
  return guarded([=] {
    const DLDataType f64{kDLFloat, 64, 1};
    DLFence ready = crossing::fence_of(world->loop, (*tensor)->ticket);
    return imported(*world, crossing::fenced(*tensor, f64, DLPACK_FLAG_BITMASK_READ_ONLY, world->counts, ready));
  });
}

void tensor_drop(estafette_tensor *tensor) { estafette_tensor_release(tensor); }

// Mill sums a tensor of Estafette when the tensor is ready. Adopts the handle, also on an error.
MillTensor *mill_sum(World *world, estafette_tensor *input) {
  return guarded([=]() -> MillTensor * {
    auto out = std::make_shared<mill::Tensor>(1);
    auto sum = new Sum{world, input, out};
    estafette_status status =
        estafette_submit(world->engine, "mill sum", begin_sum, sum, drop_sum, &input, 1, nullptr, 0);
    // On an error the caller of Estafette keeps the context.
    if (status < 0) drop_sum(sum);
    crossing::check(status);
    return new MillTensor(out);
  });
}

// Returns 1 for a ready tensor, 0 for a pending one, and -1 for a failed one.
int mill_query(MillTensor *tensor) {
  switch ((*tensor)->ready->state()) {
    case mill::Event::State::pending: return 0;
    case mill::Event::State::done: return 1;
    default: failure = (*tensor)->ready->failure(); return -1;
  }
}

float mill_value(MillTensor *tensor) { return (*tensor)->values[0]; }

void mill_drop(MillTensor *tensor) { delete tensor; }
void tide_drop(TideTensor *tensor) { delete tensor; }
}
