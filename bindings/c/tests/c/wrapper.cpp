// estafette.hpp: handles, exceptions, and under C++20 `co_await`.
#include <estafette.hpp>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <iterator>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include <unistd.h>

#define CHECK(what)                                                     \
  do {                                                                  \
    if (!(what)) {                                                      \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
      std::exit(1);                                                     \
    }                                                                   \
  } while (0)

using namespace estafette;

// A pointer is no `bool`.
template <class T, class = void>
struct is_ticket_of : std::false_type {};
template <class T>
struct is_ticket_of<T, std::void_t<decltype(std::declval<const Tensor &>().ticket(std::declval<T>()))>> : std::true_type {};
static_assert(is_ticket_of<bool>::value && is_ticket_of<TicketOptions>::value && !is_ticket_of<const char *>::value, "");
template <class T, class = void>
struct is_import_of : std::false_type {};
template <class T>
struct is_import_of<T, std::void_t<decltype(std::declval<const Engine &>().import_legacy(std::declval<ManagedLegacy &>(),
                                                                                        std::declval<T>()))>> : std::true_type {};
static_assert(is_import_of<bool>::value && !is_import_of<const Fence *>::value, "");

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

static void structs_of_before_dlpack_1_pass_both_ways() {
  Engine engine(1);
  Tensor x = engine.zeros({4}, F32);
  ManagedLegacy lent = x.export_to_legacy(ESTAFETTE_WRITE);
  static_cast<float *>(lent->dl_tensor.data)[1] = 5.0f;
  DLManagedTensor *raw = lent.get();
  Tensor back = engine.import_legacy(lent, true);
  CHECK(!lent && back.lend().data == raw->dl_tensor.data && back.data<float>()[1] == 5.0f);
  ManagedLegacy none;
  try {
    engine.import_legacy(none);
    CHECK(!"there is nothing");
  } catch (const Error &error) {
    CHECK(error.status() == ESTAFETTE_INVALID);
  }
}

// A function's capture, which cannot be copied any more.
struct Once {
  explicit Once(const bool &is_over) : is_over(is_over) {}
  Once(const Once &other) : is_over(other.is_over) { CHECK(!is_over); }

  const bool &is_over;
};

static void a_function_is_called_and_not_copied() {
  Engine engine(-1);
  bool is_over = false;
  Operation op = engine.submit("called", {}, {}, [once = Once(is_over)](Completion end) { end.complete(); });
  is_over = true;
  op.wait(LONG);
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
  auto refuses = [](auto again) {
    try {
      again();
    } catch (const Error &error) {
      return error.status() == ESTAFETTE_INVALID;
    }
    return false;
  };
  CHECK(refuses([&] { y.release_after(fence); }) && refuses([&] { lease.release(fence); }));
  CHECK(engine.diagnose().find("held") == std::string::npos);
  engine.wait_all(LONG);
}

static void a_fence_that_was_moved_from_is_done() {
  static int holders = 1;
  DLFence raw = dlpack_fence_of(DLDevice{kDLCPU, 0}, &holders, [](void *) -> int32_t { return ESTAFETTE_PENDING; });
  raw.retain = [](void *count) { ++*static_cast<int *>(count); };
  raw.release = [](void *count) { --*static_cast<int *>(count); };
  Fence fence = Fence::adopt(raw);
  { Fence taken = std::move(fence); }
  CHECK(holders == 0);
  Fence copy = fence;
  CHECK(holders == 0 && copy.is_done());
  // One that is shared is counted, and released once.
  holders = 1;
  { Fence shared = Fence::share(raw); CHECK(holders == 2 && !shared.is_done()); }
  CHECK(holders == 1);
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
  for (int round = 0; round < 5; round++) program.replay(true);
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

static void a_function_of_a_node_keeps_its_state() {
  Engine engine(2);
  Tensor x = engine.zeros({1}, F32);
  int last = 0;
  Program program = engine.program("counts");
  program.add("counts", {x}, {x}, [&last, calls = 0](Completion op) mutable {
    last = ++calls;
    op.complete();
  });
  program.finish();
  for (int round = 0; round < 99; round++) program.replay();
  program.replay().wait(LONG);
  CHECK(last == 100);
}

static void calls_of_one_node_may_overlap() {
  // The first call goes on when its replay has ended, and waits for the call of the next replay.
  std::atomic<int> begun(0), over(0);
  Engine engine(2);
  Tensor x = engine.zeros({1}, F32);
  Program program = engine.program("overlaps");
  program.add("overlaps", {x}, {}, [&](Completion op) {
    int call = ++begun;
    op.complete();
    while (call == 1 && begun == 1) std::this_thread::yield();
    over++;
  });
  program.finish();
  Operation first = program.replay(), second = program.replay();
  first.wait(LONG);
  second.wait(LONG);
  while (over < 2) std::this_thread::yield();
}

static void handles_and_structs_from_elsewhere_are_adopted() {
  estafette_engine *raw;
  check(estafette_engine_create(nullptr, &raw));
  {
    Engine engine = Engine::adopt(raw);
    Tensor x = engine.zeros({2}, F32);
    x.data<float>()[1] = 5.0f;
    Managed managed = x.export_to_dlpack();
    void *data = managed->dl_tensor.data;
    Promise gate("gate");
    Tensor y = engine.import(managed, &gate.fence());
    CHECK(!managed && !y.is_ready());
    gate.complete();
    y.wait(LONG);
    CHECK(y.data<float>() == data && y.data<float>()[1] == 5.0f);
    // A refused struct stays the caller's.
    managed = y.export_to_dlpack();
    managed->dl_tensor.ndim = -1;
    try {
      engine.import(managed);
      CHECK(!"there is no such rank");
    } catch (const Error &error) {
      CHECK(error.status() == ESTAFETTE_INVALID && managed);
    }
    managed->dl_tensor.ndim = 1;
  }
  CHECK(estafette_engine_destroy(raw) == ESTAFETTE_INVALID);
}

static void an_operation_is_called_off_before_it_begins() {
  Engine engine(1);
  Tensor x = engine.zeros({1}, F32), y = engine.zeros({1}, F32);
  Promise gate("gate");
  Fence open = gate.fence();
  Operation first = engine.submit("first", {}, {x}, [open](Completion op) { op.complete_after(open); });
  Operation second = engine.submit("second", {x}, {y}, [](Completion) { CHECK(!"it was called off"); });
  CHECK(second.cancel() && !second.cancel());
  gate.complete();
  first.wait(LONG);
  CHECK(!first.cancel());
  try {
    y.wait(LONG);
    CHECK(!"it was called off");
  } catch (const Error &error) {
    CHECK(error.status() == ESTAFETTE_CANCELLED);
  }
}

static void submissions_have_options() {
  EngineOptions limits;
  limits.workers = 1;
  limits.in_flight_limit = 1;
  Engine engine(limits);
  CHECK(engine.stats().in_flight_limit == 1);
  std::promise<void> gate;
  std::shared_future<void> open = gate.get_future().share();
  Tensor x = engine.zeros({1}, F32);
  // An operation is in flight until its end was reported: one that ends with a fence makes room at once.
  Operation waits = engine.submit("waits", {}, {x}, [open](Completion op) {
    open.wait();
    op.complete();
  });
  SubmitOptions at_once;
  at_once.nonblocking = true;
  at_once.priority = 3;
  try {
    engine.submit("is refused", {}, {x}, [](Completion op) { op.complete(); }, at_once);
    CHECK(!"there is room");
  } catch (const Error &error) {
    CHECK(error.status() == ESTAFETTE_IN_FLIGHT_LIMIT);
  }
  gate.set_value();
  waits.wait(LONG);
  engine.wait_all(LONG);
  engine.submit("has no stream", {}, {x}, [](Completion op) {
    try {
      op.stream();
      op.complete();
    } catch (const Error &error) {
      op.fail(error.what());
    }
  }, at_once);
  try {
    x.wait(LONG);
    CHECK(!"it works on the host");
  } catch (const Error &error) {
    CHECK(std::strstr(error.what(), "has no stream"));
  }
}

static void operations_produce_tensors() {
  Engine engine(1);
  Tensor x = engine.zeros({4}, F32);
  Tensor made = engine.produce("make", {x}, [x](Completion op) {
    Managed copy = x.export_to_dlpack();
    op.complete_with(copy);
    CHECK(!copy);
  });
  made.wait(LONG);
  CHECK(made.lend().shape[0] == 4);
}

static const char *double_it(const DLTensor *const *inputs, size_t, DLManagedTensorVersioned **outputs, size_t,
                             const estafette_attribute *attributes, size_t n_attributes, void *, void *) {
  float by = n_attributes == 0 ? 2.0f : std::strtof(attributes[0].value, nullptr);
  static_cast<float *>(outputs[0]->dl_tensor.data)[0] = by * static_cast<float *>(inputs[0]->data)[0];
  return nullptr;
}

static void operators_are_called_by_name() {
  Engine engine(1);
  estafette_operator_options options = {};
  options.size = sizeof options;
  options.kind = ESTAFETTE_OPERATOR_DESTINATION;
  options.n_inputs = options.n_outputs = 1;
  check(estafette_register_operator("wrapper.times", double_it, &options, nullptr, nullptr));
  Tensor x = engine.zeros({1}, F32), y = engine.zeros({1}, F32);
  engine.submit("one", {}, {x}, [x](Completion op) { *x.data<float>() = 1; op.complete(); });
  engine.call_into("wrapper.times", {x}, {y}, {{"by", "7"}});
  y.wait(LONG);
  CHECK(*y.data<float>() == 7);
  try {
    engine.call("wrapper.times", {x}, 1);
    CHECK(!"it wants a place for its result");
  } catch (const Error &error) {
    CHECK(error.status() == ESTAFETTE_INVALID);
  }
  check(estafette_unregister_operator("wrapper.times"));
}

static void traces_are_written() {
  const char *folder = std::getenv("TMPDIR");
  std::string path = std::string(folder ? folder : "/tmp") + "/wrapper-" + std::to_string(getpid()) + ".pftrace";
  TraceOptions how;
  how.memory_max = 1 << 20;
  Trace trace(path, how);
  CHECK(trace.get());
  Engine engine(1);
  Tensor x = engine.zeros({1}, F32);
  engine.submit("recorded", {}, {x}, [](Completion op) { op.complete(); }).wait(LONG);
  trace.snapshot(path + "-so-far");
  trace.end();
  for (const std::string &file : {path + "-so-far", path}) {
    std::FILE *written = std::fopen(file.c_str(), "rb");
    CHECK(written && std::fgetc(written) != EOF);
    std::fclose(written);
    std::remove(file.c_str());
  }
  try {
    Trace nowhere("/no/such/folder/x.pftrace");
    CHECK(!"there is no such folder");
  } catch (const Error &error) {
    CHECK(error.status() == ESTAFETTE_INVALID);
  }
}

// Both ends of a link are in this process: `processes.c` has two.
static void an_operation_that_is_skipped_calls_on_skip() {
  Engine engine(1);
  Tensor x = engine.zeros({1}, F32), y = engine.zeros({1}, F32);
  std::atomic<int> skipped{0};
  auto kept = std::make_shared<int>();
  SubmitOptions how;
  how.on_skip = [&skipped, kept](const Error &why) {
    CHECK(why.status() == ESTAFETTE_FAILED && std::string(why.what()).find("no luck") != std::string::npos);
    skipped++;
    throw std::runtime_error("dropped");
  };
  engine.submit("fails", {}, {x}, [](Completion op) { op.fail("no luck"); });
  engine.submit("is skipped", {x}, {y}, [kept](Completion) { CHECK(!"it is skipped"); }, how);
  engine.submit("runs", {}, {x}, [](Completion op) { op.complete(); }, how).wait(LONG);
  try {
    y.wait(LONG);
    CHECK(!"its input has failed");
  } catch (const Error &error) {
    CHECK(error.status() == ESTAFETTE_FAILED);
  }
  engine.wait_all(LONG);
  how = {};
  CHECK(skipped == 1);
  for (int i = 0; i < 10000 && kept.use_count() > 1; i++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(kept.use_count() == 1);
}

static void links_and_tickets_carry_tensors() {
  EngineOptions options;
  options.workers = 1;
  options.shared = true;
  Engine engine(options);
  std::optional<Door> door(std::in_place);
  std::string address = door->address();
  Link far = engine.connect(address, LONG), near = engine.accept(*door, LONG);
  door.reset();
  CHECK(near.process() == static_cast<std::uint32_t>(getpid()) && far.descriptor() >= 0);
  Tensor x = engine.zeros({4}, F32), y = Engine(1).zeros_shared({4}, F32);
  engine.submit("fill", {}, {x}, [x](Completion op) {
    x.data<float>()[3] = 5.0f;
    op.complete();
  });
  near.send(x);
  near.send(y, LONG);
  std::optional<Tensor> received = far.receive(LONG);
  CHECK(received && static_cast<float *>(received->export_to_dlpack()->dl_tensor.data)[3] == 5.0f);
  CHECK(far.receive(0));
  try {
    far.receive(1000);
    CHECK(!"nothing is there");
  } catch (const Error &error) {
    CHECK(error.status() == ESTAFETTE_TIMEOUT);
  }
  near.send(x, LONG, Copy::always);
  received = far.receive(LONG);
  received->wait(LONG);
  // A copy does not hold it up.
  engine.submit("fill again", {}, {x}, [x](Completion op) {
    x.data<float>()[3] = 6.0f;
    op.complete();
  }).wait(LONG);
  CHECK(static_cast<float *>(received->export_to_dlpack()->dl_tensor.data)[3] == 5.0f);
  Tensor unshared = Engine(1).zeros({4}, F32);
  try {
    near.send(unshared, LONG, Copy::never);
    CHECK(!"it is not shared");
  } catch (const Error &error) {
    CHECK(error.status() == ESTAFETTE_NOT_SHARED);
  }
  received.reset();
  Tensor lent = engine.zeros_shared_for_writing({4}, F32);
  near.lend(lent, LONG);
  received = far.receive(LONG);
  engine.submit("write", {}, {*received}, [to = *received](Completion op) {
    to.data<float>()[0] = 7.0f;
    op.complete();
  }).wait(LONG);
  CHECK(!lent.is_ready());
  received.reset();
  CHECK(static_cast<float *>(lent.export_to_dlpack()->dl_tensor.data)[0] == 7.0f);
  { Link closed = std::move(near); }
  CHECK(!far.receive(LONG));
  std::optional<Ticket> ticket(x.ticket());
  Tensor named = engine.from_ticket(ticket->bytes()), once = engine.from_ticket(x.ticket(true).bytes());
  named.wait(LONG);
  once.wait(LONG);
  std::vector<std::uint8_t> bytes = ticket->bytes();
  ticket.reset();
  ticket = x.ticket(true);
  std::vector<std::uint8_t> lost = ticket->bytes();
  ticket->revoke();
  try {
    engine.from_ticket(lost).wait(LONG);
    CHECK(!"it was revoked");
  } catch (const Error &error) {
    CHECK(error.status() == ESTAFETTE_FAILED);
  }
  TicketOptions elsewhere;
  elsewhere.copy = Copy::always;
  x.ticket(elsewhere);
  elsewhere.reach = "no:port";
  try {
    x.ticket(elsewhere);
    CHECK(!"it is no address, or NIXL is missing");
  } catch (const Error &error) {
    CHECK(error.status() == ESTAFETTE_INVALID);
  }
  declare_dead("10.0.0.1");
  try {
    engine.from_ticket(bytes).wait(LONG);
    CHECK(!"it was revoked");
  } catch (const Error &error) {
    CHECK(error.status() == ESTAFETTE_FAILED && std::strstr(error.what(), "not valid any more"));
  }
  try {
    engine.connect(address, LONG);
    CHECK(!"the door was closed");
  } catch (const Error &error) {
    CHECK(error.status() == ESTAFETTE_FAILED);
  }
}

static void what_goes_to_another_thread_is_waited_for() {
  const DLDevice host = {kDLCPU, 0};
  Engine engine(1);
  Tensor x = engine.zeros({4}, F32);
  const auto release_elsewhere = [](auto &held) {
    return std::thread([&held] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      held = std::decay_t<decltype(held)>();
    });
  };
  std::optional<Managed> view(x.export_to_dlpack(ESTAFETTE_READ, true));
  std::thread consumer = release_elsewhere(view);
  Managed next = x.export_to_dlpack(ESTAFETTE_WRITE, true);
  consumer.join();
  consumer = release_elsewhere(next);
  std::optional<Lease> lease(x.order_on(ESTAFETTE_WRITE, host, nullptr, ESTAFETTE_FOREVER, true));
  consumer.join();
  consumer = release_elsewhere(lease);
  std::vector<Lease> leases = engine.lease_all({{x, ESTAFETTE_WRITE}}, host, nullptr, ESTAFETTE_FOREVER, true);
  consumer.join();
  consumer = release_elsewhere(leases);
  x.wait();
  consumer.join();
}

static void every_handle_is_there_for_c() {
  EngineOptions options;
  options.workers = 1;
  options.shared = true;
  options.watchdog_ns = LONG;
  Engine engine(options);
  Tensor x = engine.zeros({2, 3}, F32);
  Promise promise;
  Lease lease = x.order_on(ESTAFETTE_READ);
  std::optional<Ticket> ticket(x.ticket());
  Door door;
  Link far = engine.connect(door.address(), LONG), near = engine.accept(door, LONG);
  CHECK(promise.get() && lease.get() && ticket->get() && far.get() && near.get());
  CHECK((x.shape() == std::vector<std::int64_t>{2, 3}) && engine.zeros({}, F32).shape().empty());
  std::uint32_t process;
  CHECK(estafette_link_process(far.get(), &process) == ESTAFETTE_OK);
  std::vector<std::uint8_t> bytes = ticket->bytes();
  ticket->revoke();
  CHECK(!ticket->get());
  try {
    engine.from_ticket(bytes).wait(LONG);
    CHECK(!"it was revoked");
  } catch (const Error &error) {
    CHECK(error.status() == ESTAFETTE_FAILED);
  }
  Fence fence = promise.fence();
  promise.fail("gone", ESTAFETTE_DEVICE);
  try {
    fence.is_done();
    CHECK(!"it has failed");
  } catch (const Error &error) {
    CHECK(error.status() == ESTAFETTE_DEVICE && std::strstr(error.what(), "gone"));
  }
  Promise other;
  try {
    other.fail("no failure", ESTAFETTE_OK);
    CHECK(!"it is no failure");
  } catch (const Error &error) {
    CHECK(error.status() == ESTAFETTE_INVALID && !other.fence().is_done());
  }
}

static void operations_say_whether_they_are_done_and_are_called_off() {
  Engine engine(1);
  Tensor x = engine.zeros({1}, F32);
  Promise gate;
  Fence open = gate.fence();
  Operation slow = engine.submit("slow", {}, {x}, [open](Completion op) { op.complete_after(open); });
  CHECK(!slow.is_done());
  Operation called_off = engine.submit("called off", {}, {x}, [](Completion op) { op.cancel("it is not wanted"); });
  gate.complete();
  slow.wait(LONG);
  CHECK(slow.is_done());
  try {
    called_off.wait(LONG);
    CHECK(!"it was called off");
  } catch (const Error &error) {
    CHECK(error.status() == ESTAFETTE_CANCELLED && std::strstr(error.what(), "it is not wanted"));
  }
  try {
    called_off.is_done();
    CHECK(!"it was called off");
  } catch (const Error &error) {
    CHECK(error.status() == ESTAFETTE_CANCELLED);
  }
  x.clear_error();
  CHECK(x.is_ready());
  CHECK(wait_any({&slow}, {x}) == 0 && wait_any({}, {x}, LONG) == 0);
  Lease held = x.order_on(ESTAFETTE_WRITE);
  auto [made, op] = engine.produce_with_operation("produced", {x}, [](Completion) { CHECK(!"it was called off"); });
  CHECK(op.cancel());
  try {
    made.wait(LONG);
    CHECK(!"it was called off");
  } catch (const Error &error) {
    CHECK(error.status() == ESTAFETTE_CANCELLED);
  }
}

static void leases_are_taken_together_and_memory_is_copied() {
  Engine engine(1);
  Tensor x = engine.empty({kDLCPU, 0}, {1}, F32), y = engine.zeros({1}, F32);
  std::vector<Lease> both = engine.lease_all({{x, ESTAFETTE_READ}, {y, ESTAFETTE_WRITE}});
  CHECK(both.size() == 2 && both[0].get() && both[1].get());
  x.order_on(ESTAFETTE_READ, {kDLCPU, 0}, nullptr, 0);
  CHECK(estafette_wait(nullptr, 0) == ESTAFETTE_INVALID && estafette_last_error()[0]);
  for (bool alone : {true, false}) {
    try {
      if (alone) y.order_on(ESTAFETTE_READ, {kDLCPU, 0}, nullptr, 0);
      engine.lease_all({{x, ESTAFETTE_READ}, {y, ESTAFETTE_READ}}, {kDLCPU, 0}, nullptr, 0);
      CHECK(!"it is held");
    } catch (const Error &error) {
      CHECK(error.status() == ESTAFETTE_PENDING);
      CHECK(std::string(error.what()) == estafette_status_text(ESTAFETTE_PENDING));
    }
  }
  both.clear();
  y.data<float>()[0] = 3.0f;
  Tensor copy = engine.copy(y);
  copy.wait(LONG);
  CHECK(copy.data<float>() != y.data<float>() && copy.data<float>()[0] == 3.0f);
}

static void tensors_cross_with_fences() {
  Engine engine(1), other(1);
  Tensor x = engine.zeros({1}, F32);
  engine.submit("fill", {}, {x}, [x](Completion op) {
    x.data<float>()[0] = 4.0f;
    op.complete();
  });
  ManagedFenced fenced = x.export_fenced();
  Tensor there = other.import_fenced(fenced);
  CHECK(!fenced);
  there.wait(LONG);
  CHECK(there.data<float>()[0] == 4.0f);
  x.export_fenced(ESTAFETTE_WRITE);
  try {
    other.import_fenced(fenced);
    CHECK(!"there is nothing");
  } catch (const Error &error) {
    CHECK(error.status() == ESTAFETTE_INVALID);
  }
}

static void operators_are_functions_of_the_program() {
  Engine engine(1);
  auto kept = std::make_shared<int>();
  OperatorOptions in_place;
  in_place.in_place = true;
  Engine::register_operator("cpp.add", [kept](const OperatorArguments &call) {
    const char *by = call.attribute("by", "1");
    if (*by == 'x') throw std::runtime_error("by what?");
    auto to = static_cast<float *>(call.outputs[0]->dl_tensor.data);
    to[0] = static_cast<const float *>(call.inputs[0]->data)[0] + std::strtof(by, nullptr);
  }, in_place);
  OperatorOptions how;
  how.kind = ESTAFETTE_OPERATOR_INFERRED;
  how.n_inputs = 1;
  how.infer = [](const OperatorArguments &call) {
    DLTensor &out = call.outputs[0]->dl_tensor;
    out.ndim = 1;
    out.shape[0] = 1;
    out.dtype = call.inputs[0]->dtype;
  };
  Engine::register_operator("cpp.two", [](const OperatorArguments &call) {
    static_cast<float *>(call.outputs[0]->dl_tensor.data)[0] = 2.0f;
  }, how);
  Tensor x = engine.zeros({1}, F32);
  SubmitOptions first;
  first.priority = 1;
  engine.call_into("cpp.add", {x}, {x}, {{"by", "2.5"}}, first).wait(LONG);
  CHECK(x.data<float>()[0] == 2.5f);
  auto [made, op] = engine.call_with_operation("cpp.two", {x}, 1);
  op.wait(LONG);
  CHECK(made[0].data<float>()[0] == 2.0f);
  try {
    engine.call_into("cpp.add", {x}, {x}, {{"by", "x"}}).wait(LONG);
    CHECK(!"it has thrown");
  } catch (const Error &error) {
    CHECK(error.status() == ESTAFETTE_FAILED && std::strstr(error.what(), "by what?"));
  }
  Engine::unregister_operator("cpp.add");
  Engine::unregister_operator("cpp.two");
  engine.wait_all(LONG);
  for (int i = 0; i < 10000 && kept.use_count() > 1; i++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(kept.use_count() == 1);
  try {
    Engine::load_operators("/nowhere/lib.so");
    CHECK(!"there is no such library");
  } catch (const Error &error) {
    CHECK(error.status() == ESTAFETTE_INVALID);
  }
}

static void the_program_gets_the_log_and_ends_what_it_began() {
  std::atomic<int> errors(0);
  auto kept = std::make_shared<int>();
  set_log(1, [&errors, kept](int level, const char *message) {
    if (level == 1 && std::strstr(message, "nothing has retrieved") == nullptr && std::strstr(message, "lost")) errors++;
    throw 7;
  });
  {
    Engine engine(-1);
    bool helped = set_helping(false);
    engine.submit("fails", {}, {}, [](Completion op) { op.fail("lost"); });
    CHECK(helped && !engine.run_ready());
    CHECK(!set_helping(true) && engine.run_ready() && !engine.run_ready());
    engine.shutdown(LONG);
    try {
      engine.submit("late", {}, {}, [](Completion op) { op.complete(); });
      CHECK(!"it is shut down");
    } catch (const Error &error) {
      CHECK(error.status() == ESTAFETTE_SHUTDOWN);
    }
  }
  flush_deleters(LONG);
  CHECK(errors == 1);
  set_log(0, nullptr);
  CHECK(kept.use_count() == 1);
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

static Task await(Tensor tensor, std::atomic<int> &outcome, std::string &text, Executor executor = {}) {
  try {
    co_await tensor.ready(std::move(executor));
    outcome = 1;
  } catch (const Error &error) {
    text = error.what();
    outcome = -1;
  }
}

static Task await_on(Engine &engine, Tensor tensor, std::atomic<int> &outcome, std::thread::id &where) {
  co_await tensor.ready(engine.executor());
  where = std::this_thread::get_id();
  outcome = 1;
}

static void coroutines_go_on_where_an_executor_takes_them() {
  Engine engine(1);
  std::thread::id worker, where;
  engine.submit("who", {}, {}, [&](Completion op) {
    worker = std::this_thread::get_id();
    op.complete();
  }).wait(LONG);
  Tensor x = engine.zeros({1}, F32);
  Promise gate("gate");
  Fence open = gate.fence();
  engine.submit("slow", {}, {x}, [open](Completion op) { op.complete_after(open); });
  std::atomic<int> done(0);
  await_on(engine, x, done, where);
  CHECK(done == 0);
  gate.complete();
  while (!done) std::this_thread::yield();
  CHECK(where == worker);
  engine.wait_all(LONG);
}

static Task wait_in_between(Tensor ready, Tensor pending, Executor executor, std::atomic<int> &status) {
  co_await ready.ready(std::move(executor));
  try {
    pending.wait(1000000);
  } catch (const Error &error) {
    status = error.status();
  }
}

// An engine that has no room, or takes nothing more, resumes them too: where they may block.
static void coroutines_may_block_where_their_executor_has_no_room() {
  EngineOptions limits;
  limits.workers = limits.in_flight_limit = 1;
  Engine engine(1), full(limits), ended(1);
  std::promise<Completion> taken, begun;
  full.submit("takes the room", {}, {}, [&taken](Completion end) { taken.set_value(end); });
  Completion end = taken.get_future().get();
  Executor executor = ended.executor();
  check(estafette_engine_shutdown(ended.get(), LONG));
  Tensor x = engine.zeros({1}, F32), y = engine.zeros({1}, F32);
  Promise last("last");
  Fence over = last.fence();
  engine.submit("slow", {}, {x}, [&begun](Completion end) { begun.set_value(end); });
  engine.submit("slower", {}, {y}, [over](Completion op) { op.complete_after(over); });
  std::atomic<int> no_room(0), shut_down(0);
  wait_in_between(x, y, full.executor(), no_room);
  wait_in_between(x, y, executor, shut_down);
  // On this thread, which is in no operation: inside of one there is more room.
  begun.get_future().get().complete();
  while (!shut_down) std::this_thread::yield();
  CHECK(shut_down == ESTAFETTE_TIMEOUT && no_room == 0);
  end.complete();
  while (!no_room) std::this_thread::yield();
  CHECK(no_room == ESTAFETTE_TIMEOUT);
  last.complete();
  engine.wait_all(LONG);
  full.wait_all(LONG);
}

// No thread of the program waits for the resumptions, the second of which blocks.
static void an_engine_without_workers_resumes_coroutines() {
  Engine engine(-1);
  Tensor x = engine.zeros({1}, F32), y = engine.zeros({1}, F32);
  Promise last("last");
  Fence over = last.fence();
  engine.submit("soon", {}, {x}, [](Completion op) { op.complete(); });
  engine.submit("never", {}, {y}, [over](Completion op) { op.complete_after(over); });
  std::atomic<int> resumed(0), blocked(0);
  std::thread::id where;
  await_on(engine, x, resumed, where);
  wait_in_between(x, y, engine.executor(), blocked);
  while (!resumed || !blocked) std::this_thread::yield();
  CHECK(where != std::this_thread::get_id() && blocked == ESTAFETTE_TIMEOUT);
  last.complete();
  engine.wait_all(LONG);
}

static void an_engine_that_was_moved_from_has_no_executor() {
  Engine engine(1);
  Engine moved = std::move(engine);
  try {
    engine.executor();
    CHECK(!"there is no engine");
  } catch (const Error &error) {
    CHECK(error.status() == ESTAFETTE_INVALID);
  }
}

// A coroutine that its owner destroys, and that its exceptions leave.
struct Owned {
  struct promise_type {
    Owned get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { throw; }
  };

  std::coroutine_handle<promise_type> handle;
};

static Owned note(Tensor tensor, Executor executor, bool &noted) {
  co_await tensor.ready(std::move(executor));
  noted = true;
}

static void a_coroutine_that_is_destroyed_while_it_waits_is_not_resumed() {
  Engine engine(1);
  Tensor x = engine.zeros({4}, F32);
  std::promise<Completion> begun;
  engine.submit("slow", {}, {x}, [&begun](Completion end) { begun.set_value(end); });
  Completion end = begun.get_future().get();
  bool first = false, second = false;
  std::promise<std::function<void()>> due;
  Owned destroyed = note(x, nullptr, first);
  Owned resumed = note(x, [&due](std::function<void()> resume) { due.set_value(resume); }, second);
  destroyed.handle.destroy();
  end.complete();
  std::function<void()> resume = due.get_future().get();
  resume();
  CHECK(second && !first && resumed.handle.done());
  resumed.handle.destroy();
  resume();
}

static std::ptrdiff_t threads_of_this_process() {
  std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

// At the in-flight limit, 64 coroutines wait for room on one thread; one of them is destroyed meanwhile.
static void coroutines_that_wait_for_room_share_a_thread() {
  EngineOptions limits;
  limits.workers = limits.in_flight_limit = 1;
  Engine engine(1), full(limits);
  std::promise<Completion> taken, begun;
  full.submit("takes the room", {}, {}, [&taken](Completion end) { taken.set_value(end); });
  Completion room = taken.get_future().get();
  Tensor x = engine.zeros({1}, F32);
  engine.submit("slow", {}, {x}, [&begun](Completion end) { begun.set_value(end); });
  Completion slow = begun.get_future().get();
  std::atomic<int> refused(0);
  bool noted = false;
  auto executor = [&](auto waiting) {
    full.executor()(waiting);
    refused++;
  };
  std::string text;
  std::atomic<int> outcomes[63] = {};
  Owned destroyed = note(x, executor, noted);
  for (std::atomic<int> &outcome : outcomes) await(x, outcome, text, executor);
  std::ptrdiff_t before = threads_of_this_process();
  slow.complete();
  while (refused < 64) std::this_thread::yield();
  // The library may start a few threads of its own.
  CHECK(threads_of_this_process() < before + 8);
  destroyed.handle.destroy();
  room.complete();
  for (std::atomic<int> &outcome : outcomes) {
    while (!outcome) std::this_thread::yield();
    CHECK(outcome == 1);
  }
  full.wait_all(LONG);
  CHECK(!noted);
}

static Owned throw_after(Tensor tensor, Executor executor) {
  co_await tensor.ready(std::move(executor));
  throw 7;
}

// Neither may leave the callback.
static void exceptions_of_executors_and_coroutines_end_in_the_callback() {
  Engine engine(1);
  Tensor x = engine.zeros({1}, F32);
  std::promise<Completion> begun;
  engine.submit("slow", {}, {x}, [&begun](Completion end) { begun.set_value(end); });
  Completion end = begun.get_future().get();
  std::atomic<int> refused(0), thrown(0), last(0);
  std::string text;
  await(x, refused, text, [](auto) { throw std::runtime_error("no memory"); });
  Owned thrower = throw_after(x, [&thrown](auto waiting) {
    try {
      waiting();
    } catch (int number) {
      thrown = number;
      throw;
    }
  });
  await(x, last, text);
  end.complete();
  while (!refused || !thrown || !last) std::this_thread::yield();
  CHECK(refused == 1 && thrown == 7 && last == 1);
  thrower.handle.destroy();
}

static Task await_twice(Engine &engine, Tensor tensor, Fence second, std::atomic<int> &outcome) {
  Tensor::Ready ready = tensor.ready();
  co_await ready;
  outcome = 1;
  engine.submit("again", {}, {tensor}, [second](Completion op) { op.complete_after(second); });
  co_await ready;
  outcome = 2;
}

static void an_awaitable_may_be_awaited_again() {
  Engine engine(1);
  Tensor x = engine.zeros({1}, F32);
  Promise first("first"), second("second");
  Fence opens = first.fence();
  engine.submit("slow", {}, {x}, [opens](Completion op) { op.complete_after(opens); });
  std::atomic<int> outcome(0);
  await_twice(engine, x, second.fence(), outcome);
  CHECK(outcome == 0);
  first.complete();
  while (outcome < 1) std::this_thread::yield();
  second.complete();
  while (outcome < 2) std::this_thread::yield();
  engine.wait_all(LONG);
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
  structs_of_before_dlpack_1_pass_both_ways();
  a_function_is_called_and_not_copied();
  exceptions_become_failures_and_failures_exceptions();
  promises_and_fences_are_shared();
  a_fence_that_was_moved_from_is_done();
  programs_are_recorded_once_and_replayed();
  a_function_of_a_node_keeps_its_state();
  calls_of_one_node_may_overlap();
  handles_and_structs_from_elsewhere_are_adopted();
  an_operation_is_called_off_before_it_begins();
  submissions_have_options();
  operations_produce_tensors();
  operators_are_called_by_name();
  traces_are_written();
  an_operation_that_is_skipped_calls_on_skip();
  links_and_tickets_carry_tensors();
  what_goes_to_another_thread_is_waited_for();
  every_handle_is_there_for_c();
  operations_say_whether_they_are_done_and_are_called_off();
  leases_are_taken_together_and_memory_is_copied();
  tensors_cross_with_fences();
  operators_are_functions_of_the_program();
  the_program_gets_the_log_and_ends_what_it_began();
#ifdef ESTAFETTE_HAS_COROUTINES
  coroutines_await_tensors();
  an_awaitable_may_be_awaited_again();
  a_coroutine_that_is_destroyed_while_it_waits_is_not_resumed();
  coroutines_go_on_where_an_executor_takes_them();
  coroutines_may_block_where_their_executor_has_no_room();
  an_engine_without_workers_resumes_coroutines();
  an_engine_that_was_moved_from_has_no_executor();
  coroutines_that_wait_for_room_share_a_thread();
  exceptions_of_executors_and_coroutines_end_in_the_callback();
  std::puts("with coroutines");
#endif
  std::puts("done");
}
