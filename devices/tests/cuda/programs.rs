//! Random programs over several streams, in any order that the streams allow: the simulator's clock stands
//! still until all is enqueued, and then its seed chooses what runs first.

use estafette_devices::cuda::CudaQueue;
use estafette_devices::{Allocation, Fence, FenceSet};

use crate::harness::{Bench, bench, fill, order, record, settle};

const QUEUES: usize = 4;
const PLACES: usize = 6;
const STEPS: usize = 60;

/// Numbers by Vigna's xorshift64*.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }
}

/// Memory, who has written it last, and who has read it since.
struct Place {
    memory: Allocation,
    written: FenceSet,
    read: FenceSet,
    /// Content if everything runs in the order of the program.
    expected: u8,
}

impl Place {
    fn before_reading(&self, queue: &CudaQueue) {
        self.written.iter().for_each(|fence| {
            order(queue, fence);
        });
    }

    fn before_writing(&self, queue: &CudaQueue) {
        self.before_reading(queue);
        self.read.iter().for_each(|fence| {
            order(queue, fence);
        });
    }

    fn wrote(&mut self, fence: &Fence) {
        self.written.clear();
        self.read.clear();
        self.written.insert(fence.clone());
    }
}

fn places(bench: &Bench) -> Vec<Place> {
    let place = |_| Place {
        memory: bench.memory(128),
        written: FenceSet::default(),
        read: FenceSet::default(),
        expected: 0,
    };
    (0..PLACES).map(place).collect()
}

fn play(bench: &Bench, seed: u64, places: &mut [Place]) {
    let mut draw = Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let queues: Vec<_> = (0..QUEUES).map(|_| bench.queue()).collect();
    for step in 0..STEPS {
        let (queue, to) = (&queues[draw.below(QUEUES)], draw.below(PLACES));
        let from = draw.below(PLACES);
        places[to].before_writing(queue);
        if from == to {
            fill(queue, &places[to].memory, step as u8);
            places[to].expected = step as u8;
        } else {
            places[from].before_reading(queue);
            bench.copy(queue, &places[from].memory, &places[to].memory);
            places[to].expected = places[from].expected;
        }
        let fence = record(queue);
        if from != to {
            places[from].read.insert(fence.clone());
        }
        places[to].wrote(&fence);
        if draw.below(8) == 0 {
            // A query in between enqueues something for the host.
            let _ = fence.is_done();
        }
    }
}

#[test]
fn programs_mean_the_same_in_every_order_that_streams_allow() {
    let bench = bench();
    for seed in 1..=40 {
        let mut places = places(&bench);
        let simulator = bench.simulator("its time cannot be held");
        if let Some(simulator) = simulator {
            simulator.virtual_clock(seed);
            simulator.jitter(1_000);
        }
        play(&bench, seed, &mut places);
        if let Some(simulator) = simulator {
            while simulator.step() {}
            bench.assert_nothing_wrong();
            // From here on time passes by itself again.
            simulator.reset();
        }
        for place in &places {
            let fences = place.written.iter().chain(place.read.iter());
            fences.for_each(|fence| settle(fence).expect("nothing failed"));
            bench.assert_filled(&place.memory, place.expected);
        }
    }
}
