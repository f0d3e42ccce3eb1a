// Bodies of operations: nothing, a result that depends on their order, or a spin of a given length that checks
// its inputs.
//
// A body is called with the index of its operation. Engines copy bodies around, so they are a pointer or two
// at most.

#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "program.hpp"

namespace peers {

using Clock = std::chrono::steady_clock;

// Nanoseconds from `start` to `end`.
inline double nanoseconds(Clock::time_point start, Clock::time_point end) {
    return std::chrono::duration<double, std::nano>(end - start).count();
}

struct Empty {
    void operator()(std::size_t) const {}
};

// The contents of one variable, on a cache line of its own so that neighbours do not slow each other down.
struct alignas(64) Cell {
    std::uint64_t value = 0;
};

// Every operation mixes its index and what it reads into what it writes. No two orders that the accesses
// forbid to swap give the same contents, but by a collision of 64-bit hashes.
class Hash {
public:
    struct State {
        explicit State(const Program& program)
            : program(program), cells(program.variables), seen(program.operations.size()) {}

        const Program& program;
        std::vector<Cell> cells;
        // Values that each operation found: readers leave no other trace.
        std::vector<std::uint64_t> seen;
    };

    explicit Hash(State& state) : state_(&state) {}

    void operator()(std::size_t op) const {
        const Operation& operation = state_->program.operations[op];
        std::uint64_t mixed = mix(op + 1);
        for (std::uint32_t read = 0; read < operation.read_count; ++read) {
            mixed = mix(mixed + state_->cells[operation.reads[read]].value);
        }
        if (operation.write != NOTHING) {
            std::uint64_t& value = state_->cells[operation.write].value;
            mixed = mix(mixed + value);
            value = mixed;
        }
        state_->seen[op] = mixed;
    }

private:
    static std::uint64_t mix(std::uint64_t value) {
        value = (value ^ (value >> 32)) * 0xd6e8feb86659fd93;
        return value ^ (value >> 29);
    }

    State* state_;
};

// A loop whose speed was measured just before, so that a body needs no look at the clock.
class Spinner {
public:
    Spinner() {
        constexpr std::uint64_t rounds = 1 << 20;
        double least = INFINITY;
        // The least of several: a pause of the machine must not make every later body shorter than it claims.
        for (int attempt = 0; attempt < 7; ++attempt) {
            const Clock::time_point start = Clock::now();
            turn(rounds);
            least = std::fmin(least, nanoseconds(start, Clock::now()));
        }
        ns_per_round_ = least / rounds;
    }

    // Number of rounds that last `ns` nanoseconds.
    std::uint64_t rounds(double ns) const { return static_cast<std::uint64_t>(std::lround(ns / ns_per_round_)); }

    static void turn(std::uint64_t rounds) {
        for (std::uint64_t round = 0; round < rounds; ++round) {
            // Without this the compiler would see that the loop does nothing.
            asm volatile("" : "+r"(round));
        }
    }

private:
    double ns_per_round_;
};

// The task of METG: each checks that every variable it reads was written by the step before, spins, and
// writes its step.
class Task {
public:
    struct State {
        explicit State(const Program& program) : program(program), cells(program.variables) {}

        const Program& program;
        std::vector<Cell> cells;
        std::uint64_t rounds = 0;
    };

    explicit Task(State& state) : state_(&state) {}

    void operator()(std::size_t op) const {
        const Operation& operation = state_->program.operations[op];
        // Steps count from one in the cells, where zero means that the cell was not written yet.
        const std::uint64_t step = op / state_->program.per_step;
        for (std::uint32_t read = 0; read < operation.read_count; ++read) {
            const std::uint64_t found = state_->cells[operation.reads[read]].value;
            if (found != step) {
                std::fprintf(stderr, "operation %zu read step %llu of variable %u, not step %llu\n", op,
                             static_cast<unsigned long long>(found), operation.reads[read],
                             static_cast<unsigned long long>(step));
                std::abort();
            }
        }
        Spinner::turn(state_->rounds);
        state_->cells[operation.write].value = step + 1;
    }

private:
    State* state_;
};

}  // namespace peers
