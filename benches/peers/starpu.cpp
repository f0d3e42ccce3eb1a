// StarPU tasks whose order follows from the data handles that they name.
//
// To look its best:
// - handles hold no data (`starpu_void_data_register`), so nothing is ever moved or allocated for them;
// - one codelet for each set of accesses is made once, with no performance model to keep;
// - the scheduler is `eager`, one central queue: with empty bodies and few cores it beat `lws`, the default,
//   in most of our workloads. STARPU_SCHED in the environment chooses another one;
// - the submitting thread sleeps while many tasks are pending, which leaves the cores to the workers and made
//   empty tasks two to four times faster with a worker per core; only not behind the gate;
// - the gate is the application's own hold on the handles, so that no worker blocks in it.
// The submitting thread cannot run tasks, so the least is one worker beside it; `workers` says how many.

#include <starpu.h>

#include <cstdlib>

#include "harness.hpp"

namespace {

// A codelet gets one pointer; bodies are small and the same for all tasks of a run, so they stay in one
// place.
template <class Body>
const Body* current_body = nullptr;

template <class Body>
void call(void**, void* op) {
    (*current_body<Body>)(reinterpret_cast<std::size_t>(op));
}

// Every task goes through here; an error must not pass for a fast task.
void must(int result, const char* what) {
    if (result != 0) {
        throw std::runtime_error(std::string(what) + " failed: " + std::to_string(result));
    }
}

// So many tasks may be pending in a window, and so many are left when the next one begins.
constexpr int WINDOW = 500;
constexpr unsigned WINDOW_LEFT = 250;

class StarPu {
public:
    StarPu(const peers::Program& program, int threads) : program_(program), threads_(threads) {
        setenv("STARPU_SILENT", "1", 0);
        starpu_conf conf;
        must(starpu_conf_init(&conf), "starpu_conf_init");
        conf.ncpus = threads;
        conf.ncuda = 0;
        conf.nopencl = 0;
        // The environment goes first.
        conf.sched_policy_name = "eager";
        must(starpu_init(&conf), "starpu_init");
        handles_.resize(program.variables);
        for (starpu_data_handle_t& handle : handles_) {
            starpu_void_data_register(&handle);
        }
    }

    ~StarPu() {
        for (const starpu_data_handle_t handle : handles_) {
            starpu_data_unregister(handle);
        }
        starpu_shutdown();
    }

    const char* name() const { return "starpu"; }

    int workers() const { return threads_; }

    void prepare() {}

    template <class Body>
    void run(Body body, std::size_t count) {
        const Codelets codelets(body);
        submit_all(codelets, count, true);
        must(starpu_task_wait_for_all(), "starpu_task_wait_for_all");
    }

    template <class Body, class Closed, class Pushed>
    void run_gated(Body body, Closed closed, Pushed pushed) {
        const Codelets codelets(body);
        for (const starpu_data_handle_t handle : handles_) {
            must(starpu_data_acquire(handle, STARPU_W), "starpu_data_acquire");
        }
        closed();
        submit_all(codelets, program_.operations.size(), false);
        pushed();
        for (const starpu_data_handle_t handle : handles_) {
            starpu_data_release(handle);
        }
        must(starpu_task_wait_for_all(), "starpu_task_wait_for_all");
    }

private:
    // One for each number of reads, with a write after them or without.
    struct Codelets {
        template <class Body>
        explicit Codelets(const Body& body) {
            current_body<Body> = &body;
            for (std::size_t reads = 0; reads <= peers::READS_MAX; ++reads) {
                for (const bool writes : {false, true}) {
                    starpu_codelet& codelet = of[reads][writes];
                    starpu_codelet_init(&codelet);
                    codelet.cpu_funcs[0] = call<Body>;
                    codelet.nbuffers = static_cast<int>(reads) + writes;
                    std::fill_n(codelet.modes, reads, STARPU_R);
                    if (writes) {
                        codelet.modes[reads] = STARPU_RW;
                    }
                }
            }
        }

        mutable starpu_codelet of[peers::READS_MAX + 1][2];
    };

    void submit_all(const Codelets& codelets, std::size_t count, bool windows) {
        for (std::size_t op = 0; op < count; ++op) {
            const peers::Operation& operation = program_.operations[op];
            const bool writes = operation.write != peers::NOTHING;
            starpu_task* task = starpu_task_create();
            task->cl = &codelets.of[operation.read_count][writes];
            task->cl_arg = reinterpret_cast<void*>(op);
            for (std::uint32_t read = 0; read < operation.read_count; ++read) {
                task->handles[read] = handles_[operation.reads[read]];
            }
            if (writes) {
                task->handles[operation.read_count] = handles_[operation.write];
            }
            must(starpu_task_submit(task), "starpu_task_submit");
            if (windows && starpu_task_nsubmitted() >= WINDOW) {
                must(starpu_task_wait_for_n_submitted(WINDOW_LEFT), "starpu_task_wait_for_n_submitted");
            }
        }
    }

    const peers::Program& program_;
    int threads_;
    std::vector<starpu_data_handle_t> handles_;
};

}  // namespace

int main(int argc, char** argv) { return peers::serve<StarPu>(argc, argv); }
