// The workloads, as lists of operations with their accesses: every engine is handed the same ones.
//
// They are made before the clock starts. Each workload is described in benches/README.md and beside its
// maker below.

#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace peers {

// The most variables that one operation reads: nearest(5) and spread(5).
constexpr std::size_t READS_MAX = 5;

// The `write` of an operation that only reads.
constexpr std::uint32_t NOTHING = UINT32_MAX;

struct Operation {
    // The variable that it writes, or NOTHING.
    std::uint32_t write;
    // Number of valid entries of `reads`. No variable appears twice in one operation.
    std::uint32_t read_count;
    std::uint32_t reads[READS_MAX];
};

struct Program {
    std::size_t variables;
    // Operations of one time step, where the workload has steps; otherwise all of them.
    std::size_t per_step;
    std::vector<Operation> operations;
};

// Variables of a workload that has many.
constexpr std::uint32_t VARIABLES = 1000;

// Numbers that look random: splitmix64, with the seed that the benches in Rust use.
class Dice {
public:
    std::uint32_t below(std::uint32_t limit) {
        state_ += 0x9e3779b97f4a7c15;
        std::uint64_t mixed = state_;
        mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
        mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
        return static_cast<std::uint32_t>((mixed ^ (mixed >> 31)) % limit);
    }

private:
    std::uint64_t state_ = 0x5eed;
};

// Every operation writes the same variable.
inline Program chain(std::size_t n) {
    return {1, n, std::vector<Operation>(n, Operation{0, 0, {}})};
}

// Operations write all the variables in turn.
inline Program independent(std::size_t n) {
    Program program{VARIABLES, n, {}};
    for (std::size_t op = 0; op < n; ++op) {
        program.operations.push_back({static_cast<std::uint32_t>(op % VARIABLES), 0, {}});
    }
    return program;
}

// One writer, then 16 readers of the same variable, repeated.
inline Program fan(std::size_t n) {
    Program program{1, n, {}};
    for (std::size_t op = 0; op < n; ++op) {
        const bool writes = op % 17 == 0;
        program.operations.push_back(writes ? Operation{0, 0, {}} : Operation{NOTHING, 1, {0}});
    }
    return program;
}

// Every operation reads two variables and writes a third, all drawn at random.
inline Program random(std::size_t n) {
    Program program{VARIABLES, n, {}};
    Dice dice;
    for (std::size_t op = 0; op < n; ++op) {
        Operation operation{dice.below(VARIABLES), 0, {}};
        while (operation.read_count < 2) {
            const std::uint32_t read = dice.below(VARIABLES);
            if (read != operation.write && (operation.read_count == 0 || read != operation.reads[0])) {
                operation.reads[operation.read_count++] = read;
            }
        }
        program.operations.push_back(operation);
    }
    return program;
}

// A grid of `width` points in time steps, `graphs` times side by side. Each point has two variables, used in
// turn: the operation of a point writes one and reads those that its neighbours wrote in the step before.
//
// `neighbours(step, point)` lists the points of the previous step that the operation reads.
template <class Neighbours>
Program grid(std::size_t n, std::size_t width, std::size_t graphs, Neighbours neighbours) {
    const std::size_t per_step = width * graphs;
    const std::size_t steps = n < per_step ? 1 : n / per_step;
    Program program{2 * per_step, per_step, {}};
    for (std::size_t step = 0; step < steps; ++step) {
        for (std::size_t cell = 0; cell < per_step; ++cell) {
            const std::size_t first = cell - cell % width;
            Operation operation{static_cast<std::uint32_t>(step % 2 * per_step + cell), 0, {}};
            if (step > 0) {
                for (const std::size_t point : neighbours(step, cell % width)) {
                    operation.reads[operation.read_count++] =
                        static_cast<std::uint32_t>((step - 1) % 2 * per_step + first + point);
                }
            }
            program.operations.push_back(operation);
        }
    }
    return program;
}

// The points up to `reach` away from `point`; the row ends at its edges.
inline std::vector<std::size_t> within(std::size_t reach, std::size_t point, std::size_t width) {
    std::vector<std::size_t> points;
    for (std::size_t other = point < reach ? 0 : point - reach; other <= point + reach && other < width; ++other) {
        points.push_back(other);
    }
    return points;
}

inline Program stencil(std::size_t n, std::size_t width) {
    return grid(n, width, 1, [width](std::size_t, std::size_t point) { return within(1, point, width); });
}

// Width of the patterns below, which are Task Bench's, with its rules for who reads whom.
constexpr std::size_t PATTERN_WIDTH = 32;

inline Program pattern(const std::string& name, std::size_t n) {
    constexpr std::size_t width = PATTERN_WIDTH;
    const auto nearest = [](std::size_t, std::size_t point) { return within(2, point, width); };
    if (name == "trivial") {
        return grid(n, width, 1, [](std::size_t, std::size_t) { return std::vector<std::size_t>(); });
    }
    if (name == "stencil") {
        return stencil(n, width);
    }
    if (name == "nearest") {
        return grid(n, width, 1, nearest);
    }
    if (name == "nearest-x4") {
        return grid(n, width, 4, nearest);
    }
    if (name == "spread") {
        // Five points a fifth of the row apart; all but the own one move on by one at each step, for three steps.
        return grid(n, width, 1, [](std::size_t step, std::size_t point) {
            std::vector<std::size_t> points{point};
            for (std::size_t part = 1; part < 5; ++part) {
                points.push_back((point + part * width / 5 + step % 3) % width);
            }
            return points;
        });
    }
    if (name == "fft") {
        // The own point and those a power of two to either side, the power changing with every step.
        const auto levels = static_cast<std::size_t>(std::lround(std::log2(width)));
        return grid(n, width, 1, [levels](std::size_t step, std::size_t point) {
            const std::size_t distance = std::size_t{1} << (step - 1) % levels;
            std::vector<std::size_t> points;
            if (point >= distance) {
                points.push_back(point - distance);
            }
            points.push_back(point);
            if (point + distance < width) {
                points.push_back(point + distance);
            }
            return points;
        });
    }
    throw std::invalid_argument("no pattern `" + name + "`");
}

// The program of the workload called `name`, with `n` operations (whole steps, where it has steps).
inline Program make_program(const std::string& name, std::size_t n) {
    if (name == "chain") {
        return chain(n);
    }
    if (name == "independent") {
        return independent(n);
    }
    if (name == "fan") {
        return fan(n);
    }
    if (name == "random" || name == "deferred") {
        return random(n);
    }
    if (name == "stencil-8" || name == "stencil-32" || name == "stencil-64") {
        return stencil(n, std::stoul(name.substr(8)));
    }
    if (name.rfind("metg-", 0) == 0) {
        return pattern(name.substr(5), n);
    }
    throw std::invalid_argument("no workload `" + name + "`");
}

}  // namespace peers
