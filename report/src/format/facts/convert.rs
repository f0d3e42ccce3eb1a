//! Each part of a trace to facts, and back.

use super::words::{Word, blocker, blocker_words, cause};
use super::{Fact, Facts, Item, ReadFacts};
use crate::model::{
    Access, AccessMode, ClockOffset, Disorder, Edge, Hazard, ImportOrigin, Lease, LostRecords, Operation,
    OperationKind, Outcome, Process, Site, Stall, Text, Trace, Track, TrackKind, Variable, Workers,
};

/// Facts about a whole trace.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Head {
    pub started_unix_ns: u64,
    pub duration: u64,
    pub program: Text,
    pub processes: Vec<Process>,
    pub tracks: Vec<Track>,
    pub libraries: Vec<Text>,
    pub workers: Vec<Workers>,
    pub lost: Vec<LostRecords>,
    pub clocks: Vec<Text>,
    pub damage: Vec<Text>,
    /// True if it is the one at the end.
    pub is_last: bool,
    /// The number of things of each kind that were written, which tells the number of missing ones.
    pub totals: Totals,
}

/// The number of things of each kind.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(crate) struct Totals {
    pub operations: u64,
    pub leases: u64,
    pub stalls: u64,
    pub edges: u64,
    pub variables: u64,
    pub samples: u64,
}

impl Totals {
    pub(crate) fn of(trace: &Trace) -> Self {
        Self {
            operations: trace.operations.len() as u64,
            leases: trace.leases.len() as u64,
            stalls: trace.stalls.len() as u64,
            edges: trace.edges.len() as u64,
            variables: trace.variables.len() as u64,
            samples: trace.counters.iter().map(|counter| counter.samples.len() as u64).sum(),
        }
    }

    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            operations: self.operations.max(other.operations),
            leases: self.leases.max(other.leases),
            stalls: self.stalls.max(other.stalls),
            edges: self.edges.max(other.edges),
            variables: self.variables.max(other.variables),
            samples: self.samples.max(other.samples),
        }
    }

    pub(crate) fn named(self) -> [(&'static str, u64); 6] {
        [
            ("operations", self.operations),
            ("leases", self.leases),
            ("stalls", self.stalls),
            ("edges", self.edges),
            ("tensors", self.variables),
            ("samples", self.samples),
        ]
    }
}

pub(crate) fn head(trace: &Trace, totals: Totals, is_last: bool) -> Facts {
    let process = |process: &Process| {
        let Process { number, key, started_ns, clock } = process;
        let facts = Facts::default().uint("number", (*number).into()).uint("key", *key);
        Fact::Facts(facts.uint("started", *started_ns).text("clock", clock))
    };
    let track = |track: &Track| {
        Fact::Facts(Facts::default().text("name", &track.name).word("kind", track.kind.word()))
    };
    let lost = |lost: &LostRecords| {
        Fact::Facts(Facts::default().uint("track", lost.track as u64).uint("count", lost.count))
    };
    let workers = |workers: &Workers| {
        let facts = Facts::default().uint("count", workers.count.into());
        Fact::Facts(facts.uint("at once", workers.least().into()))
    };
    let facts = Facts::default()
        .text("program", &trace.program)
        .uint("started", trace.started_unix_ns)
        .uint("duration", trace.duration)
        .maybe("last", is_last.then_some(1))
        .list("processes", trace.processes.iter().map(process))
        .list("tracks", trace.tracks.iter().map(track))
        .list("libraries", trace.libraries.iter().cloned().map(Fact::Text))
        .list("workers", trace.workers.iter().map(workers))
        .list("lost", trace.losses.records.iter().map(lost))
        .list("clocks", trace.clocks.iter().map(|words| Fact::Text(words.as_str().into())))
        .list("damage", trace.losses.damage.iter().map(|damage| Fact::Text(damage.as_str().into())));
    totals.named().into_iter().fold(facts, |facts, (name, total)| facts.uint(name, total))
}

pub(crate) fn head_from(facts: &impl ReadFacts) -> Result<Head, String> {
    let mut head = Head {
        started_unix_ns: facts.need_uint("started")?,
        duration: facts.need_uint("duration")?,
        program: facts.need_text("program")?.clone(),
        is_last: facts.find_uint("last").is_some(),
        libraries: texts(facts, "libraries").collect::<Result<_, String>>()?,
        clocks: texts(facts, "clocks").collect::<Result<_, String>>()?,
        damage: texts(facts, "damage").collect::<Result<_, String>>()?,
        ..Head::default()
    };
    for facts in facts.find_things("processes") {
        let facts = facts?;
        let number = facts.need_uint("number")?;
        head.processes.push(Process {
            number: u32::try_from(number)
                .map_err(|_| format!("is of process {number}, which no system has"))?,
            key: facts.need_uint("key")?,
            started_ns: facts.need_uint("started")?,
            clock: facts.need_text("clock")?.clone(),
        });
    }
    for facts in facts.find_things("tracks") {
        let facts = facts?;
        let kind = TrackKind::of(facts.need_text("kind")?)?;
        head.tracks.push(Track { name: facts.need_text("name")?.clone(), kind });
    }
    for facts in facts.find_things("workers") {
        let facts = facts?;
        let number = |name| {
            let number = facts.need_uint(name)?;
            u32::try_from(number).map_err(|_| format!("has {number} workers, which no engine has"))
        };
        let (count, at_once) = (number("count")?, number("at once")?);
        head.workers.push(Workers { count, at_once: vec![(0, at_once)], ..Workers::default() });
    }
    for facts in facts.find_things("lost") {
        let facts = facts?;
        let track = facts.find_index("track").ok_or("lacks the track of a loss")?;
        head.lost.push(LostRecords { track, count: facts.need_uint("count")? });
    }
    let total = |name| facts.find_uint(name).unwrap_or(0);
    head.totals = Totals {
        operations: total("operations"),
        leases: total("leases"),
        stalls: total("stalls"),
        edges: total("edges"),
        variables: total("tensors"),
        samples: total("samples"),
    };
    Ok(head)
}

fn texts(facts: &impl ReadFacts, name: &str) -> impl Iterator<Item = Result<Text, String>> {
    facts.find_list(name).map(|item| match item? {
        Item::Text(text) => Ok(text),
        Item::Facts(_) => Err("has a value where a text should be".to_owned()),
    })
}

fn site(facts: Facts, site: Option<&Site>) -> Facts {
    let Some(site) = site else { return facts };
    let facts = facts.text("file", &site.file).uint("line", site.line.into());
    if site.function.is_empty() { facts } else { facts.text("function", &site.function) }
}

fn site_from(facts: &impl ReadFacts) -> Result<Option<Site>, String> {
    let Some(file) = facts.find_text("file") else { return Ok(None) };
    let line = facts.need_uint("line")?;
    let line = u32::try_from(line).map_err(|_| format!("is of line {line}, which no file has"))?;
    let function = facts.find_text("function").cloned().unwrap_or_default();
    Ok(Some(Site { file: file.clone(), line, function }))
}

pub(crate) fn operation(operation: &Operation) -> Facts {
    let access = |access: &Access| {
        Fact::Facts(Facts::default().uint("tensor", access.variable).word("access", access.mode.word()))
    };
    let (outcome, why) = match &operation.outcome {
        Outcome::Ok => ("ok", None),
        Outcome::Failed(why) => ("failed", Some(why)),
        Outcome::Cancelled => ("cancelled", None),
        Outcome::Skipped(why) => ("skipped", Some(why)),
        Outcome::Unfinished => ("unfinished", None),
    };
    // The times of an operation are counted from its submission on, so the numbers are small and readable.
    let since = |time: Option<u64>| time.map(|time| time.wrapping_sub(operation.submitted));
    let mut facts = Facts::default()
        .uint("id", operation.id)
        .word("kind", operation.kind.word())
        .index("library", operation.library)
        .index("submitter", operation.submitter)
        .index("track", operation.track)
        .uint("submitted", operation.submitted)
        .maybe("granted", since(operation.granted))
        .maybe("ready", since(operation.ready))
        .maybe("awake", since(operation.awake))
        .maybe("began", since(operation.began))
        .maybe("issued", since(operation.issued))
        .maybe("ran from", since(operation.ran.map(|(from, _)| from)))
        .maybe("ran to", since(operation.ran.map(|(_, to)| to)))
        .maybe("done", since(operation.done))
        .maybe("observed", since(operation.observed))
        .maybe("resumed", since(operation.resumed))
        .maybe("waits for", operation.waits_for)
        .maybe("process", operation.origin.as_ref().map(|it| it.process.into()))
        .maybe("key", operation.origin.as_ref().map(|it| it.key))
        .word("outcome", outcome);
    if let Some(why) = why {
        facts = facts.text("why", why);
    }
    if let Some(ClockOffset { clock, ahead_ns, uncertainty_ns }) =
        operation.origin.as_ref().and_then(|it| it.clock.as_ref())
    {
        // Facts have no sign.
        let way = if *ahead_ns < 0 { "clock behind" } else { "clock ahead" };
        facts = facts.text("clock", clock).uint(way, ahead_ns.unsigned_abs());
        facts = facts.uint("clock uncertainty", *uncertainty_ns);
    }
    site(facts, operation.site.as_ref())
        .list("accesses", operation.accesses.iter().map(access))
        .list("disorder", operation.disorder.iter().map(|it| Fact::Facts(disorder(it))))
}

fn disorder(disorder: &Disorder) -> Facts {
    let facts = Facts::default()
        .word("order", if disorder.is_known { "none" } else { "unknown" })
        .text("why", &disorder.why);
    site(facts, disorder.after.as_ref())
}

fn disorder_from(facts: &impl ReadFacts) -> Result<Disorder, String> {
    let is_known = match facts.need_text("order")?.as_str() {
        "none" => true,
        "unknown" => false,
        other => return Err(format!("has an unknown order, `{other}`")),
    };
    Ok(Disorder { is_known, after: site_from(facts)?, why: facts.need_text("why")?.clone() })
}

fn clock_from(facts: &impl ReadFacts) -> Option<ClockOffset> {
    let number = |name| facts.find_uint(name).and_then(|value| i64::try_from(value).ok());
    Some(ClockOffset {
        clock: facts.find_text("clock")?.clone(),
        ahead_ns: number("clock ahead").or_else(|| Some(-number("clock behind")?))?,
        uncertainty_ns: facts.find_uint("clock uncertainty")?,
    })
}

pub(crate) fn operation_from(name: &Text, facts: &impl ReadFacts) -> Result<Operation, String> {
    let why = || facts.find_text("why").cloned().unwrap_or_default();
    let submitted = facts.need_uint("submitted")?;
    let time = |name| facts.find_uint(name).map(|since| submitted.wrapping_add(since));
    let mut accesses = Vec::new();
    for facts in facts.find_things("accesses") {
        let facts = facts?;
        let mode = AccessMode::of(facts.need_text("access")?)?;
        accesses.push(Access { variable: facts.need_uint("tensor")?, mode });
    }
    accesses.shrink_to_fit();
    let disorder = facts.find_things("disorder").next().transpose()?;
    let process = facts.find_uint("process").and_then(|process| u32::try_from(process).ok());
    Ok(Operation {
        id: facts.need_uint("id")?,
        name: name.clone(),
        kind: OperationKind::of(facts.need_text("kind")?)?,
        library: facts.find_index("library"),
        site: site_from(facts)?,
        submitter: facts.find_index("submitter"),
        track: facts.find_index("track"),
        submitted,
        granted: time("granted"),
        ready: time("ready"),
        awake: time("awake"),
        began: time("began"),
        issued: time("issued"),
        ran: time("ran from").zip(time("ran to")),
        done: time("done"),
        observed: time("observed"),
        resumed: time("resumed"),
        outcome: match facts.need_text("outcome")?.as_str() {
            "ok" => Outcome::Ok,
            "failed" => Outcome::Failed(why()),
            "cancelled" => Outcome::Cancelled,
            "skipped" => Outcome::Skipped(why()),
            "unfinished" => Outcome::Unfinished,
            other => return Err(format!("has an unknown outcome, `{other}`")),
        },
        accesses,
        waits_for: facts.find_uint("waits for"),
        disorder: disorder.map(|facts| disorder_from(&facts)).transpose()?.map(Box::new),
        origin: process
            .zip(facts.find_uint("key"))
            .map(|(process, key)| Box::new(ImportOrigin { process, key, clock: clock_from(facts) })),
        engine: 0,
    })
}

pub(crate) fn lease(lease: &Lease) -> Facts {
    let facts = Facts::default()
        .uint("id", lease.id)
        .uint("tensor", lease.variable)
        .word("access", lease.access.word())
        .index("library", lease.library)
        .text("owner", &lease.owner)
        .uint("opened", lease.opened)
        .maybe("closed", lease.closed);
    site(facts, lease.site.as_ref())
}

pub(crate) fn lease_from(facts: &impl ReadFacts) -> Result<Lease, String> {
    Ok(Lease {
        id: facts.need_uint("id")?,
        variable: facts.need_uint("tensor")?,
        access: AccessMode::of(facts.need_text("access")?)?,
        library: facts.find_index("library"),
        owner: facts.need_text("owner")?.clone(),
        site: site_from(facts)?,
        opened: facts.need_uint("opened")?,
        closed: facts.find_uint("closed"),
    })
}

/// Everything but when it began, which is when its event is.
pub(crate) fn stall(stall: &Stall) -> Facts {
    let (word, which) = blocker_words(stall.blocker);
    let facts = Facts::default()
        .uint("waiter", stall.waiter)
        .maybe("access", (stall.access > 0).then_some(stall.access as u64))
        .uint("lasts", stall.duration())
        .word("cause", stall.cause.name())
        .word("blocker", word)
        .maybe("which", which)
        .maybe("critical", stall.critical.then_some(1));
    match stall.hazard {
        Some(hazard) => facts.word("hazard", hazard.word()),
        None => facts,
    }
}

pub(crate) fn stall_from(from: u64, facts: &impl ReadFacts) -> Result<Stall, String> {
    Ok(Stall {
        waiter: facts.need_uint("waiter")?,
        access: facts.find_index("access").unwrap_or(0),
        from,
        to: from.saturating_add(facts.need_uint("lasts")?),
        cause: cause(facts.need_text("cause")?)?,
        hazard: facts.find_text("hazard").map(|word| Hazard::of(word)).transpose()?,
        blocker: blocker(facts.need_text("blocker")?, facts.find_uint("which"))?,
        critical: facts.find_uint("critical").unwrap_or(0) != 0,
    })
}

/// All of an edge but its later end, whose facts hold the edge.
pub(crate) fn edge(edge: &Edge) -> Facts {
    Facts::default().uint("from", edge.from).uint("tensor", edge.variable).word("hazard", edge.hazard.word())
}

/// The same with the later end, for an edge whose later end has no facts.
pub(crate) fn loose_edge(edge: &Edge) -> Facts {
    self::edge(edge).uint("to", edge.to)
}

/// `owner`: the operation or lease whose facts hold the edge.
pub(crate) fn edge_from(owner: Option<u64>, facts: &impl ReadFacts) -> Result<Edge, String> {
    Ok(Edge {
        from: facts.need_uint("from")?,
        to: owner.map_or_else(|| facts.need_uint("to"), Ok)?,
        variable: facts.need_uint("tensor")?,
        hazard: Hazard::of(facts.need_text("hazard")?)?,
    })
}

pub(crate) fn variable(variable: &Variable) -> Facts {
    Facts::default()
        .uint("id", variable.id)
        .text("name", &variable.name)
        .maybe("bytes", variable.bytes)
        .index("library", variable.library)
}

pub(crate) fn variable_from(facts: &impl ReadFacts) -> Result<Variable, String> {
    Ok(Variable {
        id: facts.need_uint("id")?,
        name: facts.need_text("name")?.clone(),
        bytes: facts.find_uint("bytes"),
        library: facts.find_index("library"),
    })
}
