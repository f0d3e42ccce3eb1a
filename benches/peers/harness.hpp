// Common part of all peer programs: the command line, the measuring, and the lines of JSON (described in
// benches/README.md).
//
//     peer-NAME WORKLOAD N THREADS ROUNDS [check]
//
// A peer is a class `Engine`, made once per process with a program and a number of threads:
//
//     const char* name() const;
//     int workers() const;                       threads beside the submitting one that run operations
//     void prepare();                             called before each run, without being timed
//     template <class Body> void run(Body body, std::size_t count);
//                                                 submits the first `count` operations and waits until all have run
//     template <class Body, class Closed, class Pushed> void run_gated(Body body, Closed closed, Pushed pushed);
//                                                 the same with all operations, and each comes after a
//                                                 gate, an operation that writes all variables; `closed()`
//                                                 is called when the gate is there, `pushed()` when
//                                                 everything else is, right before the gate opens
//
// With `check` the workload runs with a body whose result depends on the order, and the result is compared
// with that of running the operations one by one.

#pragma once

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <sstream>

#include "bodies.hpp"

namespace peers {

// One quantity over the measured rounds.
struct Samples {
    std::vector<double> values;

    double median() const {
        std::vector<double> sorted = values;
        std::sort(sorted.begin(), sorted.end());
        const std::size_t half = sorted.size() / 2;
        return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
    }
};

struct Options {
    std::string workload;
    std::size_t n;
    int threads;
    int rounds;
    bool check;
};

// One line of JSON, made field by field.
class Line {
public:
    Line(const Options& options, const char* engine, int workers, std::size_t n) {
        text_ << "{\"workload\":\"" << options.workload << "\",\"engine\":\"" << engine << "\",\"workers\":" << workers
              << ",\"n\":" << n << ",\"rounds\":" << options.rounds;
    }

    Line& quantity(const char* name, const Samples& samples) {
        const auto [least, most] = std::minmax_element(samples.values.begin(), samples.values.end());
        text_ << ",\"" << name << "\":{\"median\":" << samples.median() << ",\"min\":" << *least << ",\"max\":" << *most
              << "}";
        return *this;
    }

    // A quantity that has no value here.
    Line& none(const char* name) {
        text_ << ",\"" << name << "\":null";
        return *this;
    }

    Line& text(const char* name, const char* value) {
        text_ << ",\"" << name << "\":\"" << value << "\"";
        return *this;
    }

    void print() { std::cout << text_.str() << "}" << std::endl; }

private:
    std::ostringstream text_;
};

// Bytes of memory that this process occupies.
inline double resident_bytes() {
    std::ifstream file("/proc/self/statm");
    double size = 0, resident = 0;
    file >> size >> resident;
    return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

// One warm-up that is thrown away, then the measured rounds.
template <class Engine>
void measure(Engine& engine, const Program& program, const Options& options) {
    const auto count = static_cast<double>(program.operations.size());
    Samples samples;
    for (int round = 0; round <= options.rounds; ++round) {
        engine.prepare();
        const Clock::time_point start = Clock::now();
        engine.run(Empty(), program.operations.size());
        const Clock::time_point end = Clock::now();
        if (round > 0) {
            samples.values.push_back(nanoseconds(start, end) / count);
        }
    }
    Line(options, engine.name(), engine.workers(), program.operations.size()).quantity("ns_per_op", samples).print();
}

// Pushing and running apart. The first run counts, since its memory is the process's first; the later ones
// show what the same costs with memory that the engine already has.
template <class Engine>
void measure_deferred(Engine& engine, const Program& program, const Options& options) {
    const auto count = static_cast<double>(program.operations.size());
    Samples total, push, run, bytes, warm_push, warm_run;
    for (int round = 0; round <= options.rounds; ++round) {
        Clock::time_point start, pushed, opened;
        double before = 0, grown = 0;
        const auto on_closed = [&] {
            before = resident_bytes();
            start = Clock::now();
        };
        const auto on_pushed = [&] {
            pushed = Clock::now();
            grown = resident_bytes() - before;
            opened = Clock::now();
        };
        engine.prepare();
        engine.run_gated(Empty(), on_closed, on_pushed);
        const Clock::time_point end = Clock::now();
        const double push_ns = nanoseconds(start, pushed) / count;
        const double run_ns = nanoseconds(opened, end) / count;
        if (round == 0) {
            total.values.push_back(push_ns + run_ns);
            push.values.push_back(push_ns);
            run.values.push_back(run_ns);
            bytes.values.push_back(grown / count);
        } else {
            warm_push.values.push_back(push_ns);
            warm_run.values.push_back(run_ns);
        }
    }
    Line line(options, engine.name(), engine.workers(), program.operations.size());
    line.quantity("ns_per_op", total).quantity("push_ns", push).quantity("run_ns", run);
    line.quantity("bytes_per_op", bytes);
    if (!warm_push.values.empty()) {
        line.quantity("warm_push_ns", warm_push).quantity("warm_run_ns", warm_run);
    }
    line.print();
}

// METG(50 %): the shortest time per task and core at which half of it is useful work.
template <class Engine>
class Metg {
public:
    Metg(Engine& engine, const Program& program, int cores)
        : engine_(engine), state_(program), cores_(cores) {}

    // In nanoseconds, or infinity if even the longest body is not enough.
    double search() {
        double enough = 512;
        while (efficiency(enough) < 0.5) {
            enough *= 2;
            if (enough > BODY_NS_MAX) {
                return INFINITY;
            }
        }
        double too_short = enough / 2;
        while (too_short >= BODY_NS_MIN && efficiency(too_short) >= 0.5) {
            enough = too_short;
            too_short /= 2;
        }
        // Five halvings of a factor of two leave 2 %, which is below what the machine's noise lets one see.
        for (int halving = 0; halving < 5; ++halving) {
            const double middle = std::sqrt(too_short * enough);
            (efficiency(middle) < 0.5 ? too_short : enough) = middle;
        }
        return 2 * enough;
    }

private:
    // Longer bodies than this are not what a task engine is for.
    static constexpr double BODY_NS_MAX = 128'000;
    // The bodies of one run last no longer than this, taken together,
    static constexpr double BODIES_NS_MAX = 100e6;
    // unless these steps need more: with fewer, the beginning and the end would count.
    static constexpr std::size_t STEPS_LONG = 50;
    // Below this the spin's own rounds are too coarse.
    static constexpr double BODY_NS_MIN = 8;

    double efficiency(double body_ns) {
        // Calibrated for each point: how fast the loop is changes with what else the machine does.
        state_.rounds = Spinner().rounds(body_ns);
        const std::size_t count = operations(body_ns);
        Samples walls;
        for (int run = 0; run < 3; ++run) {
            std::fill(state_.cells.begin(), state_.cells.end(), Cell());
            engine_.prepare();
            const Clock::time_point start = Clock::now();
            engine_.run(Task(state_), count);
            walls.values.push_back(nanoseconds(start, Clock::now()));
        }
        return static_cast<double>(count) * body_ns / (walls.median() * cores_);
    }

    // With long bodies fewer steps show as much.
    std::size_t operations(double body_ns) const {
        const std::size_t per_step = state_.program.per_step;
        const auto enough = static_cast<std::size_t>(BODIES_NS_MAX / body_ns) / per_step;
        return std::min(state_.program.operations.size(), std::max(enough, STEPS_LONG) * per_step);
    }

    Engine& engine_;
    Task::State state_;
    int cores_;
};

template <class Engine>
void measure_metg(Engine& engine, const Program& program, const Options& options) {
    engine.prepare();
    engine.run(Empty(), program.operations.size());
    Samples samples;
    for (int round = 0; round < options.rounds; ++round) {
        const double granularity = Metg<Engine>(engine, program, options.threads).search();
        if (std::isfinite(granularity)) {
            samples.values.push_back(granularity / 1000);
        }
    }
    Line line(options, engine.name(), engine.workers(), program.operations.size());
    // One round without an end says that there is none to rely on.
    if (static_cast<int>(samples.values.size()) == options.rounds) {
        line.quantity("metg_us", samples).print();
    } else {
        line.none("metg_us").print();
    }
}

// True if the engine's order is one that the accesses allow.
template <class Engine>
bool check(Engine& engine, const Program& program, const Options& options) {
    Hash::State expected(program);
    for (std::size_t op = 0; op < program.operations.size(); ++op) {
        Hash{expected}(op);
    }
    Hash::State found(program);
    engine.prepare();
    if (options.workload == "deferred") {
        const auto nothing_ran = [&] {
            for (const std::uint64_t seen : found.seen) {
                if (seen != 0) {
                    throw std::runtime_error("an operation ran before the gate was opened");
                }
            }
        };
        engine.run_gated(Hash(found), nothing_ran, nothing_ran);
    } else {
        engine.run(Hash(found), program.operations.size());
    }
    bool same = expected.seen == found.seen;
    for (std::size_t variable = 0; variable < program.variables; ++variable) {
        same = same && expected.cells[variable].value == found.cells[variable].value;
    }
    Line(options, engine.name(), engine.workers(), program.operations.size())
        .text("check", same ? "passed" : "failed")
        .print();
    return same;
}

inline std::size_t number(const char* text, const char* what) {
    char* end = nullptr;
    const unsigned long long value = std::strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || value == 0 || value > 1'000'000'000) {
        throw std::invalid_argument(std::string(what) + " must be a number from 1 to 10^9, not `" + text + "`");
    }
    return value;
}

inline Options parse(int argc, char** argv) {
    const bool check = argc == 6 && std::string(argv[5]) == "check";
    if (argc != 5 && !check) {
        throw std::invalid_argument("usage: " + std::string(argv[0]) + " WORKLOAD N THREADS ROUNDS [check]");
    }
    return {argv[1], number(argv[2], "N"), static_cast<int>(number(argv[3], "THREADS")),
            static_cast<int>(number(argv[4], "ROUNDS")), check};
}

// The `main` of a peer.
template <class Engine>
int serve(int argc, char** argv) {
    try {
        const Options options = parse(argc, argv);
        const Program program = make_program(options.workload, options.n);
        Engine engine(program, options.threads);
        if (options.check) {
            return check(engine, program, options) ? 0 : 1;
        }
        if (options.workload == "deferred") {
            measure_deferred(engine, program, options);
        } else if (options.workload.rfind("metg-", 0) == 0) {
            measure_metg(engine, program, options);
        } else {
            measure(engine, program, options);
        }
        return 0;
    } catch (const std::exception& error) {
        std::cerr << argv[0] << ": " << error.what() << "\n";
        return 2;
    }
}

}  // namespace peers
