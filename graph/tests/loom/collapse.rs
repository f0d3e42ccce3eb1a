//! Variables that are collapsed while others use them.

use super::*;

/// A submission through a member while it is collapsed: before the collapse on the member or behind it on the
/// group.
#[test]
fn a_collapse_races_a_submission_through_its_member() {
    model(3, || {
        let world = World::new(2);
        let other = world.share();
        let thread = thread::spawn(move || {
            // Cell 1 stands for the memory that member and group share.
            let granted = other.graph.op(vec![(1, WRITE)], [(&other.vars[0], WRITE)]).submit_unreferenced();
            other.run(granted);
        });
        world.run(world.graph.collapse(vec![(1, WRITE)], &[&world.vars[0]], &world.vars[1]));
        world.run(world.graph.op(vec![(1, READ)], [(&world.vars[1], READ)]).submit_unreferenced());
        thread.join().unwrap();
        assert_eq!(world.done(), 3);
        assert!(world.vars.iter().all(Var::is_quiet));
        assert_eq!(world.vars[0].ordering(), world.vars[1]);
    });
}

/// While a member is collapsed, no thread sees it quiet: neither its own write nor the collapse is over.
#[test]
fn a_member_is_not_quiet_while_it_is_collapsed() {
    model(5, || {
        let graph: Graph<(), ()> = Graph::new();
        let (member, group) = (graph.var(()), graph.var(()));
        let writing = graph.op((), [(&member, WRITE)]).submit_unreferenced().unwrap();
        let theirs = (graph.clone(), member.clone(), group.clone());
        let thread = thread::spawn(move || {
            let (graph, member, group) = theirs;
            assert!(graph.collapse((), &[&member], &group).is_none());
        });
        assert!(!member.is_quiet());
        thread.join().unwrap();
        let mut next = None;
        writing.complete(|_| (), |granted| next = Some(granted));
        assert!(!member.is_quiet());
        next.unwrap().complete(|_| (), |_| ());
        assert!(member.is_quiet());
    });
}

/// State that is left on the variable that orders a member is moved by the collapse, or is on the group
/// already.
#[test]
fn what_is_left_on_a_member_is_not_missed_by_its_collapse() {
    model(3, || {
        let graph: Graph<usize, ()> = Graph::new();
        let (member, group) = (graph.var(0), graph.var(0));
        let its = member.clone();
        let thread = thread::spawn(move || its.with_ordering_state(|state, _| *state += 1));
        let granted = graph.collapse((), &[&member], &group).unwrap();
        let moved: usize =
            granted.accesses().map(|access| access.with_state(|state, _| std::mem::take(state))).sum();
        group.with_state(|state, _| *state += moved);
        granted.complete(|_| (), |_| ());
        thread.join().unwrap();
        assert_eq!(group.with_state(|state, _| *state), 1);
        assert!(member.is_ordered_with(&group));
    });
}

#[test]
fn opposite_collapses_make_one_group() {
    model(3, || {
        let world = World::new(2);
        let other = world.share();
        let thread = thread::spawn(move || {
            other.run(other.graph.collapse(vec![(0, WRITE)], &[&other.vars[0]], &other.vars[1]));
        });
        world.run(world.graph.collapse(vec![(0, WRITE)], &[&world.vars[1]], &world.vars[0]));
        thread.join().unwrap();
        assert_eq!(world.done(), 2);
        assert_eq!(world.vars[0].ordering(), world.vars[1].ordering());
    });
}

/// The last handle of a collapsed member goes while its access completes on the group: the member's state is
/// dropped once, by either thread, and not before the access is over.
#[test]
fn a_member_is_dropped_while_its_access_completes_on_the_group() {
    struct Memory {
        used: Arc<AtomicUsize>,
        _counted: Counted,
    }
    impl Drop for Memory {
        fn drop(&mut self) {
            assert_eq!(self.used.load(Ordering::Relaxed), 1, "the access is over");
        }
    }
    model(3, || {
        let (drops, count) = counter();
        let used = Arc::new(AtomicUsize::new(0));
        let graph: Graph<Option<Memory>, ()> = Graph::new();
        let member = graph.var(Some(Memory { used: Arc::clone(&used), _counted: Counted(drops) }));
        let group = graph.var(None);
        graph.collapse((), &[&member], &group).unwrap().complete(|_| (), |_| ());
        let granted = graph.op((), [(&member, READ)]).submit_unreferenced().unwrap();
        drop(graph);
        let thread = thread::spawn(move || {
            used.store(1, Ordering::Relaxed);
            granted.complete(|_| (), |_| ());
        });
        drop(member);
        drop(group);
        thread.join().unwrap();
        assert_eq!(count(), 1);
    });
}
