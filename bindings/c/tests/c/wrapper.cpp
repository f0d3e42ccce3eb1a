// estafette.hpp: handles, exceptions, and under C++20 `co_await`.
#include <estafette.hpp>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#define CHECK(what)                                                     \
  do {                                                                  \
    if (!(what)) {                                                      \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
      std::exit(1);                                                     \
    }                                                                   \
  } while (0)

using namespace estafette;

static const DLDataType F32 = {kDLFloat, 32, 1};
static const std::uint64_t LONG = 10000000000ull;

static void operations_run_in_order() {
  Engine engine(2);
  Tensor x = engine.zeros({4}, F32), y = engine.zeros({4}, F32);
  engine.submit("fill", {}, {x}, [x](Completion op) {
    for (int i = 0; i < 4; i++) x.data<float>()[i] = static_cast<float>(i);
    op.complete();
  });
  Operation twice = engine.submit("double", {x}, {y}, [x, y](Completion op) {
    std::thread([x, y, op] {
      for (int i = 0; i < 4; i++) y.data<float>()[i] = 2 * x.data<float>()[i];
      op.complete();
    }).detach();
  });
  twice.wait(LONG);
  y.wait(LONG);
  Managed view = y.export_to_dlpack();
  CHECK(static_cast<float *>(view->dl_tensor.data)[3] == 6.0f);
  CHECK(y.is_ready() && y.lend().ndim == 1);
}

static void exceptions_become_failures_and_failures_exceptions() {
  Engine engine(1);
  Tensor x = engine.zeros({4}, F32);
  Operation op = engine.submit("throws", {}, {x}, [](Completion) { throw std::runtime_error("out of paper"); });
  try {
    op.wait(LONG);
    CHECK(!"it has failed");
  } catch (const Error &error) {
    CHECK(error.status() == ESTAFETTE_FAILED && std::strstr(error.what(), "out of paper"));
  }
  Operation number = engine.submit("throws a number", {}, {x}, [](Completion) { throw 7; });
  try {
    x.wait(LONG);
    CHECK(!"it has failed");
  } catch (const Error &error) {
    CHECK(std::strstr(error.what(), "no std::exception"));
  }
  // Told first, thrown then: the first word counts.
  Operation both = engine.submit("both", {}, {x}, [](Completion op) {
    op.complete();
    throw std::runtime_error("too late");
  });
  both.wait(LONG);
  try {
    engine.zeros({-1}, F32);
    CHECK(!"there is no such shape");
  } catch (const Error &error) {
    CHECK(error.status() == ESTAFETTE_INVALID);
  }
}

static void promises_and_fences_are_shared() {
  Engine engine(1);
  Tensor x = engine.zeros({4}, F32);
  Promise promise("work");
  Fence fence = promise.fence();
  Fence copy = fence;
  copy = fence;
  Operation op = engine.submit("after", {}, {x}, [fence](Completion op) { op.complete_after(fence); });
  Fence ready = x.fence(), writable = x.writable(), end = op.end();
  CHECK(!ready.is_done() && !end.is_done());
  try {
    op.wait(1000000);
    CHECK(!"it is not done");
  } catch (const Error &error) {
    CHECK(error.status() == ESTAFETTE_TIMEOUT);
  }
  promise.complete();
  op.wait(LONG);
  x.wait(LONG);
  while (!ready.is_done() || !writable.is_done() || !end.is_done()) std::this_thread::yield();

  Lease lease = x.order_on(ESTAFETTE_READ);
  Fence released = lease.end();
  Promise last("the last use");
  lease.release(last.fence());
  CHECK(!released.is_done());
  last.fail("never mind");
  for (;;) {
    try {
      CHECK(!released.is_done());
      std::this_thread::yield();
    } catch (const Error &error) {
      CHECK(std::strstr(error.what(), "never mind"));
      break;
    }
  }
  { Promise forgotten("forgotten"); }
  Tensor y = engine.zeros({4}, F32);
  y.release_after(fence);
  CHECK(engine.diagnose().find("held") == std::string::npos);
  engine.wait_all(LONG);
}

static void programs_are_recorded_once_and_replayed() {
  Engine engine(1);
  Tensor x = engine.zeros({1}, F32);
  std::atomic<int> calls(0);
  bool fails = false;
  Program program = engine.program("twice");
  for (int node = 0; node < 2; node++) {
    program.add("count", {x}, {x}, [&](Completion op) {
      if (fails) throw std::runtime_error("fate of a node");
      calls++;
      op.complete();
    });
  }
  program.finish();
  for (int round = 0; round < 5; round++) program.replay();
  program.replay().wait(LONG);
  CHECK(calls == 12);
  fails = true;
  try {
    program.replay().wait(LONG);
    CHECK(false);
  } catch (const Error &error) {
    CHECK(std::string(error.what()).find("fate of a node") != std::string::npos);
  }
  engine.wait_all(LONG);
}

#ifdef ESTAFETTE_HAS_COROUTINES
struct Task {
  struct promise_type {
    Task get_return_object() { return {}; }
    std::suspend_never initial_suspend() { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }
  };
};

static Task await(Tensor tensor, std::atomic<int> &outcome, std::string &text) {
  try {
    co_await tensor.ready();
    outcome = 1;
  } catch (const Error &error) {
    text = error.what();
    outcome = -1;
  }
}

static void coroutines_await_tensors() {
  Engine engine(1);
  Tensor x = engine.zeros({4}, F32);
  std::string text;
  std::atomic<int> at_once(0), later(0), failed(0);
  await(x, at_once, text);
  CHECK(at_once == 1);
  Promise gate("gate");
  Fence open = gate.fence();
  engine.submit("slow", {}, {x}, [open](Completion op) { op.complete_after(open); });
  await(x, later, text);
  CHECK(later == 0);
  gate.complete();
  while (!later) std::this_thread::yield();
  CHECK(later == 1);
  engine.submit("bad", {}, {x}, [](Completion op) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    op.fail("no luck");
  });
  await(x, failed, text);
  while (!failed) std::this_thread::yield();
  CHECK(failed == -1 && text.find("no luck") != std::string::npos);
  engine.wait_all(LONG);
}
#endif

int main() {
  operations_run_in_order();
  exceptions_become_failures_and_failures_exceptions();
  promises_and_fences_are_shared();
  programs_are_recorded_once_and_replayed();
#ifdef ESTAFETTE_HAS_COROUTINES
  coroutines_await_tensors();
  std::puts("with coroutines");
#endif
  std::puts("done");
}
