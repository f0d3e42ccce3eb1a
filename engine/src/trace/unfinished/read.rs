//! Reads the file of a trace that was never finished, as far as it goes.

use std::collections::{BTreeMap, HashSet};

use estafette_report::Trace;
use estafette_report::budget::Budget;
use estafette_report::model::{Process, Text, TrackKind};

use super::super::assemble::{EventIndex, Thread};
use super::super::buffer::WORDS;
use super::super::encoding::DecodedEvent;
use super::super::ticks::Scale;
use super::{MAGIC, Part, TRACK_KINDS};

/// Threads that are believed; a larger number is damage.
const THREADS_MAX: usize = 1 << 16;

/// True if a file is one.
pub(in super::super) fn is_unfinished(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// The notes of a thread.
#[derive(Default)]
struct ThreadSection<'a> {
    kind: usize,
    name: &'a str,
    texts: Vec<Text>,
    /// Whole events, in blocks as large as buffers at most.
    blocks: Vec<Vec<u64>>,
    running: Option<(u64, u64)>,
    lost: u64,
}

impl ThreadSection<'_> {
    /// Takes in whole events; after one that is none, nothing more of these words.
    fn words(&mut self, words: &[u8]) {
        let words: Vec<u64> = words.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let mut rest = &words[..];
        while let Some((_, after)) = DecodedEvent::first_of(rest) {
            let (event, _) = rest.split_at(rest.len() - after.len());
            match self.blocks.last_mut().filter(|block| block.len() + event.len() <= WORDS) {
                Some(block) => block.extend_from_slice(event),
                None => self.blocks.push(event.to_vec()),
            }
            rest = after;
        }
    }
}

/// The trace in the file, with its stalls attributed. What is missing is among its losses. It takes at most
/// 64 times the memory that the file takes, or 16 MiB if that is more, as
/// [`estafette_report::perfetto::read`].
pub(in super::super) fn read(bytes: &[u8]) -> Trace {
    let mut file = File::default();
    let mut rest = &bytes[MAGIC.len().min(bytes.len())..];
    while !rest.is_empty() {
        let Some((part, after)) = first_of(rest) else {
            file.damage = Some(bytes.len() - rest.len());
            break;
        };
        if file.take(part).is_none() {
            file.damage = Some(bytes.len() - rest.len());
            break;
        }
        rest = after;
    }
    file.trace(bytes.len())
}

/// A part of the file: what it is, and its content.
type Content<'a> = (u32, &'a [u8]);

/// The first part, and what follows it.
fn first_of(bytes: &[u8]) -> Option<(Content<'_>, &[u8])> {
    let (kind, rest) = number(bytes)?;
    let (length, rest) = number(rest)?;
    let (content, rest) = rest.split_at_checked(length as usize)?;
    Some(((kind, content), rest))
}

fn number(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u32::from_le_bytes(*number), rest))
}

fn long(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*number), rest))
}

#[derive(Default)]
struct File<'a> {
    started_unix_ns: u64,
    program: &'a str,
    process: Option<Process>,
    names: BTreeMap<u64, &'a str>,
    threads: Vec<ThreadSection<'a>>,
    clock: (u64, f64),
    cut: Option<(u64, HashSet<u64>)>,
    /// The byte from which on nothing could be read.
    damage: Option<usize>,
}

impl<'a> File<'a> {
    /// Takes a part in; `None` for one that cannot be.
    fn take(&mut self, (kind, content): Content<'a>) -> Option<()> {
        let kind = Part::ALL.into_iter().find(|part| *part as u32 == kind)?;
        match kind {
            Part::Head => {
                let (started, program) = long(content)?;
                (self.started_unix_ns, self.program) = (started, str::from_utf8(program).ok()?);
            }
            Part::Process => {
                let (key, rest) = long(content)?;
                let (number, rest) = long(rest)?;
                let (started_ns, clock) = long(rest)?;
                let (number, clock) = (u32::try_from(number).ok()?, str::from_utf8(clock).ok()?.into());
                self.process = Some(Process { number, key, started_ns, clock });
            }
            Part::Names => {
                let (variable, rest) = long(content)?;
                let (_, name) = long(rest)?;
                self.names.insert(variable, str::from_utf8(name).ok()?);
            }
            Part::Thread => {
                let (thread, rest) = self.thread(content)?;
                let (kind, name) = number(rest)?;
                (thread.kind, thread.name) = (kind as usize, str::from_utf8(name).ok()?);
            }
            Part::Text => {
                let (thread, text) = self.thread(content)?;
                thread.texts.push(str::from_utf8(text).ok()?.into());
            }
            Part::Words => {
                let (thread, words) = self.wide(content)?;
                thread.words(words);
            }
            Part::Running => {
                let (thread, rest) = self.wide(content)?;
                let (id, rest) = long(rest)?;
                thread.running = (id != 0).then_some((id, long(rest)?.0));
            }
            Part::Lost => {
                let (thread, rest) = self.wide(content)?;
                thread.lost = long(rest)?.0;
            }
            Part::Clock => {
                let (ticks, rest) = long(content)?;
                let per_tick = f64::from_bits(long(rest)?.0);
                let sane = per_tick.is_finite() && per_tick > 0.0;
                self.clock = (ticks, if sane { per_tick } else { return None });
            }
            Part::Cut => {
                let (ticks, ids) = long(content)?;
                let ids = ids.as_chunks().0.iter().map(|id| u64::from_le_bytes(*id));
                self.cut = Some((ticks, ids.collect()));
            }
        }
        Some(())
    }

    fn thread(&mut self, content: &'a [u8]) -> Option<(&mut ThreadSection<'a>, &'a [u8])> {
        let (thread, rest) = number(content)?;
        let thread = usize::try_from(thread).ok().filter(|thread| *thread < THREADS_MAX)?;
        // Threads are described one after the other.
        if thread == self.threads.len() {
            self.threads.push(ThreadSection::default());
        }
        Some((self.threads.get_mut(thread)?, rest))
    }

    fn wide(&mut self, content: &'a [u8]) -> Option<(&mut ThreadSection<'a>, &'a [u8])> {
        let (thread, rest) = self.thread(content)?;
        let (_, rest) = number(rest)?;
        Some((thread, rest))
    }

    fn trace(self, file_bytes: usize) -> Trace {
        let (ticks, per_tick) = self.clock;
        let (program, started_unix_ns, names) = (self.program.into(), self.started_unix_ns, self.names);
        let processes = self.process.into_iter().collect();
        let about = Trace { program, started_unix_ns, processes, ..Trace::default() };
        let names = Box::new(move |variable| names.get(&variable).map(|name| (*name).into()));
        let (first, in_flight) = self.cut.unzip();
        let scale = Scale::of(ticks, per_tick).from(first.unwrap_or(0));
        let mut events = EventIndex::new(scale, about, names);
        events.in_flight = in_flight;
        for noted in self.threads {
            let kind = TRACK_KINDS.get(noted.kind).copied().unwrap_or(TrackKind::Thread);
            let ThreadSection { name, texts, blocks, running, lost, .. } = noted;
            events.begin(Thread { name: name.into(), kind, lost, texts, running });
            blocks.into_iter().for_each(|block| events.words(block));
        }
        let mut budget = Budget::of(file_bytes);
        let (mut trace, is_whole) = events.finish().trace(Some(&mut budget));
        let damage = &mut trace.losses.damage;
        damage.push("the process ended before the trace was finished: its last moments are missing".into());
        damage.extend(self.damage.map(|at| format!("the unfinished file ends, or is damaged, at byte {at}")));
        damage.extend((!is_whole).then(|| budget.words(file_bytes)));
        trace
    }
}
