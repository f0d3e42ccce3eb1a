// OpenMP tasks with `depend` clauses: GCC's runtime when built by g++, LLVM's when built by clang++.
//
// To look its best:
// - each number of reads has a pragma of its own, since a clause with an iterator costs an array more per
//   task;
// - the end of the parallel region waits for the tasks, which is faster here than `taskwait`;
// - the submitting thread does wait after each window of tasks, since both runtimes get slower with what is
//   pending on a variable (GCC's by orders of magnitude); only not where tasks of a window share no variable,
//   and not behind the gate;
// - the gate is a detached task, so that no thread blocks in it;
// - the submitting thread is one of the team and runs tasks itself when it has submitted all.

#include <omp.h>

#include "harness.hpp"

namespace {

// Tasks of a window: of the powers of four that we tried, the one that is best in most workloads.
#if defined(__clang__)
constexpr std::size_t WINDOW = 1024;
#else
constexpr std::size_t WINDOW = 256;
#endif

class OpenMp {
public:
    OpenMp(const peers::Program& program, int threads)
        : program_(program), threads_(threads), windows_(shares_variables(program)), variables_(program.variables) {
        // The team is the size that was asked for, or the figures would claim what is not true.
        omp_set_dynamic(0);
    }

    const char* name() const {
#if defined(__clang__)
        return "libomp";
#else
        return "gomp";
#endif
    }

    int workers() const { return threads_ - 1; }

    void prepare() {}

    template <class Body>
    void run(Body body, std::size_t count) {
#pragma omp parallel num_threads(threads_)
#pragma omp single
        submit_all(body, count, windows_);
    }

    template <class Body, class Closed, class Pushed>
    void run_gated(Body body, Closed closed, Pushed pushed) {
        char* v = variables_.data();
        const std::size_t count = variables_.size();
#pragma omp parallel num_threads(threads_)
#pragma omp single
        {
            omp_event_handle_t gate;
#pragma omp task detach(gate) depend(iterator(std::size_t i = 0 : count), out : v[i])
            {
            }
            closed();
            submit_all(body, program_.operations.size(), false);
            pushed();
            omp_fulfill_event(gate);
        }
    }

private:
    // True if tasks of one window use the same variable; without reads, variables are written in turn.
    static bool shares_variables(const peers::Program& program) {
        const auto reads = [](const peers::Operation& operation) { return operation.read_count > 0; };
        return program.variables < WINDOW ||
               std::any_of(program.operations.begin(), program.operations.end(), reads);
    }

    template <class Body>
    void submit_all(Body body, std::size_t count, bool windows) {
        for (std::size_t op = 0; op < count; ++op) {
            submit(program_.operations[op], op, body);
            if (windows && op % WINDOW == WINDOW - 1) {
#pragma omp taskwait
            }
        }
    }

    template <class Body>
    void submit(const peers::Operation& operation, std::size_t op, Body body) {
        char* v = variables_.data();
        const std::uint32_t w = operation.write;
        const std::uint32_t* r = operation.reads;
        if (w == peers::NOTHING) {
            // Of the workloads, only fan has operations that write nothing, and they read one variable.
#pragma omp task depend(in : v[r[0]])
            body(op);
            return;
        }
        switch (operation.read_count) {
        case 0:
#pragma omp task depend(inout : v[w])
            body(op);
            break;
        case 1:
#pragma omp task depend(in : v[r[0]]) depend(inout : v[w])
            body(op);
            break;
        case 2:
#pragma omp task depend(in : v[r[0]], v[r[1]]) depend(inout : v[w])
            body(op);
            break;
        case 3:
#pragma omp task depend(in : v[r[0]], v[r[1]], v[r[2]]) depend(inout : v[w])
            body(op);
            break;
        case 4:
#pragma omp task depend(in : v[r[0]], v[r[1]], v[r[2]], v[r[3]]) depend(inout : v[w])
            body(op);
            break;
        default:
#pragma omp task depend(in : v[r[0]], v[r[1]], v[r[2]], v[r[3]], v[r[4]]) depend(inout : v[w])
            body(op);
            break;
        }
    }

    const peers::Program& program_;
    int threads_;
    // True to wait after each window.
    bool windows_;
    // Only their addresses matter.
    std::vector<char> variables_;
};

}  // namespace

int main(int argc, char** argv) { return peers::serve<OpenMp>(argc, argv); }
