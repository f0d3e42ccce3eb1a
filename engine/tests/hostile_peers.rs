//! Processes that send anything for a tensor, and ask for anything by a ticket. Suite `links-asan` runs this
//! under AddressSanitizer.

#![cfg(not(any(estafette_portable, estafette_loom, estafette_shuttle)))]

#[path = "../../links/tests/support/random.rs"]
mod random;
#[path = "../../links/tests/support/mod.rs"]
mod support;

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::time::Duration;

use estafette::bindings;
use estafette::devices::{DeviceError, DeviceErrorKind, Fence, host};
use estafette::exchange::DLTensor;
use estafette::remote::{Address, Door, ShareOptions, Ticket};
use estafette::{DType, Engine, Tensor};
use estafette_links::{Link, Received, Segment};

use random::Random;
use support::{Peer, role, until, wait};

/// Messages of a hostile process.
const MESSAGES: usize = 3_000;
/// Value of all bytes of its memory.
const FILLED: u8 = 0x5A;
/// Bytes of a segment: no multiple of a page.
const BYTES: usize = 5_000;
/// Larger tensors are read at their ends only.
const READ_MAX: usize = 4_096;

impl Random {
    /// A number that is often near to sense.
    fn number(&mut self) -> i64 {
        const ENDS: [i64; 8] =
            [-1, i64::MIN, i64::MAX, 1 << 62, BYTES as i64, BYTES as i64 - 1, 1 << 32, i64::MIN + 1];
        match self.below(16) {
            0..9 => self.below(40) as i64,
            9..12 => self.below(BYTES + 8) as i64,
            12 => -(self.below(100) as i64),
            13 => self.next().cast_signed(),
            _ => ENDS[self.below(8)],
        }
    }

    /// A message for a tensor: its kind, and what a tensor is described by: number of a segment, type, flags,
    /// dimensions, place, lanes, key, share, shape and strides. Most are sound but for one thing.
    fn description(&mut self) -> Vec<u8> {
        let ndim = [1, 1, 2, 3, 0, self.below(70)][self.below(6)];
        let sound = self.below(4) > 0;
        // Tickets, words that a tensor comes later, and kinds that there are not. A door would be no message
        // for a tensor.
        let kind = [1, 2, 4, 255].get(self.below(40)).copied().unwrap_or(0);
        let mut bytes = [&[kind][..], &(self.below(3) as u32).to_le_bytes()].concat();
        let bits = [8, 8, 16, 32, 64, 1, 4, 128][self.below(8)];
        let code = self.below(if sound { 3 } else { 20 }) as u8;
        bytes.extend([code, bits, [1, 2, 3, 4].get(self.below(40)).copied().unwrap_or(0), ndim as u8]);
        let lanes = if sound { 1 } else { self.number() };
        let first = if sound { 8 * self.below(100) as i64 } else { self.number() };
        let dimension = |random: &mut Self| if sound { random.below(12) as i64 } else { random.number() };
        let words = [first, lanes, self.number(), self.number()].into_iter().map(i64::to_le_bytes);
        bytes.extend(words.flatten());
        for _ in 0..2 * ndim {
            bytes.extend(dimension(self).to_le_bytes());
        }
        match self.below(12) {
            0 => bytes.truncate(self.below(bytes.len() + 1)),
            1 => bytes.extend((0..self.below(9)).map(|_| 0)),
            2 => {
                let at = self.below(bytes.len());
                bytes[at] = self.next() as u8;
            }
            _ => {}
        }
        bytes.truncate(1_000);
        bytes
    }

    /// Kept, broken, or given up when the hostile process ends.
    fn promise(&mut self, open: &mut Vec<host::Completer>) -> Fence {
        let (completer, fence) = host::promise("hostile");
        match self.below(8) {
            0 => completer.fail(DeviceError::new(DeviceErrorKind::Other, "x".repeat(self.below(3000)))),
            1 => open.push(completer),
            _ => completer.complete(),
        }
        fence
    }
}

/// Two segments, filled, that the process at the other end may read.
fn show(link: &Link) -> [Segment; 2] {
    [BYTES, 3 * BYTES].map(|bytes| {
        let segment = Segment::new(bytes).expect("memory");
        // SAFETY: the segment's own memory.
        unsafe { segment.start().as_ptr().write_bytes(FILLED, bytes) };
        link.show(&segment).expect("shown");
        segment
    })
}

/// Reads what a tensor says is there: everything, or where there is much, both ends. Returns how many bytes.
fn read(tensor: &Tensor) -> usize {
    let mut lent = MaybeUninit::<DLTensor>::uninit();
    // SAFETY: a place for the struct; the tensor outlives it, and its owner writes no more.
    let lent = unsafe {
        bindings::tensor::lend(tensor, NonNull::new(lent.as_mut_ptr()).expect("a place"))
            .expect("it is defined");
        lent.assume_init()
    };
    let ndim = usize::try_from(lent.ndim).expect("not negative");
    let numbers = |first: *mut i64| match ndim {
        0 => Vec::new(),
        // SAFETY: as many as there are dimensions.
        _ => unsafe { std::slice::from_raw_parts(first, ndim) }.to_vec(),
    };
    let (shape, strides) = (numbers(lent.shape), numbers(lent.strides));
    let element = (usize::from(lent.dtype.bits) * usize::from(lent.dtype.lanes)).div_ceil(8);
    let count: i64 = shape.iter().product();
    let look = |index: &[i64]| {
        let offset: i64 = index.iter().zip(&strides).map(|(at, stride)| at * stride).sum();
        // Elements of less than a byte are packed.
        let offset = offset * i64::from(lent.dtype.bits) * i64::from(lent.dtype.lanes) / 8;
        let first = lent
            .data
            .cast::<u8>()
            .wrapping_byte_add(lent.byte_offset as usize)
            .wrapping_offset(offset as isize);
        for at in 0..element {
            // SAFETY: that it is inside of the memory is what this test is about.
            assert_eq!(unsafe { first.add(at).read_volatile() }, FILLED, "outside: {shape:?} {strides:?}");
        }
    };
    if count == 0 {
        return 0;
    }
    if count as usize > READ_MAX {
        let end = |is_high: bool| {
            let at = |(length, stride): (&i64, &i64)| if (*stride > 0) == is_high { length - 1 } else { 0 };
            shape.iter().zip(&strides).map(at).collect::<Vec<i64>>()
        };
        [false, true].into_iter().for_each(|is_high| look(&end(is_high)));
        return 2 * element;
    }
    let mut index = vec![0; ndim];
    for _ in 0..count {
        look(&index);
        for (at, length) in index.iter_mut().zip(&shape).rev() {
            *at = (*at + 1) % length;
            if *at > 0 {
                break;
            }
        }
    }
    count as usize * element
}

fn engine() -> Engine {
    Engine::builder().workers(1).shared(true).build().expect("an engine")
}

#[test]
fn a_tensor_that_another_process_describes_is_inside_of_its_memory_or_refused() {
    if let Some(door) = role() {
        let address = Address::from_bytes(door.as_bytes()).expect("an address");
        let link = wait(Link::connect(&address)).expect("a link");
        let (_segments, mut random, mut open) = (show(&link), Random(20), Vec::new());
        for _ in 0..MESSAGES {
            let (description, promise) = (random.description(), random.promise(&mut open));
            drop(wait(link.send(&promise, &description)).expect("the other process lives"));
        }
        return;
    }
    let (engine, door) = (engine(), Door::open().expect("a door"));
    let peer = Peer::start(
        "a_tensor_that_another_process_describes_is_inside_of_its_memory_or_refused",
        &door.address().to_string(),
    );
    let link = wait(engine.accept(&door)).expect("a link");
    let (mut tensors, mut refused, mut looked_at) = (Vec::new(), 0, 0);
    loop {
        match wait(link.receive()) {
            Ok(Some(tensor)) => {
                if tensor.is_ready() && tensor.wait().is_ok() {
                    looked_at += read(&tensor);
                }
                tensors.push(tensor);
            }
            Ok(None) => break,
            Err(error) => {
                let text = error.to_string();
                let words = ["sent", "segment", "invalid tensor", "lent memory in another way"];
                assert!(words.iter().any(|word| text.contains(word)), "{text}");
                refused += 1;
            }
        }
    }
    assert!(peer.end().success());
    // Tensors that it had not kept have failed, and the rest stays.
    for tensor in &tensors {
        match tensor.wait_timeout(Duration::from_secs(60)) {
            Ok(()) => looked_at += read(tensor),
            Err(error) => assert!(!matches!(error, estafette::Error::Timeout(_)), "it hangs"),
        }
    }
    let tensors = tensors.len();
    assert_eq!(tensors + refused, MESSAGES);
    assert!(tensors > MESSAGES / 10 && refused > MESSAGES / 10 && looked_at > 0, "{tensors} and {refused}");
}

/// Answers requests until the other process leaves.
fn answer_anything(link: &Link, random: &mut Random, open: &mut Vec<host::Completer>) {
    let _segments = show(link);
    let mut asked: Vec<Received> = Vec::new();
    while let Ok(request) = wait(link.receive()) {
        let number = request.note().get(..8).map_or(Vec::new(), <[u8]>::to_vec);
        asked.push(request);
        // Some are not answered, some twice, and some that were never asked.
        for _ in 0..[0, 1, 1, 1, 2][random.below(5)] {
            let number = match random.below(8) {
                0 => random.next().to_le_bytes().to_vec(),
                1 => number[..random.below(number.len() + 1)].to_vec(),
                _ => number.clone(),
            };
            let note =
                [&number[..], &if random.below(6) == 0 { Vec::new() } else { random.description() }].concat();
            let promise = random.promise(open);
            drop(link.try_send(&promise, &note));
        }
    }
}

#[test]
fn a_process_that_answers_anything_to_a_ticket_neither_harms_nor_hangs_this_one() {
    const TICKETS: usize = 1_000;
    if role().is_some() {
        let door = Door::open().expect("a door");
        println!("door {}", door.address());
        let link = wait(door.accept()).expect("a link");
        let (mut random, mut open) = (Random(21), Vec::new());
        return answer_anything(&link, &mut random, &mut open);
    }
    let engine = engine();
    let mut peer =
        Peer::start("a_process_that_answers_anything_to_a_ticket_neither_harms_nor_hangs_this_one", "");
    let address = peer.address();
    let ticket = [address.as_bytes(), &peer.process().to_le_bytes(), &[0; 8], &[7; 16]].concat();
    let ticket = Ticket::from_bytes(&ticket).expect("a ticket");
    let tensors: Vec<Tensor> =
        (0..TICKETS).map(|_| engine.from_ticket(&ticket).expect("a promise")).collect();
    let has_come = |tensor: &Tensor| tensor.wait_timeout(Duration::ZERO).is_ok() && read(tensor) > 0;
    until("a tensor has come", || tensors.iter().any(has_come));
    let mut looked_at = 0;
    for tensor in &tensors[..TICKETS / 2] {
        if tensor.wait_timeout(Duration::from_millis(1)).is_ok() {
            looked_at += read(tensor);
        }
    }
    peer.kill();
    for tensor in &tensors {
        let outcome = tensor.wait_timeout(Duration::from_secs(60));
        assert!(!matches!(outcome, Err(estafette::Error::Timeout(_))), "it hangs");
        if outcome.is_ok() {
            looked_at += read(tensor);
        }
    }
    assert!(looked_at > 0);
}

fn digits_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of(digits: &str) -> Vec<u8> {
    (0..digits.len() / 2)
        .map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).expect("digits"))
        .collect()
}

#[test]
fn a_process_that_asks_for_anything_gets_what_it_was_given_a_ticket_for() {
    const NAME: &str = "a_process_that_asks_for_anything_gets_what_it_was_given_a_ticket_for";
    if let Some(digits) = role() {
        let bytes = bytes_of(&digits);
        let (address, secret) = (&bytes[..Address::BYTES], &bytes[Address::BYTES + 12..]);
        let link = wait(Link::connect(&Address::from_bytes(address).expect("an address"))).expect("a link");
        let (mut random, mut open, mut answers) = (Random(22), Vec::new(), Vec::new());
        for number in 0..MESSAGES as u64 {
            let mut note = [&number.to_le_bytes(), secret].concat();
            match random.below(4) {
                0 => note.resize(random.below(200), 9),
                1 => note[8 + random.below(16)] ^= 1,
                _ => {}
            }
            let promise = random.promise(&mut open);
            drop(link.try_send(&promise, &note));
            answers.extend(link.try_receive().ok().flatten());
            if random.below(4) == 0 {
                answers.clear();
            }
        }
        // It holds what it was given, and ends without a word.
        std::process::exit(0);
    }
    let engine = engine();
    let x = engine.zeros(&[100], DType::U8).expect("memory");
    let ticket = x.ticket(&ShareOptions::default()).expect("a ticket");
    assert!(Peer::start(NAME, &digits_of(&ticket.to_bytes())).end().success());
    drop(ticket);
    engine.op("write").writes([&x]).run(|[], [_x]| Ok(())).expect("submitted");
    until("its leases have ended", || x.is_ready());
}

#[test]
fn a_process_that_dies_after_it_passed_a_tensor_on_is_named() {
    const NAME: &str = "a_process_that_dies_after_it_passed_a_tensor_on_is_named";
    if let Some(passed) = role() {
        let door = Door::open().expect("a door");
        println!("door {}", door.address());
        let link = wait(door.accept()).expect("a link");
        let request = wait(link.receive()).expect("a request");
        let note = [&request.note()[..8], &[1], &bytes_of(&passed)[..]].concat();
        let (completer, fence) = host::promise("a ticket");
        completer.complete();
        let _answer = wait(link.send(&fence, &note)).expect("the other process lives");
        std::process::exit(0);
    }
    let engine = engine();
    // The owner has dropped the ticket that it made for the process between, as after that process's death.
    let x = engine.zeros(&[100], DType::U8).expect("memory");
    let passed = x.ticket(&ShareOptions::default()).expect("a ticket").to_bytes();
    let mut peer = Peer::start(NAME, &digits_of(&passed));
    let ticket = [peer.address().as_bytes(), &peer.process().to_le_bytes(), &[0; 8], &[7; 16]].concat();
    let ticket = Ticket::from_bytes(&ticket).expect("a ticket");
    let error = engine.from_ticket(&ticket).expect("a promise").wait().expect_err("it has died");
    assert!(error.to_string().contains(&format!("process {} died", peer.process())), "{error}");
}
