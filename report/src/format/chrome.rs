//! A trace as Chrome JSON, the older of the two formats that Perfetto's UI and `chrome://tracing` read.
//!
//! The shape is that of the "Trace Event Format" document of Chromium's tracing project: `X` for what lasts,
//! `i` for moments, `s` and `f` for the two ends of a dependence, `C` for counters, `M` for names. Times are
//! microseconds.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value, json};

use crate::analysis::place::{self, Placed, Row};
use crate::format::facts::{self, Fact, Facts};
use crate::format::file;
use crate::model::{Nanos, Trace};

/// All events are of one process, the recorded program.
const PROCESS: u64 = 1;
/// Thread 0 would be the processor's idle one: Perfetto's importer puts its events on another thread, where
/// they cross what is there.
const FIRST_THREAD: u64 = 1;

const HEAD: &str = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n";

/// Writes `trace` to the file `path`, which is replaced if it was written so.
///
/// # Errors
/// Errors of the system; `AlreadyExists` for a file that this function did not write and that is not empty.
pub fn write_file(trace: &Trace, path: &Path) -> io::Result<()> {
    file::replace_alike(path, HEAD.as_bytes(), |out| write(trace, out))
}

/// Writes `trace` as one JSON object with its events in `traceEvents`.
///
/// # Errors
///
/// Errors of `out`.
pub fn write(trace: &Trace, out: impl Write) -> io::Result<()> {
    let mut events = Events { out: io::BufWriter::new(out), first: true };
    events.out.write_all(HEAD.as_bytes())?;
    let name = json!({"ph": "M", "name": "process_name", "pid": PROCESS, "args": {"name": trace.program}});
    events.put(&name)?;

    let groups = groups(trace);
    let mut thread = FIRST_THREAD;
    // The places and threads at which the flows of an operation or a lease start and end.
    let mut flow_ends = HashMap::new();
    for ((row, order), mut things) in groups {
        things.sort_by_key(|item| (item.placed.from, item.placed.to));
        let ends = |placed: &Placed| (placed.from, placed.to.unwrap_or(placed.from));
        let shelves = place::shelves(things.iter().map(|item| ends(&item.placed)));
        let count = shelves.iter().max().map_or(1, |&highest| highest as u64 + 1);
        for shelf in 0..count {
            let name = json!({"name": row_name(trace, row, order)});
            let (pid, tid) = (PROCESS, thread + shelf);
            events.put(&json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": name}))?;
            let index = json!({"sort_index": tid});
            events.put(
                &json!({"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": index}),
            )?;
        }
        for (item, shelf) in things.iter().zip(shelves) {
            let tid = thread + shelf as u64;
            if let Some(id) = item.id {
                // An export and the lease that begins with it have one number; the export is the earlier of
                // the two.
                let flow_end = flow_ends.entry(id).or_insert((item.placed, tid));
                if item.category == "operation" {
                    *flow_end = (item.placed, tid);
                }
            }
            events.put(&item.event(tid))?;
        }
        thread += count;
    }
    for (index, edge) in trace.edges.iter().enumerate() {
        // An arrow needs both ends, and time runs forwards.
        let flow_end = |id| flow_ends.get(&id).map(|&(placed, thread): &(Placed, u64)| (placed, thread));
        let (Some((from, from_thread)), Some((to, to_thread))) = (flow_end(edge.from), flow_end(edge.to))
        else {
            continue;
        };
        let (from, to) = (from.from, to.arrival());
        if from <= to {
            let flow = |ph: &str, time, tid: u64| {
                json!({"ph": ph, "bp": "e", "cat": "dependence", "name": edge.hazard.words(), "id": index + 1,
                       "pid": PROCESS, "tid": tid, "ts": microseconds(time)})
            };
            events.put(&flow("s", from, from_thread))?;
            events.put(&flow("f", to, to_thread))?;
        }
    }
    for counter in &trace.counters {
        for &(time, value) in &counter.samples {
            let args = json!({ (counter.unit.as_str()): value });
            let ts = microseconds(time);
            events
                .put(&json!({"ph": "C", "name": counter.name, "cat": "counter", "pid": PROCESS, "ts": ts,
                               "args": args}))?;
        }
    }
    let head = arguments(&facts::head(trace, facts::Totals::of(trace), true));
    writeln!(events.out, "\n],\"otherData\":{head}}}")?;
    events.out.flush()
}

struct Events<W> {
    out: W,
    first: bool,
}

impl<W: Write> Events<W> {
    fn put(&mut self, event: &Value) -> io::Result<()> {
        if !self.first {
            self.out.write_all(b",\n")?;
        }
        self.first = false;
        serde_json::to_writer(&mut self.out, event).map_err(io::Error::from)
    }
}

/// The order of what is shown of one row.
const OPERATIONS: u8 = 0;
const WAITS: u8 = 1;
const LEASES: u8 = 2;

struct ChromeItem {
    placed: Placed,
    name: String,
    category: &'static str,
    facts: Facts,
    /// Of an operation or a lease.
    id: Option<u64>,
}

impl ChromeItem {
    fn event(&self, tid: u64) -> Value {
        let ts = microseconds(self.placed.from);
        let mut event = json!({"name": self.name, "cat": self.category, "pid": PROCESS, "tid": tid, "ts": ts,
                               "args": arguments(&self.facts)});
        match self.placed.to {
            Some(to) => {
                event["ph"] = json!("X");
                event["dur"] = microseconds(to - self.placed.from);
            }
            None => {
                event["ph"] = json!("i");
                event["s"] = json!("t");
            }
        }
        if self.category == "stall" {
            // Waits stand out; everything else is coloured by the viewer.
            event["cname"] = json!("terrible");
        }
        event
    }
}

/// The shown things, in rows: tracks first, then libraries.
fn groups(trace: &Trace) -> BTreeMap<(Row, u8), Vec<ChromeItem>> {
    let mut groups: BTreeMap<(Row, u8), Vec<ChromeItem>> = BTreeMap::new();
    for (operation, placed) in trace.operations.iter().zip(place::operations(trace)) {
        let (name, facts) = (operation.name.clone(), facts::operation(operation));
        let item = ChromeItem {
            placed,
            name: name.to_string(),
            category: "operation",
            facts,
            id: Some(operation.id),
        };
        groups.entry((placed.row, OPERATIONS)).or_default().push(item);
    }
    for lease in &trace.leases {
        let placed = place::lease(trace, lease);
        let (name, facts) = (lease.owner.clone(), facts::lease(lease));
        let item =
            ChromeItem { placed, name: name.to_string(), category: "lease", facts, id: Some(lease.id) };
        groups.entry((placed.row, LEASES)).or_default().push(item);
    }
    for stall in &trace.stalls {
        let library = trace.operation(stall.waiter).and_then(|waiter| waiter.library);
        let row = Row::Library(place::known(trace, library));
        let placed = Placed { row, from: stall.from, to: Some(stall.to.max(stall.from)), freed: None };
        let name = format!("{}: {}", stall.cause.name(), facts::blocker_name(trace, stall.blocker));
        let item = ChromeItem { placed, name, category: "stall", facts: facts::stall(stall), id: None };
        groups.entry((row, WAITS)).or_default().push(item);
    }
    groups
}

fn row_name(trace: &Trace, row: Row, order: u8) -> String {
    match row {
        Row::Track(track) => trace.tracks[track].name.to_string(),
        Row::Library(library) => {
            let name = trace.library(library).unwrap_or("no library");
            match order {
                WAITS => format!("{name} waits"),
                LEASES => format!("{name} leases"),
                _ => format!("{name} operations"),
            }
        }
    }
}

/// Exact for about three months, after which a double holds no nanoseconds.
fn microseconds(time: Nanos) -> Value {
    json!(time as f64 / 1_000.0)
}

fn arguments(facts: &Facts) -> Value {
    let named = facts.0.iter().map(|(name, fact)| (name.to_string(), argument(fact)));
    Value::Object(named.collect())
}

fn argument(fact: &Fact) -> Value {
    match fact {
        Fact::Uint(value) => json!(value),
        Fact::Text(text) => json!(text.as_str()),
        Fact::Word(word) => json!(word),
        Fact::List(facts) => facts.iter().map(argument).collect(),
        Fact::Facts(facts) => arguments(facts),
    }
}
