// oneTBB's flow graph: one `continue_node` per operation, with an edge for each order that the accesses ask
// for.
//
// A flow graph tracks no data. This program derives the edges from the accesses itself, before the clock
// starts, so the figure (building nodes and edges, then running them) is a floor and not the cost of a
// dynamic dependency engine.
//
// To look its best:
// - deriving the edges, freeing the nodes and starting the threads are not timed;
// - no edge is made twice, and each is made as soon as its nodes are, while they are likely to be in the
//   cache;
// - nodes lie side by side in memory that is used again for each run, and memory comes from oneTBB's own
//   allocator;
// - the submitting thread runs operations while it waits.
// The `lightweight` policy would run successors on the stack of their predecessor, which a chain of this
// length overflows.

#include <oneapi/tbb/flow_graph.h>
#include <oneapi/tbb/global_control.h>

#include <memory>
#include <optional>
#include <utility>

#include "harness.hpp"

namespace {

namespace flow = oneapi::tbb::flow;

using Node = flow::continue_node<flow::continue_msg>;

// Predecessors of each operation.
struct Order {
    // Pairs of (earlier, later), without duplicates and sorted by `later`.
    std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;
    // Operations without predecessors.
    std::vector<std::uint32_t> sources;

    explicit Order(const peers::Program& program) {
        struct Variable {
            std::optional<std::uint32_t> writer;
            std::vector<std::uint32_t> readers;
        };
        std::vector<Variable> variables(program.variables);
        std::vector<std::uint32_t> before;
        for (std::uint32_t op = 0; op < program.operations.size(); ++op) {
            const peers::Operation& operation = program.operations[op];
            before.clear();
            for (std::uint32_t read = 0; read < operation.read_count; ++read) {
                Variable& variable = variables[operation.reads[read]];
                if (variable.writer) {
                    before.push_back(*variable.writer);
                }
                variable.readers.push_back(op);
            }
            if (operation.write != peers::NOTHING) {
                Variable& variable = variables[operation.write];
                // Readers come after the last writer already.
                if (variable.readers.empty() && variable.writer) {
                    before.push_back(*variable.writer);
                }
                before.insert(before.end(), variable.readers.begin(), variable.readers.end());
                variable.readers.clear();
                variable.writer = op;
            }
            std::sort(before.begin(), before.end());
            before.erase(std::unique(before.begin(), before.end()), before.end());
            for (const std::uint32_t earlier : before) {
                edges.emplace_back(earlier, op);
            }
            if (before.empty()) {
                sources.push_back(op);
            }
        }
    }
};

class Tbb {
public:
    Tbb(const peers::Program& program, int threads)
        : count_(static_cast<std::uint32_t>(program.operations.size())),
          threads_(threads),
          order_(program),
          limit_(oneapi::tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(threads)),
          nodes_(std::allocator<Node>().allocate(count_)) {}

    ~Tbb() {
        prepare();
        std::allocator<Node>().deallocate(nodes_, count_);
    }

    const char* name() const { return "tbb-flow"; }

    int workers() const { return threads_ - 1; }

    // Destroys the nodes of the last run; their memory stays for the next.
    void prepare() {
        std::destroy_n(nodes_, made_);
        made_ = 0;
    }

    template <class Body>
    void run(Body body, std::size_t count) {
        build(body, static_cast<std::uint32_t>(count));
        start_and_wait();
    }

    // Nothing runs before the first message, so a graph without one is its own gate.
    template <class Body, class Closed, class Pushed>
    void run_gated(Body body, Closed closed, Pushed pushed) {
        closed();
        build(body, count_);
        pushed();
        start_and_wait();
    }

private:
    template <class Body>
    void build(Body body, std::uint32_t count) {
        auto edge = order_.edges.begin();
        for (; made_ < count; ++made_) {
            const std::uint32_t op = made_;
            new (&nodes_[op]) Node(graph_, [body, op](const flow::continue_msg&) { body(op); });
            for (; edge != order_.edges.end() && edge->second == op; ++edge) {
                flow::make_edge(nodes_[edge->first], nodes_[op]);
            }
        }
    }

    void start_and_wait() {
        for (const std::uint32_t source : order_.sources) {
            // Sources are in order, and a run may be shorter than the program.
            if (source >= made_) {
                break;
            }
            nodes_[source].try_put(flow::continue_msg());
        }
        graph_.wait_for_all();
    }

    std::uint32_t count_;
    int threads_;
    Order order_;
    oneapi::tbb::global_control limit_;
    flow::graph graph_;
    // Room for `count_` nodes, of which the first `made_` exist.
    Node* nodes_;
    std::uint32_t made_ = 0;
};

}  // namespace

int main(int argc, char** argv) { return peers::serve<Tbb>(argc, argv); }
