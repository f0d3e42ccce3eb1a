// MXNet 1.9.1's dependency engine, through the C interface of `libmxnet.so`, whose path is in PEERS_LIBMXNET.
//
// To look its best:
// - operations name bare engine variables, which cost less than arrays;
// - there is no deleter and no name to copy, and the parameter is a number;
// - with THREADS = 1 operations are marked `kAsync`, which lets the engine run those that are ready in the
//   submitting thread. With more they go to THREADS workers, as MXNet's own operators on a CPU do.
// The engine has at least one worker beside the submitting thread, and those that become ready later run
// there.

#include <dlfcn.h>

#include <condition_variable>
#include <cstdlib>
#include <mutex>

#include "harness.hpp"

namespace peers {

// The C interface makes no bare variables, so this one call goes through the C++ class. Only the place of
// `NewVariable` among the virtual functions matters, as declared in version 1.9.1. It lies outside the
// unnamed namespace: a class that no other file can implement has only pure functions, and the compiler would
// call those.
class EngineInterface {
public:
    virtual void notify_shutdown() = 0;
    virtual void stop() = 0;
    virtual void start() = 0;
    virtual void* new_variable() = 0;

protected:
    ~EngineInterface() = default;
};

}  // namespace peers

namespace {

// From mxnet/c_api.h, mxnet/base.h and mxnet/engine.h.
using SyncFunction = void (*)(void* run_context, void* parameter);
using PushSync = int (*)(SyncFunction function, void* parameter, void (*deleter)(void*), const void* context,
                         void* reads, int read_count, void* writes, int write_count, const void* property, int priority,
                         const char* name);
struct Context {
    int device_type;
    int device_id;
};
constexpr Context CPU{1, 0};
enum class Property { NORMAL = 0, ASYNC = 4 };

// Bodies are the same for all operations of a run, so they stay in one place and the parameter is the index
// alone.
template <class Body>
const Body* current_body = nullptr;

template <class Body>
void call(void*, void* op) {
    (*current_body<Body>)(reinterpret_cast<std::size_t>(op));
}

// Closed until it is opened.
class Gate {
public:
    static void wait(void*, void* gate) {
        auto* self = static_cast<Gate*>(gate);
        std::unique_lock lock(self->mutex_);
        self->changed_.wait(lock, [self] { return self->open_; });
    }

    void open() {
        const std::lock_guard lock(mutex_);
        open_ = true;
        changed_.notify_all();
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool open_ = false;
};

class Mxnet {
public:
    Mxnet(const peers::Program& program, int threads)
        : program_(program), threads_(threads), property_(threads == 1 ? Property::ASYNC : Property::NORMAL) {
        // The engine reads these when it is loaded; what the user has set goes first.
        setenv("MXNET_ENGINE_TYPE", "ThreadedEnginePerDevice", 0);
        setenv("MXNET_CPU_WORKER_NTHREADS", std::to_string(threads).c_str(), 0);
        const char* path = std::getenv("PEERS_LIBMXNET");
        if (path == nullptr) {
            throw std::runtime_error("PEERS_LIBMXNET must hold the path of libmxnet.so");
        }
        // Never closed: the library's threads live until the process ends.
        library_ = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library_ == nullptr) {
            throw std::runtime_error(dlerror());
        }
        push_sync_ = symbol<PushSync>("MXEnginePushSync");
        wait_all_ = symbol<int (*)()>("MXNDArrayWaitAll");
        last_error_ = symbol<const char* (*)()>("MXGetLastError");
        peers::EngineInterface* engine = symbol<peers::EngineInterface* (*)()>("_ZN5mxnet6Engine3GetEv")();
        for (std::size_t variable = 0; variable < program.variables; ++variable) {
            variables_.push_back(engine->new_variable());
        }
    }

    const char* name() const { return "mxnet"; }

    int workers() const { return threads_; }

    void prepare() {}

    template <class Body>
    void run(Body body, std::size_t count) {
        submit_all(body, count);
        must(wait_all_());
    }

    template <class Body, class Closed, class Pushed>
    void run_gated(Body body, Closed closed, Pushed pushed) {
        Gate gate;
        const Property normal = Property::NORMAL;
        must(push_sync_(Gate::wait, &gate, nullptr, &CPU, nullptr, 0, variables_.data(),
                        static_cast<int>(variables_.size()), &normal, 0, nullptr));
        closed();
        submit_all(body, program_.operations.size());
        pushed();
        gate.open();
        must(wait_all_());
    }

private:
    template <class Function>
    Function symbol(const char* name) {
        void* found = dlsym(library_, name);
        if (found == nullptr) {
            throw std::runtime_error(std::string("libmxnet.so has no ") + name);
        }
        return reinterpret_cast<Function>(found);
    }

    void must(int result) {
        if (result != 0) {
            throw std::runtime_error(last_error_());
        }
    }

    template <class Body>
    void submit_all(const Body& body, std::size_t count) {
        current_body<Body> = &body;
        for (std::size_t op = 0; op < count; ++op) {
            const peers::Operation& operation = program_.operations[op];
            void* reads[peers::READS_MAX];
            for (std::uint32_t read = 0; read < operation.read_count; ++read) {
                reads[read] = variables_[operation.reads[read]];
            }
            const bool writes = operation.write != peers::NOTHING;
            void* write = writes ? variables_[operation.write] : nullptr;
            must(push_sync_(call<Body>, reinterpret_cast<void*>(op), nullptr, &CPU, reads,
                            static_cast<int>(operation.read_count), &write, writes, &property_, 0, nullptr));
        }
    }

    const peers::Program& program_;
    int threads_;
    Property property_;
    void* library_;
    PushSync push_sync_;
    int (*wait_all_)();
    const char* (*last_error_)();
    std::vector<void*> variables_;
};

}  // namespace

int main(int argc, char** argv) { return peers::serve<Mxnet>(argc, argv); }
