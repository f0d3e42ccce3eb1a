//! Tensors in memory of a device in another process, on the driver simulator. Each process has a simulator of
//! its own, whose memory the other one can have.

use std::ffi::c_int;
use std::sync::mpsc::channel;
use std::time::Duration;

use estafette::bindings;
use estafette::devices::cuda::{CudaQueue, CudaRuntime};
use estafette::devices::{DLDevice, Device, Queue};
use estafette::engine::Memory;
use estafette::remote::{Address, Door, Link, ShareOptions, Ticket};
use estafette::{DType, Engine, Error, Tensor};
use estafette_cuda_sim_client::Simulator;

use crate::support::{Peer, role, until, wait};

const BYTES: i64 = 5_000;
/// The length of a tensor that says that one process has got somewhere.
const WORD: i64 = 1;

struct Side {
    simulator: &'static Simulator,
    engine: Engine,
    link: Link,
}

impl Side {
    fn device(&self) -> DLDevice {
        CudaRuntime::get().unwrap().device(0).unwrap().id()
    }

    fn memory(&self, bytes: i64) -> Tensor {
        self.engine.empty(&[bytes], DType::U8, self.device()).unwrap()
    }

    fn queue(&self) -> std::sync::Arc<dyn Queue> {
        CudaRuntime::get().unwrap().device(0).unwrap().create_queue().unwrap()
    }

    /// Writes `value` to all elements, on the device.
    fn fill(&self, x: &Tensor, value: u8, queue: &std::sync::Arc<dyn Queue>) {
        let filled = self.engine.op("fill").writes([x]).on(queue).run_on(move |queue, [], [mut x]| {
            let (queue, bytes) = (CudaQueue::from_queue(queue).unwrap(), x.layout().byte_len());
            // SAFETY: the engine keeps the tensor, and all other uses away from it, until the work is done.
            Ok(unsafe { queue.fill(x.data_mut_ptr(), value, bytes) }?)
        });
        drop(filled.unwrap());
    }

    /// The value of all elements.
    fn value(&self, x: &Tensor) -> Result<u8, Error> {
        let copy = self.engine.copy(x, DLDevice::CPU)?;
        copy.wait_timeout(Duration::from_secs(60))?;
        let bytes = copy.to_vec::<u8>()?;
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "half of a version");
        Ok(bytes[0])
    }

    fn send(&self, x: &Tensor) {
        wait(self.link.send(x, &ShareOptions::default())).unwrap();
    }

    fn receive(&self) -> Tensor {
        wait(self.link.receive()).unwrap().unwrap()
    }

    fn say(&self) {
        self.send(&self.engine.empty(&[WORD], DType::U8, Memory::Shared(DLDevice::CPU)).unwrap());
    }

    fn heard(&self) {
        drop(self.receive());
    }

    fn silent(&self) {
        let found = self.simulator.violations();
        assert!(found.is_empty(), "{found:#?}");
    }
}

/// Runs `owner` here and `consumer` in another process with `devices` devices.
fn two_of(name: &str, devices: u32, owner: impl FnOnce(&mut Peer, Side), consumer: impl FnOnce(Side)) {
    let engine = || Engine::builder().workers(2).shared(true).build().unwrap();
    if let Some(door) = role() {
        let simulator = Simulator::load().unwrap();
        simulator.devices(devices);
        let engine = engine();
        let link = wait(engine.connect(&Address::from_bytes(door.as_bytes()).unwrap())).unwrap();
        return consumer(Side { simulator, engine, link });
    }
    let (_alone, simulator) = crate::simulator();
    simulator.reset();
    let engine = engine();
    let door = Door::open().unwrap();
    let mut peer = Peer::start(&format!("processes::{name}"), &door.address().to_string());
    let link = wait(engine.accept(&door)).unwrap();
    owner(&mut peer, Side { simulator, engine, link });
}

fn two(name: &str, owner: impl FnOnce(&mut Peer, Side), consumer: impl FnOnce(Side)) {
    two_of(name, 4, owner, consumer);
}

fn until_killed() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(600));
    }
}

#[test]
fn memory_of_a_device_crosses_without_a_copy_and_is_opened_once() {
    const ROUNDS: u8 = 100;
    two(
        "memory_of_a_device_crosses_without_a_copy_and_is_opened_once",
        |peer, side| {
            let before = side.engine.stats().copied_for_processes;
            let (x, queue) = (side.memory(BYTES), side.queue());
            for round in 0..ROUNDS {
                // Neither the send nor the next write waits here.
                side.fill(&x, round, &queue);
                side.send(&x);
            }
            side.fill(&x, 200, &queue);
            assert_eq!(side.value(&x).unwrap(), 200, "after its readers");
            assert!(peer.0.wait().unwrap().success());
            assert_eq!(side.engine.stats().copied_for_processes, before);
            side.silent();
        },
        |side| {
            for round in 0..ROUNDS {
                let x = side.receive();
                assert_eq!((x.device().unwrap(), &x.shape().unwrap()[..]), (side.device(), &[BYTES][..]));
                assert_eq!(side.value(&x).unwrap(), round);
                assert!(side.engine.op("write").writes([&x]).run(|[], [_x]| Ok(())).is_err());
            }
            for call in ["cuMemImportFromShareableHandle", "cuMemMap"] {
                assert_eq!(side.simulator.calls(call), 1, "{call}");
            }
            side.silent();
        },
    );
}

#[test]
fn it_is_ready_when_the_device_of_the_owner_is_and_released_when_that_of_the_consumer_is() {
    two(
        "it_is_ready_when_the_device_of_the_owner_is_and_released_when_that_of_the_consumer_is",
        |peer, side| {
            let (x, queue) = (side.memory(BYTES), side.queue());
            side.simulator.block(queue.native());
            side.fill(&x, 7, &queue);
            side.send(&x);
            side.heard();
            side.simulator.unblock(queue.native());
            side.heard();
            side.fill(&x, 8, &queue);
            std::thread::sleep(Duration::from_millis(50));
            assert!(!x.is_ready(), "a stream of the other process reads it");
            side.say();
            assert_eq!(side.value(&x).unwrap(), 8);
            assert!(peer.0.wait().unwrap().success());
            side.silent();
        },
        |side| {
            let x = side.receive();
            let (copy, queue) = (side.memory(BYTES), side.queue());
            let within = side.engine.op("copy").reads([&x]).writes([&copy]).on(&queue).run_on(
                move |queue, [x], [mut copy]| {
                    let device = CudaRuntime::get().unwrap().device(0).unwrap();
                    // SAFETY: the engine keeps both until the work is done.
                    Ok(unsafe { device.copy(queue, x.data_ptr(), copy.data_mut_ptr(), BYTES as usize) }?)
                },
            );
            drop(within.unwrap());
            side.simulator.block(queue.native());
            std::thread::sleep(Duration::from_millis(30));
            assert!(!x.is_ready(), "its producer is blocked");
            side.say();
            until("it is ready", || x.is_ready());
            drop(x);
            side.say();
            side.heard();
            assert!(!copy.is_ready());
            side.simulator.unblock(queue.native());
            assert_eq!(side.value(&copy).unwrap(), 7);
            side.silent();
        },
    );
}

#[test]
fn what_an_owner_had_finished_when_it_died_stays_readable_and_the_rest_fails() {
    two(
        "what_an_owner_had_finished_when_it_died_stays_readable_and_the_rest_fails",
        |peer, side| {
            // The roles are reversed here: the other process is the owner.
            let (ready, pending) = (side.receive(), side.receive());
            let after = side.engine.copy(&pending, DLDevice::CPU).unwrap();
            until("the first is ready", || ready.is_ready());
            peer.kill();
            let died = format!("process {} died", peer.process());
            for tensor in [&pending, &after] {
                let error = tensor.wait_timeout(Duration::from_secs(60)).unwrap_err().to_string();
                assert!(error.contains(&died), "{error}");
            }
            peer.0.wait().unwrap();
            assert_eq!(side.value(&ready).unwrap(), 5);
            drop((ready, pending));
            let unmapped = side.simulator.calls("cuMemUnmap");
            drop(side.link);
            until("the memory is released", || side.simulator.calls("cuMemUnmap") > unmapped);
        },
        |side| {
            let ([ready, pending], queue) = ([(); 2].map(|()| side.memory(BYTES)), side.queue());
            side.fill(&ready, 5, &queue);
            side.send(&ready);
            assert_eq!(side.value(&ready).unwrap(), 5);
            side.simulator.block(queue.native());
            side.fill(&pending, 6, &queue);
            side.send(&pending);
            until_killed();
        },
    );
}

#[test]
fn a_consumer_that_dies_releases_what_it_read() {
    two(
        "a_consumer_that_dies_releases_what_it_read",
        |peer, side| {
            let (x, queue) = (side.memory(BYTES), side.queue());
            side.fill(&x, 1, &queue);
            side.send(&x);
            side.heard();
            side.fill(&x, 2, &queue);
            std::thread::sleep(Duration::from_millis(30));
            assert!(!x.is_ready(), "the write waits for the lease");
            peer.kill();
            assert_eq!(side.value(&x).unwrap(), 2);
            side.silent();
        },
        |side| {
            let x = side.receive();
            assert_eq!(side.value(&x).unwrap(), 1);
            side.say();
            until_killed();
        },
    );
}

#[test]
fn memory_that_cannot_be_shown_is_copied_on_its_device_to_the_host_or_refused() {
    two(
        "memory_that_cannot_be_shown_is_copied_on_its_device_to_the_host_or_refused",
        |peer, side| {
            let private = Engine::builder().workers(1).build().unwrap();
            let before = private.stats().copied_for_processes;
            let x = private.empty(&[BYTES], DType::U8, side.device()).unwrap();
            side.fill(&x, 3, &side.queue());
            let refused = ShareOptions { copy: Some(false), ..ShareOptions::default() };
            assert!(matches!(wait(side.link.send(&x, &refused)), Err(Error::NotShared(_))));
            side.send(&x);
            let shared = private.empty(&[BYTES], DType::U8, Memory::Shared(side.device())).unwrap();
            side.fill(&shared, 4, &side.queue());
            wait(side.link.send(&shared, &refused)).unwrap();
            let copied = ShareOptions { copy: Some(true), ..ShareOptions::default() };
            wait(side.link.send(&shared, &copied)).unwrap();
            assert!(peer.0.wait().unwrap().success());
            assert_eq!(private.stats().copied_for_processes - before, 2 * BYTES as u64);
            side.silent();
        },
        |side| {
            for (device, value) in [(side.device(), 3), (side.device(), 4), (DLDevice::CPU, 4)] {
                let x = side.receive();
                assert_eq!((x.device().unwrap(), side.value(&x).unwrap()), (device, value));
            }
        },
    );
}

#[test]
fn a_segment_that_its_owner_releases_is_released_everywhere() {
    two(
        "a_segment_that_its_owner_releases_is_released_everywhere",
        |peer, side| {
            // Another test may have left a segment, of which the largest stays.
            let (first, second) = (side.memory(20 << 20), side.memory(40 << 20));
            side.fill(&first, 1, &side.queue());
            side.send(&first);
            side.heard();
            let used = side.simulator.used(0);
            drop((second, first));
            until("the smaller one is gone", || side.simulator.used(0) < used);
            assert!(peer.0.wait().unwrap().success());
            side.silent();
        },
        |side| {
            let x = side.receive();
            assert_eq!(side.value(&x).unwrap(), 1);
            drop(x);
            assert_eq!(side.simulator.calls("cuMemUnmap"), 0, "it may be used again");
            side.say();
            until("it is released", || side.simulator.calls("cuMemUnmap") == 1);
            side.silent();
        },
    );
}

#[test]
fn a_ticket_names_memory_of_a_device_and_a_tensor_may_be_passed_on() {
    two(
        "a_ticket_names_memory_of_a_device_and_a_tensor_may_be_passed_on",
        |peer, side| {
            let (x, queue) = (side.memory(BYTES), side.queue());
            side.simulator.block(queue.native());
            side.fill(&x, 9, &queue);
            let ticket = x.ticket(&ShareOptions::default()).unwrap();
            side.send(&side.engine.from_vec(ticket.to_bytes(), &[ticket.to_bytes().len() as i64]).unwrap());
            let back = side.receive();
            side.simulator.unblock(queue.native());
            // In the process that has the memory, too, it is another mapping.
            assert_eq!((side.value(&back).unwrap(), back.device().unwrap()), (9, side.device()));
            side.say();
            assert!(peer.0.wait().unwrap().success());
            drop(ticket);
            side.silent();
        },
        |side| {
            let bytes = side.receive();
            bytes.wait().unwrap();
            let ticket = Ticket::from_bytes(&bytes.to_vec::<u8>().unwrap()).unwrap();
            let x = side.engine.from_ticket(&ticket).unwrap();
            side.send(&x);
            assert_eq!(side.value(&x).unwrap(), 9);
            side.heard();
            side.silent();
        },
    );
}

/// True if the calling thread sees to all links.
extern "C" fn is_link_thread() -> c_int {
    c_int::from(std::thread::current().name() == Some("estafette-links"))
}

fn is_opened_elsewhere(name: &str, workers: usize) {
    two(
        name,
        |peer, side| {
            let x = side.memory(BYTES);
            side.fill(&x, 4, &side.queue());
            let once = ShareOptions { once: true, ..ShareOptions::default() };
            let bytes = x.ticket(&once).unwrap().to_bytes();
            let length = bytes.len() as i64;
            side.send(&side.engine.from_vec(bytes, &[length]).unwrap());
            assert!(peer.0.wait().unwrap().success());
            side.silent();
        },
        |side| {
            let bytes = side.receive();
            bytes.wait().unwrap();
            side.simulator.interpreter(is_link_thread);
            let engine = Engine::builder().workers(workers).build().unwrap();
            let x = engine.from_ticket(&Ticket::from_bytes(&bytes.to_vec::<u8>().unwrap()).unwrap()).unwrap();
            if workers > 0 {
                // No thread waits for the link, so its own thread hears of the answer.
                let (done, is_done) = channel();
                bindings::tensor::on_end(&x, move |_| done.send(()).unwrap());
                is_done.recv().unwrap();
            }
            assert_eq!(side.value(&x).unwrap(), 4);
            assert_eq!(side.simulator.calls("cuMemImportFromShareableHandle"), 1);
            side.silent();
        },
    );
}

#[test]
fn a_worker_opens_memory_of_a_device_that_a_ticket_names_and_the_thread_of_links_does_not() {
    is_opened_elsewhere(
        "a_worker_opens_memory_of_a_device_that_a_ticket_names_and_the_thread_of_links_does_not",
        2,
    );
}

#[test]
fn without_workers_the_thread_that_waits_opens_memory_of_a_device() {
    is_opened_elsewhere("without_workers_the_thread_that_waits_opens_memory_of_a_device", 0);
}

#[test]
fn a_write_to_memory_that_another_process_has_lent_is_a_fault() {
    two(
        "a_write_to_memory_that_another_process_has_lent_is_a_fault",
        |peer, side| {
            let (x, queue) = (side.memory(BYTES), side.queue());
            side.fill(&x, 1, &queue);
            side.send(&x);
            assert!(peer.0.wait().unwrap().success());
            assert_eq!(side.value(&x).unwrap(), 1);
        },
        |side| {
            let x = side.receive();
            assert_eq!(side.value(&x).unwrap(), 1);
            let device = CudaRuntime::get().unwrap().device(0).unwrap();
            let queue = device.queue().unwrap();
            // SAFETY: it is not: the device refuses this.
            unsafe { queue.fill(x.data_ptr().unwrap().cast_mut(), 2, 1) }.unwrap();
            let outcome = queue.record().unwrap().wait_timeout(Some(Duration::from_secs(60))).unwrap();
            assert_eq!(outcome.unwrap_err().code(), Some(700));
        },
    );
}

#[test]
fn a_driver_that_maps_nothing_for_reading_alone_maps_it_for_both() {
    two(
        "a_driver_that_maps_nothing_for_reading_alone_maps_it_for_both",
        |peer, side| {
            let x = side.memory(BYTES);
            side.fill(&x, 1, &side.queue());
            side.send(&x);
            assert!(peer.0.wait().unwrap().success());
        },
        |side| {
            side.simulator.read_only_mappings(false);
            assert_eq!(side.value(&side.receive()).unwrap(), 1);
            side.silent();
        },
    );
}

#[test]
fn a_process_without_the_device_says_so() {
    two_of(
        "a_process_without_the_device_says_so",
        1,
        |peer, side| {
            let second = CudaRuntime::get().unwrap().device(1).unwrap().id();
            side.send(&side.engine.empty(&[BYTES], DType::U8, second).unwrap());
            assert!(peer.0.wait().unwrap().success());
        },
        |side| {
            let error = wait(side.link.receive()).unwrap_err().to_string();
            assert!(error.contains("which this process does not have"), "{error}");
        },
    );
}
