//! Models of what crosses between boards: `RUSTFLAGS="--cfg estafette_loom" cargo test -p
//! estafette-links --profile model --lib models::`.
//!
//! A thread stands for a process. Boards are small: two indices, a ring of four words, texts of eight bytes.

use std::sync::Arc;

use estafette_devices::{DeviceError, DeviceErrorKind, Outcome};
use estafette_sync::cell::UnsafeCell;
use estafette_sync::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use estafette_sync::sync::{Condvar, Mutex};
use estafette_sync::thread;
use loom::model::Builder;

use crate::board::{Kind, OwnBoard, PeerBoard, SETTLED, SlotId, WORDS};
use crate::link::after_fate;
use crate::notify::{Listener, PeerNotifier, Wakeup};
use crate::ring::{Message, Reader, Writer};
use crate::slots::{Answer, Indices};
use crate::watched::Watched;

type Shared = Arc<Vec<AtomicU64>>;

/// A process: its own board, and the other's.
struct Process {
    own: OwnBoard<Shared>,
    peer: PeerBoard<Shared>,
}

fn processes() -> [Process; 2] {
    let [a, b] = [(); 2].map(|()| Arc::new((0..WORDS).map(|_| AtomicU64::new(0)).collect::<Vec<_>>()));
    let process = |own: &Shared, peer: &Shared| Process {
        own: OwnBoard::new(Arc::clone(own)),
        peer: PeerBoard(Arc::clone(peer)),
    };
    [process(&a, &b), process(&b, &a)]
}

/// Memory of the owner. Loom reports a use that nothing orders.
struct Segment(UnsafeCell<u64>);

// SAFETY: loom checks the accesses.
unsafe impl Sync for Segment {}

impl Segment {
    fn write(&self, value: u64) {
        // SAFETY: loom checks this.
        self.0.with_mut(|content| unsafe { *content = value });
    }

    fn read(&self) -> u64 {
        // SAFETY: loom checks this.
        self.0.with(|content| unsafe { *content })
    }
}

/// An event count: wake-ups by the socket, or by the word that a thread waits for that serves.
#[derive(Default)]
struct EventCount {
    count: Mutex<u32>,
    changed: Condvar,
}

impl EventCount {
    fn notify(&self) {
        *self.count.lock() += 1;
        self.changed.notify_all();
    }

    fn count(&self) -> u32 {
        *self.count.lock()
    }

    /// Until the count is another one than `before`.
    fn sleep(&self, before: u32) {
        let mut count = self.count.lock();
        while *count == before {
            count = self.changed.wait(count);
        }
    }
}

/// Two changes, and for each the wake-up that the other process wants.
fn notify_twice(writer: &Process, [socket, word]: [&EventCount; 2]) {
    let notifier = PeerNotifier::default();
    for kind in [Kind::Ready, Kind::Used] {
        writer.own.settle(slot(kind, 1), &Ok(()));
        match notifier.wakeup(&writer.peer) {
            Some(Wakeup::Socket) => socket.notify(),
            Some(Wakeup::Futex) => word.notify(),
            None => {}
        }
    }
}

fn has_all(process: &Process) -> bool {
    outcome(process, slot(Kind::Used, 1)).is_some()
}

fn slot(kind: Kind, generation: u32) -> SlotId {
    SlotId { kind, index: 0, generation }
}

fn outcome(process: &Process, slot: SlotId) -> Option<Outcome> {
    process.peer.outcome(slot, 1)
}

fn wait_for(process: &Process, slot: SlotId) -> Outcome {
    loop {
        if let Some(outcome) = outcome(process, slot) {
            return outcome;
        }
        thread::yield_now();
    }
}

fn failed(text: &str) -> Outcome {
    Err(DeviceError::new(DeviceErrorKind::Fault, text))
}

/// Explores a model with at most three switches away from a thread that could go on.
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Lends memory, and writes there again after the answer, or without it.
fn lend(waits_for_the_answer: bool) {
    loom::model(move || {
        let [owner, user] = processes();
        let memory = Arc::new(Segment(UnsafeCell::new(0)));
        let lent = Arc::clone(&memory);
        let using = thread::spawn(move || {
            if outcome(&user, slot(Kind::Ready, 1)).is_some() {
                assert_eq!(lent.read(), 7);
                user.own.settle(slot(Kind::Used, 1), &Ok(()));
            }
        });
        memory.write(7);
        owner.own.settle(slot(Kind::Ready, 1), &Ok(()));
        if !waits_for_the_answer || outcome(&owner, slot(Kind::Used, 1)).is_some() {
            memory.write(8);
        }
        using.join().expect("it does not panic");
    });
}

#[test]
fn memory_is_read_between_the_promise_and_the_answer() {
    lend(true);
}

/// Without the answer the owner writes while the peer reads.
#[test]
#[should_panic(expected = "Causality violation")]
fn memory_that_is_written_before_the_answer_is_found() {
    lend(false);
}

/// The text of a slot is written anew only after the peer has read it.
#[test]
fn a_failure_has_its_own_text() {
    explore(|| {
        let [owner, user] = processes();
        let using = thread::spawn(move || {
            for (generation, text) in [(1, "first"), (2, "second")] {
                let error = wait_for(&user, slot(Kind::Ready, generation)).expect_err("it failed");
                assert_eq!(error.message(), format!("{text} (in process 1)"));
                user.own.settle(slot(Kind::Used, generation), &Ok(()));
            }
        });
        owner.own.settle(slot(Kind::Ready, 1), &failed("first"));
        wait_for(&owner, slot(Kind::Used, 1)).expect("used");
        owner.own.settle(slot(Kind::Ready, 2), &failed("second"));
        using.join().expect("it does not panic");
    });
}

fn next(reader: &mut Reader, process: &Process) -> Message {
    loop {
        if let Some((message, _)) = reader.read(&process.own, &process.peer).expect("sense") {
            return message;
        }
        thread::yield_now();
    }
}

/// A message of two words, then another that needs the places of the first one.
#[test]
fn messages_are_whole_and_in_order() {
    explore(|| {
        let [sender, receiver] = processes();
        let receiving = thread::spawn(move || {
            let mut reader = Reader::default();
            for round in 1..=3_u8 {
                let message = next(&mut reader, &receiver);
                assert_eq!((message.generation, message.note), (u32::from(round), vec![round; 8]));
            }
        });
        let mut writer = Writer::default();
        for round in 1..=3_u8 {
            while !writer.has_room(8, &sender.peer).expect("sense") {
                thread::yield_now();
            }
            writer.write(0, u32::from(round), &[round; 8], &sender.own);
        }
        receiving.join().expect("it does not panic");
    });
}

/// The answer of the other process.
struct Awaited(Arc<Process>, SlotId);

impl Answer for Awaited {
    fn outcome(&self) -> Option<Outcome> {
        outcome(&self.0, self.1)
    }
}

/// An answer that is not waited for.
struct Given;

impl Answer for Given {
    fn outcome(&self) -> Option<Outcome> {
        Some(Ok(()))
    }
}

/// Sends twice with one index, which is free once both of its slots are settled. The second promise fails.
fn uses_an_index_twice<A: Answer + 'static>(answer: fn(&Arc<Process>, SlotId) -> A) {
    explore(move || {
        let [sender, receiver] = processes();
        let memory = Arc::new(Segment(UnsafeCell::new(0)));
        let lent = Arc::clone(&memory);
        let receiving = thread::spawn(move || {
            let mut reader = Reader::default();
            for round in 1..=2 {
                let Message { index, generation, .. } = next(&mut reader, &receiver);
                assert_eq!((index, generation), (0, round));
                let settled = wait_for(&receiver, slot(Kind::Ready, generation));
                assert_eq!((settled.is_ok(), lent.read()), (round == 1, u64::from(round)));
                receiver.own.settle(slot(Kind::Used, generation), &Ok(()));
            }
            assert!(
                outcome(&receiver, slot(Kind::Ready, 1)).is_none(),
                "a later use is none of an earlier one"
            );
        });
        let sender = Arc::new(sender);
        let (mut writer, mut indices) = (Writer::default(), Indices::default());
        for round in 1..=2 {
            let slot = loop {
                // One index is kept, so that this one is used again.
                if let Some(slot) = indices.take(&sender.own, || sender.peer.load(SETTLED), 1) {
                    break slot;
                }
                thread::yield_now();
            };
            sender.own.begin(slot, None);
            indices.note_sent(slot, answer(&sender, SlotId { kind: Kind::Used, ..slot }));
            writer.write(slot.index, slot.generation, &[], &sender.own);
            memory.write(round);
            let settled = if round == 1 { Ok(()) } else { failed("second") };
            sender.own.settle(slot, &settled);
        }
        receiving.join().expect("it does not panic");
    });
}

#[test]
fn an_index_is_used_again_once_both_of_its_slots_are_settled() {
    uses_an_index_twice(|sender, slot| Awaited(Arc::clone(sender), slot));
}

/// The sender writes the memory anew while the receiver reads it.
#[test]
#[should_panic(expected = "Causality violation")]
fn an_index_that_is_used_again_before_the_answer_is_found() {
    uses_an_index_twice(|_, _| Given);
}

/// Notifies twice beside a process that listens until it has seen both. A lost wake-up is a deadlock, which
/// loom reports.
fn notifies_beside(listen: fn(&Listener, &Process)) {
    explore(move || {
        let [writer, sleeper] = processes();
        let woken = Arc::new(EventCount::default());
        let socket = Arc::clone(&woken);
        let sleeping = thread::spawn(move || {
            let listener = Listener::default();
            loop {
                let before = socket.count();
                listener.pause(&sleeper.own);
                if has_all(&sleeper) {
                    break;
                }
                listen(&listener, &sleeper);
                if has_all(&sleeper) {
                    break;
                }
                socket.sleep(before);
            }
        });
        notify_twice(&writer, [&woken, &EventCount::default()]);
        sleeping.join().expect("it does not panic");
    });
}

#[test]
fn a_process_that_goes_to_sleep_sees_the_change_or_is_woken() {
    notifies_beside(|listener, sleeper| listener.listen(&sleeper.own));
}

/// Without the fence behind it, *listening* is stored too late.
#[test]
#[should_panic(expected = "deadlock")]
fn a_process_that_listens_without_a_fence_is_lost() {
    notifies_beside(|_, sleeper| sleeper.own.store(crate::board::LISTENING, 1));
}

/// A process polls as many events as the count says, while the other settles the newest first. A lost
/// wake-up, or an event that is missed, is a deadlock.
#[test]
fn what_settles_is_polled_once_it_was_counted() {
    explore(|| {
        let [writer, sleeper] = processes();
        let (sleeper, woken) = (Arc::new(sleeper), Arc::new(EventCount::default()));
        let [oldest, newest] = [0, 1].map(|index| SlotId { kind: Kind::Used, index, generation: 1 });
        let socket = Arc::clone(&woken);
        let sleeping = thread::spawn(move || {
            let (listener, mut watched) = (Listener::default(), Watched::default());
            for slot in [oldest, newest] {
                watched.push(Awaited(Arc::clone(&sleeper), slot));
            }
            let mut poll = || {
                watched.take_settled(sleeper.peer.load(SETTLED), false);
                watched.is_empty()
            };
            loop {
                let before = socket.count();
                listener.pause(&sleeper.own);
                if poll() {
                    break;
                }
                listener.listen(&sleeper.own);
                if poll() {
                    break;
                }
                socket.sleep(before);
            }
        });
        let notifier = PeerNotifier::default();
        for slot in [newest, oldest] {
            writer.own.settle(slot, &Ok(()));
            if notifier.wakeup(&writer.peer).is_some() {
                woken.notify();
            }
        }
        sleeping.join().expect("it does not panic");
    });
}

/// A thread begins to watch a slot while the peer settles it and a later one, and another thread polls. The
/// oldest event stays pending.
#[test]
fn what_settles_is_polled_also_beside_an_event_that_is_new() {
    explore(|| {
        let [writer, user] = processes();
        let user = Arc::new(user);
        let slots = [(Kind::Ready, 0), (Kind::Used, 0), (Kind::Used, 1)];
        let [held, watched, new] = slots.map(|(kind, index)| SlotId { kind, index, generation: 1 });
        let event = |slot| Awaited(Arc::clone(&user), slot);
        let all = Arc::new(Mutex::new(Watched::default()));
        all.lock().push(event(held));
        all.lock().push(event(watched));
        let poll = |user: &Process, all: &Mutex<Watched<Awaited>>| {
            let mut all = all.lock();
            all.take_settled(user.peer.load(SETTLED), false);
        };
        let writing = thread::spawn(move || {
            [new, watched].into_iter().for_each(|slot| writer.own.settle(slot, &Ok(())));
        });
        let (own, also) = (Arc::clone(&user), Arc::clone(&all));
        let polling = thread::spawn(move || {
            poll(&own, &also);
            poll(&own, &also);
        });
        if outcome(&user, new).is_none() {
            all.lock().push(event(new));
            if outcome(&user, new).is_some() {
                drop(all.lock().remove(|its| its.1 == new));
            }
        }
        writing.join().expect("it does not panic");
        polling.join().expect("it does not panic");
        poll(&user, &all);
        let left = all.lock().take_settled(0, true).len();
        assert_eq!(left, 0, "an event that has settled is left");
    });
}

/// A thread serves until it is woken once. What comes then wakes the link thread, for which the thread leaves
/// the rest.
fn serves_once(leave: fn(&Listener)) {
    explore(move || {
        let [writer, sleeper] = processes();
        let shared = Arc::new((sleeper, Listener::default(), EventCount::default(), EventCount::default()));
        let counts = Arc::clone(&shared);
        let link_thread = Arc::clone(&shared);
        let (sleeper, listener, socket, word) = &*shared;
        let dispatch = |(sleeper, listener, ..): &(Process, Listener, EventCount, EventCount)| {
            listener.pause(&sleeper.own);
            if !has_all(sleeper) {
                listener.listen(&sleeper.own);
            }
            has_all(sleeper)
        };
        let waiting = thread::spawn(move || {
            let mut seen = 0;
            while !has_all(&link_thread.0) {
                link_thread.2.sleep(seen);
                seen = link_thread.2.count();
                dispatch(&link_thread);
            }
        });
        let writing = thread::spawn(move || notify_twice(&writer, [&counts.2, &counts.3]));
        assert!(listener.serve() && !listener.serve(), "one at a time");
        let before = word.count();
        listener.listen(&sleeper.own);
        if !has_all(sleeper) {
            word.sleep(before);
        }
        leave(listener);
        if dispatch(&shared) {
            // As the thread that was waited for.
            socket.notify();
        }
        writing.join().expect("it does not panic");
        waiting.join().expect("it does not panic");
    });
}

#[test]
fn a_thread_that_serves_no_more_leaves_nothing_behind() {
    serves_once(Listener::stop_serving);
}

/// The peer goes on waking by the word, for which no thread waits.
#[test]
#[should_panic(expected = "deadlock")]
fn a_thread_that_leaves_without_a_word_is_missed() {
    serves_once(|_| {});
}

/// A thread that serves first spins for a while without wake-ups. Meanwhile another thread begins to wait,
/// and has the process listen.
fn serves_beside_another(listen: fn(&Listener, &Process)) {
    explore(move || {
        let [writer, sleeper] = processes();
        let word = Arc::new(EventCount::default());
        let counts = Arc::clone(&word);
        let writing = thread::spawn(move || notify_twice(&writer, [&EventCount::default(), &counts]));
        let listener = Listener::default();
        assert!(listener.serve(), "one at a time");
        listener.pause(&sleeper.own);
        if !has_all(&sleeper) {
            listener.listen(&sleeper.own);
            while !has_all(&sleeper) {
                let before = word.count();
                listen(&listener, &sleeper);
                if !has_all(&sleeper) {
                    word.sleep(before);
                }
            }
        }
        writing.join().expect("it does not panic");
    });
}

#[test]
fn a_thread_that_serves_is_woken_although_another_one_has_listened() {
    serves_beside_another(|listener, sleeper| {
        listener.pause(&sleeper.own);
        listener.listen(&sleeper.own);
    });
}

/// The peer has sent a wake-up for this number, and sends no more.
#[test]
#[should_panic(expected = "deadlock")]
fn a_thread_that_serves_under_a_number_of_an_earlier_wake_up_is_missed() {
    serves_beside_another(|listener, sleeper| listener.listen(&sleeper.own));
}

/// A process settles a promise and dies. The kernel marks the liveness lock, and a thread of the peer notes
/// that, while another one reads the slot.
fn settles_and_dies(read: fn(&AtomicU32, &Process) -> (u32, Option<Outcome>)) {
    explore(move || {
        let [dying, user] = processes();
        let [lock, fate] = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
        let marked = Arc::clone(&lock);
        let dying = thread::spawn(move || {
            dying.own.settle(slot(Kind::Ready, 1), &Ok(()));
            marked.store(1, Ordering::Release);
        });
        let noted = Arc::clone(&fate);
        let watching = thread::spawn(move || {
            if lock.load(Ordering::Relaxed) != 0 {
                fence(Ordering::Acquire);
                noted.fetch_or(1, Ordering::AcqRel);
            }
        });
        let (fate, settled) = read(&fate, &user);
        assert!(fate == 0 || settled.is_some(), "what was done has failed");
        dying.join().expect("it does not panic");
        watching.join().expect("it does not panic");
    });
}

#[test]
fn what_was_done_before_a_death_stays_done() {
    settles_and_dies(|fate, user| after_fate(fate, || outcome(user, slot(Kind::Ready, 1))));
}

/// The promise is kept after the slot is read, and before the death is known.
#[test]
#[should_panic(expected = "what was done has failed")]
fn a_slot_that_is_read_before_the_death_is_known_is_read_too_early() {
    settles_and_dies(|fate, user| {
        let settled = outcome(user, slot(Kind::Ready, 1));
        (fate.load(Ordering::Acquire), settled)
    });
}
