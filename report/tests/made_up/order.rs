//! The order that made-up operations keep on their variables, and what they wait for meanwhile.

use std::collections::HashMap;

use estafette_report::model::*;

/// Who used a variable.
#[derive(Debug, Clone, Copy)]
struct User {
    id: u64,
    lease: bool,
    began: u64,
    ended: u64,
}

/// The last write of a variable, and the reads since.
#[derive(Debug, Default)]
struct Line {
    writer: Option<User>,
    readers: Vec<User>,
}

#[derive(Debug, Default)]
pub struct Order {
    lines: HashMap<u64, Line>,
}

impl Order {
    /// Adds an operation: its edges, its waits, its place in the lines. Gives the moment at which it may go.
    pub fn join(&mut self, recording: &mut Recording, id: u64, now: u64, accesses: &[Access]) -> u64 {
        let mut granted = now;
        let first_wait = recording.stalls.len();
        let mut longest = 0;
        for (index, access) in accesses.iter().enumerate() {
            let line = self.lines.entry(access.variable).or_default();
            let reads = access.mode == Mode::Read;
            let mut before: Vec<(User, Hazard)> = Vec::new();
            if reads || line.readers.is_empty() {
                let hazard = if reads { Hazard::Raw } else { Hazard::Waw };
                before.extend(line.writer.map(|writer| (writer, hazard)));
            } else {
                before.extend(line.readers.iter().map(|&reader| (reader, Hazard::War)));
            }
            for &(user, hazard) in &before {
                recording.edges.push(Edge { from: user.id, to: id, variable: access.variable, hazard });
            }
            // Whoever ends last is to blame.
            if let Some(&(user, hazard)) = before.iter().max_by_key(|(user, _)| user.ended) {
                wait(recording, id, index, now, user, hazard);
                if user.ended > granted {
                    granted = user.ended;
                    longest = index;
                }
            }
            let user = User { id, lease: false, began: 0, ended: 0 };
            if reads {
                line.readers.push(user);
            } else {
                *line = Line { writer: Some(user), readers: Vec::new() };
            }
        }
        for stall in &mut recording.stalls[first_wait..] {
            stall.decisive = stall.access == longest;
        }
        granted
    }

    /// An operation that joined has been simulated to its end.
    pub fn ended(&mut self, id: u64, began: u64, ended: u64) {
        let users = self.lines.values_mut().flat_map(|line| line.writer.iter_mut().chain(&mut line.readers));
        for user in users.filter(|user| user.id == id) {
            (user.began, user.ended) = (began, ended);
        }
    }

    /// A read lease.
    pub fn lease(&mut self, id: u64, variable: u64, opened: u64, closed: u64) {
        let line = self.lines.entry(variable).or_default();
        line.readers.push(User { id, lease: true, began: opened, ended: closed });
    }
}

fn wait(recording: &mut Recording, waiter: u64, access: usize, since: u64, user: User, hazard: Hazard) {
    let mut stall = |from: u64, to: u64, cause, culprit| {
        if from < to {
            let hazard = Some(hazard);
            recording.stalls.push(Stall {
                waiter,
                access,
                from,
                to,
                cause,
                hazard,
                culprit,
                decisive: false,
            });
        }
    };
    let begins = user.began.max(since);
    if user.lease {
        stall(since, begins, Cause::Queued, Culprit::Lease(user.id));
        stall(begins, user.ended, Cause::Leased, Culprit::Lease(user.id));
    } else {
        stall(since, begins, Cause::Queued, Culprit::Operation(user.id));
        stall(begins, user.ended, Cause::Computing, Culprit::Operation(user.id));
    }
}
