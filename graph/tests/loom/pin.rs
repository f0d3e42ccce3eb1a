//! Pins beside writes.

use super::*;

#[test]
fn a_pin_and_a_write_never_meet_and_the_write_is_not_forgotten() {
    for biased in [false, true] {
        let seen = Seen::default();
        let noted = seen.clone();
        model(3, move || {
            let world = if biased { World::biased(1) } else { World::new(1) };
            let holder = world.share();
            let thread = thread::spawn(move || {
                let cell = &holder.data.cells[0];
                let var = &holder.vars[0];
                let held = var.try_pin(|_, _| true);
                if held {
                    // SAFETY: what a pin is for, and loom checks.
                    cell.with(|value| unsafe { *value });
                    let mut ready = Vec::new();
                    var.unpin(|_, _| (), |granted| ready.push(granted));
                    ready.into_iter().for_each(|granted| holder.run(Some(granted)));
                }
                held
            });
            world.submit(&[(0, WRITE)]);
            let before = world.done();
            let held = thread.join().unwrap();
            assert_eq!(world.done(), 1, "the thread that came last has run the write");
            noted.note(usize::from(held) * 2 + before);
        });
        // Refused; granted before the write, or after it; and the write granted by the end of the pin.
        seen.assert([1, 2, 3]);
    }
}

#[test]
fn two_pins_and_a_write_release_each_other() {
    model(1, || {
        let world = World::new(1);
        let holds = [(); 2].map(|()| {
            let holder = world.share();
            thread::spawn(move || {
                if holder.vars[0].try_pin(|_, _| true) {
                    // SAFETY: as above.
                    holder.data.cells[0].with(|value| unsafe { *value });
                    let mut ready = Vec::new();
                    holder.vars[0].unpin(|_, _| (), |granted| ready.push(granted));
                    ready.into_iter().for_each(|granted| holder.run(Some(granted)));
                }
            })
        });
        world.submit(&[(0, WRITE)]);
        for hold in holds {
            hold.join().unwrap();
        }
        assert_eq!(world.done(), 1);
    });
}
