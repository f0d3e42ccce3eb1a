//! Deaths at each step in each role, with each kind of tensor: the whole table in the long form, else one
//! pair at each step.

use std::sync::mpsc::{Sender, channel};

use estafette::{BodyResult, Produced};
use tests::foreign::{self, Deleted};

use super::*;

/// Part that the process that dies plays with the tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Role {
    Owner,
    Consumer,
    Between,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// In shared memory, and read there.
    Read,
    /// In shared memory, and lent for writing.
    Write,
    /// The result of an operation, which has no shape when it is sent.
    Undefined,
    /// In memory of another library, which is copied for the other process.
    Staged,
}

use Kind::{Read, Staged, Undefined, Write};
use Role::{Between, Consumer, Owner};

/// All pairs but one: what was lent for writing is not passed on.
const PAIRS: [(Role, Kind); 11] = [
    (Owner, Read),
    (Owner, Write),
    (Owner, Undefined),
    (Owner, Staged),
    (Consumer, Read),
    (Consumer, Write),
    (Consumer, Undefined),
    (Consumer, Staged),
    (Between, Read),
    (Between, Undefined),
    (Between, Staged),
];

/// The reason that a process in this role does not come to the step, if it does not. The test checks both,
/// unless it [may come there](is_by_chance).
fn never(role: Role, kind: Kind, step: &str) -> Option<&'static str> {
    let is_of_owner = step.starts_with("send") || step == "segment";
    let is_of_consumer =
        step.starts_with("receive") || step.starts_with("answer") || step == "segment, mapped";
    match role {
        _ if step == "pass on" => Some("the survivor owns what is passed on"),
        Owner if ["adopt", "redeem", "released", "segment, mapped"].contains(&step) => {
            Some("it is shown nothing")
        }
        Consumer if ["ticket", "later", "granted", "share"].contains(&step) => Some("it shows nothing"),
        Consumer | Between if step == "release" => Some("it shows no segment"),
        Owner if step == "share" && kind == Write => Some("what is lent is not for several processes"),
        Owner if ["ticket", "later"].contains(&step) && kind != Undefined => {
            Some("what is shown as it is sent is not asked for")
        }
        Between if step == "share" => Some("the owner shows its memory itself"),
        Between if step == "granted" && kind != Undefined => Some("the owner has the lease"),
        _ if ["staged", "copied"].contains(&step) && (role, kind) != (Owner, Staged) => {
            Some("there is nothing to copy")
        }
        _ if ["release", "released"].contains(&step) && kind != Write => Some("the segment stays"),
        _ if step == "redeem" && kind != Undefined => Some("what is shown as it is sent is not asked for"),
        // A tensor without a shape is asked for, as by a ticket.
        Owner if is_of_consumer && kind != Undefined => Some("what is shown as it is sent is not asked for"),
        Consumer if is_of_owner && kind != Undefined => Some("what is shown as it is sent is not asked for"),
        Consumer | Between if step == "segment" => Some("the owner shows its memory itself"),
        Consumer if step == "settle, text" && kind != Write => Some("only a use that writes can fail"),
        Between if step == "settle, text" && kind != Undefined => Some("the owner says itself why it failed"),
        _ => None,
    }
}

/// True where it is a matter of time if the process comes to the step.
fn is_by_chance(role: Role, step: &str) -> bool {
    step.starts_with("serve") || role == Owner && step == "later"
}

/// Number of tensors that cross in each case, and the last one fails.
const TENSORS: usize = 2;
const LENGTH: usize = 300;
const SENT: f32 = 1.0;
/// By the process that was lent the tensor.
const WRITTEN: f32 = 2.0;
const ANEW: f32 = 3.0;

/// Most passes of a process by a step before it is killed there.
const TIMES: u32 = 3;
/// The most that anything waits once the other process has died, in most of many deaths: the machine may be
/// busy with others.
const ALLOWED: Duration = Duration::from_secs(1);

fn set(
    engine: &Engine,
    tensor: &Tensor,
    value: f32,
    before: impl FnOnce() -> BodyResult<()> + Send + 'static,
) {
    let set = engine.op("set").writes([tensor]).run(move |[], [mut tensor]| {
        before()?;
        tensor.as_mut_slice::<f32>()?.fill(value);
        Ok(())
    });
    drop(set.expect("submitted"));
}

/// A tensor whose value comes, or fails to, when the other end of the channel says so.
fn late(engine: &Engine, kind: Kind, deleted: &Deleted) -> (Tensor, Sender<bool>) {
    let (say, said) = channel::<bool>();
    let may_come = move || if said.recv()? { Ok(()) } else { Err("on purpose".into()) };
    let shape = &[LENGTH as i64];
    let zeros = || engine.zeros(shape, DType::F32).expect("memory");
    let tensor = match kind {
        Undefined => {
            let result = zeros();
            set(engine, &result, SENT, || Ok(()));
            result.wait().expect("it is written");
            let late = engine.op("late").produce(move |[]| {
                may_come()?;
                Ok(Produced::from(result))
            });
            return (late.expect("submitted"), say);
        }
        Read => zeros(),
        Write => engine.empty(shape, DType::F32, Memory::SharedForWriting).expect("memory"),
        // SAFETY: the tensor describes its memory truly, which nothing else uses.
        Staged => unsafe { engine.import(foreign::tensor(&[0.0; LENGTH], deleted)) }.expect("a tensor"),
    };
    set(engine, &tensor, SENT, may_come);
    (tensor, say)
}

fn send(link: &Link, kind: Kind, tensor: &Tensor) -> Result<(), Error> {
    match kind {
        Write => wait(link.lend(tensor)),
        _ => wait(link.send(tensor, &ShareOptions::default())),
    }
}

/// True if each element is `value`, once that is known; and that a failure is one on purpose, or the end of
/// `process`.
fn is_all(engine: &Engine, tensor: &Tensor, value: f32, process: u32) -> bool {
    let seen = engine.zeros(&[1], DType::F32).expect("memory");
    let looked = engine.op("look").reads([tensor]).writes([&seen]).run(move |[tensor], [_seen]| {
        assert!(tensor.as_slice::<f32>()?.iter().all(|it| *it == value), "another version, or half of one");
        Ok(())
    });
    drop(looked.expect("submitted"));
    is_whole(&seen, process)
}

fn is_whole(tensor: &Tensor, process: u32) -> bool {
    let outcome = tensor.wait_timeout(Duration::from_secs(60));
    if let Err(error) = &outcome {
        let text = format!("{error} {error:?}");
        assert!(text.contains("on purpose") || is_its_end(&text, process), "{text}");
    }
    outcome.is_ok()
}

/// Uses what the other process owns: reads it, or writes it.
fn consume(engine: &Engine, link: &Link, kind: Kind) {
    for _ in 0..TENSORS {
        let x = match wait(link.receive()) {
            Ok(x) => x.expect("it closes the link when all are used"),
            Err(error) => return assert!(is_its_end(&error.to_string(), link.process()), "{error}"),
        };
        if kind != Write {
            is_all(engine, &x, SENT, link.process());
            continue;
        }
        let written = engine.op("write").updates([&x]).run(|[], [], [mut x]| {
            x.as_mut_slice::<f32>()?.fill(WRITTEN);
            Ok(())
        });
        drop(written.expect("submitted"));
        is_whole(&x, link.process());
    }
}

/// Sends a tensor, and one that fails. Each can be written anew when the other process is done with it, or
/// dead. `takes_back`: the other one passes it on to this process.
fn own(engine: &Engine, link: &Link, kind: Kind, takes_back: bool) {
    let deleted = Deleted::default();
    let process = link.process();
    for number in 1..=TENSORS {
        let fails = number == TENSORS;
        let (x, say) = late(engine, kind, &deleted);
        let sent = send(link, kind, &x);
        let sent = sent.map_err(|error| assert!(is_its_end(&error.to_string(), process), "{error}"));
        let back = (takes_back && sent.is_ok()).then(|| wait(link.receive()));
        say.send(!fails).expect("it waits for that");
        match back {
            Some(Ok(back)) => drop(is_all(engine, &back.expect("it is passed on"), SENT, process)),
            Some(Err(error)) => assert!(is_its_end(&error.to_string(), process), "{error}"),
            None => {}
        }
        let value = if kind == Write && sent.is_ok() { WRITTEN } else { SENT };
        let is_there = is_all(engine, &x, value, process);
        assert!(if kind == Write { !(fails && is_there) } else { fails != is_there }, "{fails}");
        if kind != Undefined || !fails {
            set(engine, &x, ANEW, || Ok(()));
            assert!(is_all(engine, &x, ANEW, process), "its leases have ended");
        }
    }
    deleted.settle_at(if kind == Staged { TENSORS } else { 0 });
}

/// The part of the process that dies, which ends well if it does not.
pub(super) fn play(engine: &Engine, link: Link, task: &str) {
    let (role, kind) = PAIRS.into_iter().find(|pair| named(*pair) == task).expect("a pair");
    match role {
        Owner => own(engine, &link, kind, false),
        Consumer => consume(engine, &link, kind),
        Between => {
            for _ in 0..TENSORS {
                let x = wait(link.receive()).expect("the other process lives").expect("a tensor");
                wait(link.send(&x, &ShareOptions::default())).expect("the other process lives");
            }
        }
    }
    let open = counts().boards;
    drop(link);
    until("the link is over", || counts().boards + 2 <= open);
    std::process::exit(0);
}

fn named((role, kind): (Role, Kind)) -> String {
    format!("{role:?} {kind:?}")
}

/// The time that this process waited after the death of the other one at that step; `None` if that has not
/// died, and has come to its end.
fn dies(
    survivor: &Survivor,
    name: &str,
    step: &str,
    role: Role,
    kind: Kind,
    connects: bool,
) -> Option<Duration> {
    let what = format!("{step}, {role:?}, {kind:?}, it connects: {connects}");
    let said = (!connects).then(|| Said::new("roles"));
    let (mut child, link) = survivor.meet(name, Some(step), said.as_ref(), &named((role, kind)));
    let process = child.id();
    let has_been_seen = child.try_wait().expect("a child").is_some();
    let (ended, over) = std::thread::scope(|scope| {
        let ended = scope.spawn(move || {
            until("it ends", || has_been_seen || has_ended(process));
            Instant::now()
        });
        if let Some(link) = link {
            match role {
                Owner => consume(&survivor.engine, &link, kind),
                Consumer => own(&survivor.engine, &link, kind, false),
                Between => own(&survivor.engine, &link, kind, true),
            }
            match wait(link.receive()) {
                Ok(more) => assert!(more.is_none(), "{what}: it closes the link first"),
                Err(error) => assert!(is_its_end(&error.to_string(), process), "{what}: {error}"),
            }
        }
        let over = Instant::now();
        (ended.join().expect("it does not panic"), over)
    });
    let status = child.wait().expect("a child");
    survivor.assert_nothing_left(&what);
    assert!(status.success() || status.signal() == Some(libc::SIGKILL), "{what}: {status}");
    (!status.success()).then(|| over.saturating_duration_since(ended))
}

#[test]
fn a_death_at_any_step_in_any_role_harms_no_other_process() {
    if is_the_other() {
        return;
    }
    let name = "roles::a_death_at_any_step_in_any_role_harms_no_other_process";
    let _alone = alone();
    let survivor = Survivor::new();
    let mut waits = Vec::new();
    for (number, step) in steps::all().enumerate() {
        let possible = || PAIRS.into_iter().filter(|(role, kind)| never(*role, *kind, step).is_none());
        let pairs =
            if is_long() { PAIRS.to_vec() } else { possible().cycle().skip(number).take(1).collect() };
        for (place, (role, kind)) in pairs.into_iter().enumerate() {
            let connects = (number + place) % 2 == 0;
            let dies = |times| dies(&survivor, name, &format!("{step}:{times}"), role, kind, connects);
            // The first message says where to ask for tensors, and a process that asks makes a second link.
            let deaths = waits.len();
            waits.extend((0..TIMES).map_while(dies));
            let (times, why) = (waits.len() - deaths, never(role, kind, step));
            let is_expected = is_by_chance(role, step) || (times == 0) == why.is_some();
            assert!(is_expected, "{step}, {role:?}, {kind:?}: {times} deaths, and {why:?}");
        }
    }
    waits.sort_unstable();
    let [median, late] = [50, 90].map(|percent| waits[(waits.len() - 1) * percent / 100]);
    println!(
        "of {} deaths half have ended all waits within {median:?}, nine tenths within {late:?}",
        waits.len()
    );
    assert!(late < ALLOWED, "nine tenths of {} deaths have ended all waits within {late:?}", waits.len());
}
