//! Runs commands: on a thread per stream, or on the thread that moves the virtual clock.

use std::sync::{Arc, Condvar};
use std::time::Duration;

use crate::command::{CommandId, Progress};
use crate::state::Session;

/// The time between two reads of a value in memory that a stream waits for.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// Starts the thread that works on a stream. It ends with the stream.
pub(crate) fn spawn(stream: usize, condvar: &Arc<Condvar>) {
    let condvar = Arc::clone(condvar);
    let work = move || {
        let mut session = Session::open();
        loop {
            let this = &session.streams[stream];
            if this.destroyed && this.queue.is_empty() {
                return;
            }
            let ready = if session.script.virtual_clock { None } else { session.ready(stream) };
            match ready {
                Some(command) => run(&mut session, command),
                None => {
                    let polls = !session.script.virtual_clock && session.waits_for_value(stream);
                    session.sleep_until(&condvar, polls.then_some(POLL_INTERVAL));
                }
            }
        }
    };
    std::thread::Builder::new().name("cuda simulator".into()).spawn(work).expect("a thread for a stream");
}

fn run(session: &mut Session, command: CommandId) {
    let (stream, kind) = (session.commands[&command].stream, session.commands[&command].kind);
    let latency = session.script.latency(stream, kind);
    if let Some(work) = session.begin(command) {
        session.unlocked(|| {
            let time = latency + work.nanoseconds();
            if time > 0 {
                std::thread::sleep(Duration::from_nanos(time));
            }
            work.perform();
        });
        session.finish(command);
    }
    session.changed();
}

/// Moves the virtual clock to the end of the next command, but not past `limit`. Whether there was one.
///
/// Of several that end at the same time the seed chooses: what no dependence orders may happen in any order.
pub(crate) fn step(session: &mut Session, limit: Option<u64>) -> bool {
    start_what_is_ready(session);
    let mut next: Vec<(u64, CommandId)> = session
        .commands
        .iter()
        .filter_map(|(id, command)| match command.progress {
            Progress::Until(time) => Some((time, *id)),
            _ => None,
        })
        .collect();
    next.sort_unstable();
    let Some(&(time, _)) = next.first() else {
        session.script.now = limit.unwrap_or(session.script.now).max(session.script.now);
        return false;
    };
    if limit.is_some_and(|limit| time > limit) {
        session.script.now = limit.unwrap_or(time);
        return false;
    }
    let equals = next.iter().take_while(|(other, _)| *other == time).count();
    let chosen = next[session.script.draw(equals as u64) as usize].1;
    session.script.now = session.script.now.max(time);
    if let Some(work) = session.begin(chosen) {
        session.unlocked(|| work.perform());
        session.finish(chosen);
    }
    session.changed();
    true
}

fn start_what_is_ready(session: &mut Session) {
    // A command that has begun may let others of its connection begin.
    while let Some(id) = session.busy.iter().find_map(|stream| session.ready(*stream)) {
        let (stream, kind) = (session.commands[&id].stream, session.commands[&id].kind);
        let latency = session.script.latency(stream, kind);
        let now = session.script.now;
        let command = session.commands.get_mut(&id).expect("it is ready");
        command.progress = Progress::Until(now + latency + command.work.nanoseconds());
    }
}
