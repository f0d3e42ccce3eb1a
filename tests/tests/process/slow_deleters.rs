//! A deleter that does not return: a diagnosis names it, and other memory is freed meanwhile.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use estafette::devices::DLDevice;
use estafette::exchange::{Abi, ExportFlags, ReleaseStatus, export, flush_deleters};
use estafette::wait::Stall;
use estafette::{DType, Engine, Layout, Tensor};
use tests::ops::{engine, exclusive, until};
use tests::watchdog::Watchdog;

/// A tensor of another library whose deleter runs `deleter`.
fn foreign(engine: &Engine, shape: &[i64], deleter: impl FnOnce() + Send + 'static) -> Tensor {
    let layout = Layout::contiguous(DType::F32, DLDevice::CPU, shape).unwrap();
    let mut memory = vec![0.0_f32; layout.len()];
    let data = memory.as_mut_ptr().cast();
    let deleter = move || {
        deleter();
        drop(memory);
    };
    // SAFETY: the memory is as long as the layout says, and the deleter keeps it.
    unsafe { engine.import(export(&layout, data, ExportFlags::default(), Abi::Versioned, deleter)) }.unwrap()
}

/// A tensor whose deleter does not return before the sender is used or dropped.
fn hanging(engine: &Engine, shape: &[i64]) -> (Tensor, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (entered, has_begun) = mpsc::channel();
    let (leave, may_leave) = mpsc::channel::<()>();
    let tensor = foreign(engine, shape, move || {
        entered.send(()).unwrap();
        let _ = may_leave.recv();
    });
    (tensor, has_begun, leave)
}

#[test]
fn a_deleter_that_does_not_return_is_named_by_diagnose_while_500_others_go_on() {
    let _alone = exclusive();
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (hangs, has_begun, leave) = hanging(&engine, &[3, 7]);
    let address = hangs.data_ptr().unwrap();
    let deleted = Arc::new(AtomicUsize::new(0));
    drop(hangs);
    has_begun.recv().unwrap();
    for _ in 0..500 {
        let deleted = Arc::clone(&deleted);
        drop(foreign(&engine, &[1000], move || {
            deleted.fetch_add(1, Ordering::Relaxed);
        }));
    }
    until("the others go on", || deleted.load(Ordering::Relaxed) == 500);
    let diagnosis = engine.diagnose();
    assert!(!diagnosis.is_idle() && diagnosis.operations.is_empty(), "{diagnosis}");
    let [slow] = &diagnosis.releases[..] else { panic!("one is slow: {diagnosis}") };
    assert_eq!(slow.status, ReleaseStatus::Deleting);
    assert!(slow.age >= Duration::from_millis(200), "{diagnosis}");
    let text = diagnosis.to_string();
    assert!(
        text.contains("the deleter of the tensor of variable") && text.contains("has not returned"),
        "{text}"
    );
    assert!(
        text.contains("(float32 [3, 7] on cpu:0)") && text.contains(&format!("at {address:p}")),
        "{text}"
    );
    until("its release is counted", || engine.stats().releasing == 1);
    leave.send(()).unwrap();
    assert!(flush_deleters(Duration::from_secs(30)));
    assert_eq!(engine.diagnose().to_string(), "nothing in flight");
    assert!(watchdog.still_watches());
}

#[test]
fn the_watchdog_reports_a_deleter_that_does_not_return_once() {
    let _alone = exclusive();
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let telling = Arc::clone(&told);
    let on_stall = move |stall: Stall<'_>| {
        assert!(matches!(stall, Stall::Release(_)), "{stall}");
        telling.lock().unwrap().push(stall.to_string());
    };
    let engine = Engine::builder().workers(1).on_stall(Duration::from_millis(40), on_stall).build().unwrap();
    let _watchdog = Watchdog::of(&engine);
    let (hangs, has_begun, leave) = hanging(&engine, &[2]);
    drop(hangs);
    has_begun.recv().unwrap();
    until("it is reported", || !told.lock().unwrap().is_empty());
    // A second one is reported for itself, and the first one not again.
    let (second, has_begun, leave_second) = hanging(&engine, &[4]);
    drop(second);
    has_begun.recv().unwrap();
    until("both are reported", || told.lock().unwrap().len() >= 2);
    leave.send(()).unwrap();
    leave_second.send(()).unwrap();
    assert!(flush_deleters(Duration::from_secs(30)));
    let told = told.lock().unwrap().clone();
    let deleters: Vec<_> = told.iter().filter(|text| text.contains("has not returned")).collect();
    assert_eq!(deleters.len(), 2, "{told:?}");
    assert!(deleters[0].contains("float32 [2]") && deleters[1].contains("float32 [4]"), "{told:?}");
}
