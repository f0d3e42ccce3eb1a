//! Operators: the three kinds, in Rust and through the C interface's types; what a call waits for, and what
//! goes wrong.

use std::ffi::{c_char, c_void};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use estafette::bindings::{self, Implementation, Invocation};
use estafette::devices::host::HostDevice;
use estafette::devices::sim::{SimDevice, SimOptions, SimQueue};
use estafette::devices::{Device, Queue};
use estafette::exchange::{DLManagedTensorVersioned, DLTensor};
use estafette::operators::OUTPUTS_MAX;
use estafette::operators::{Closure, OperatorKind, Signature, abi, operators};
use estafette::wait::without_helping;
use estafette::{Access, DType, Engine, Error, Produced, Tensor};
use futures::FutureExt;
use futures::executor::block_on;
use tests::gate::Gate;
use tests::ops::{engine, until};
use tests::watchdog::Watchdog;

fn vector(engine: &Engine, values: &[f32]) -> Tensor {
    engine.from_vec(values.to_vec(), &[values.len() as i64]).unwrap()
}

/// Registers the three kinds of a sum under names that begin with `prefix`, which is a test's own.
fn register_sums(prefix: &str) {
    let all = operators();
    all.register_closure(
        &format!("{prefix}.into"),
        2,
        1,
        Closure::Destination(Box::new(|inputs, outputs, _| {
            let (a, b) = (inputs[0].as_slice::<f32>()?, inputs[1].as_slice::<f32>()?);
            for (out, (a, b)) in outputs[0].as_mut_slice::<f32>()?.iter_mut().zip(a.iter().zip(b)) {
                *out = a + b;
            }
            Ok(())
        })),
    )
    .unwrap();
    all.register_closure(
        &format!("{prefix}.repeat"),
        1,
        1,
        Closure::Inferred(
            Box::new(|inputs, attributes| {
                let times = attributes.parse("times", 2_i64)?;
                Ok(vec![(inputs[0].layout().dtype(), vec![times * inputs[0].layout().shape()[0]])])
            }),
            Box::new(|inputs, outputs, _| {
                let values = inputs[0].as_slice::<f32>()?;
                outputs[0]
                    .as_mut_slice::<f32>()?
                    .chunks_mut(values.len())
                    .for_each(|c| c.copy_from_slice(values));
                Ok(())
            }),
        ),
    )
    .unwrap();
    all.register_closure(
        &format!("{prefix}.parts"),
        1,
        2,
        Closure::Allocating(Box::new(|inputs, _| {
            let (even, odd) =
                inputs[0].as_slice::<f32>()?.iter().partition::<Vec<f32>, _>(|x| **x % 2.0 == 0.0);
            let shape = |values: &Vec<f32>| [values.len() as i64];
            Ok(vec![
                Produced::from_vec(even.clone(), &shape(&even))?,
                Produced::from_vec(odd.clone(), &shape(&odd))?,
            ])
        })),
    )
    .unwrap();
}

#[test]
fn the_three_kinds_in_one_graph_behind_inputs_that_are_promises_still() {
    register_sums("graph");
    for workers in [0, 2] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        let held = engine.var();
        let gate = Gate::on_variable(&engine, &held);
        let late = engine.op("late").reads_vars(&[&held]);
        let late = late.produce(|[]| Ok(Produced::from_vec(vec![1.0_f32, 2.0, 3.0], &[3])?)).unwrap();
        let sum = engine.zeros(&[3], DType::F32).unwrap();
        let ten = vector(&engine, &[10.0, 20.0, 30.0]);
        let op = engine.operator("graph.into").unwrap().inputs(&[&late, &ten]).run_into(&[&sum]).unwrap();
        let repeat = engine.operator("graph.repeat").unwrap().inputs(&[&sum]).attribute("times", "3");
        let repeated = repeat.produce().unwrap().remove(0);
        let parts = engine.operator("graph.parts").unwrap().inputs(&[&repeated]).produce().unwrap();
        let none_ready = [&late, &sum, &repeated, &parts[0], &parts[1]].iter().all(|t| !t.is_ready());
        assert!(none_ready && !bindings::tensor::is_defined(&late) && !op.is_done());
        gate.open();
        assert_eq!(parts[0].to_vec::<f32>().unwrap(), [22.0; 3]);
        assert_eq!(parts[1].to_vec::<f32>().unwrap(), [11.0, 33.0, 11.0, 33.0, 11.0, 33.0]);
        assert_eq!(repeated.shape().unwrap().as_slice(), [9]);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn what_is_registered_is_listed_and_a_mistaken_name_gets_the_near_ones() {
    register_sums("listed");
    let known = bindings::operators::get(operators(), "listed.repeat").unwrap();
    assert_eq!((&*known.name, &*known.origin), ("listed.repeat", "Rust"));
    let signature = known.signature;
    assert_eq!((signature.kind, signature.inputs, signature.outputs), (OperatorKind::Inferred, Some(1), 1));
    let all = operators().list().unwrap();
    assert!(all.windows(2).all(|pair| pair[0].name < pair[1].name));
    assert!(all.iter().any(|operator| *operator.name == *"listed.parts"));
    let Error::NoOperator { name, near } =
        bindings::operators::get(operators(), "listed.repaet").unwrap_err()
    else {
        panic!()
    };
    assert_eq!((name.as_str(), near[0].as_str()), ("listed.repaet", "listed.repeat"));
    let engine = engine(1);
    let missing = engine.operator("zzz").unwrap_err().to_string();
    assert_eq!(missing, "there is no operator `zzz`");
    operators().unregister("listed.parts").unwrap();
    assert!(matches!(operators().unregister("listed.parts"), Err(Error::NoOperator { .. })));
}

#[test]
fn a_name_is_taken_once() {
    register_sums("taken");
    let again = operators()
        .register_closure("taken.into", 1, 1, Closure::Destination(Box::new(|_, _, _| Ok(()))))
        .unwrap_err();
    assert_eq!(
        again.to_string(),
        "conflict: operator `taken.into` is registered already, by Rust; `unregister` takes it out"
    );
    let unnamed =
        operators().register_closure("", 1, 1, Closure::Destination(Box::new(|_, _, _| Ok(())))).unwrap_err();
    assert!(unnamed.to_string().contains("name of an operator is empty"));
    let outputless = operators()
        .register_closure("taken.none", 1, 0, Closure::Destination(Box::new(|_, _, _| Ok(()))))
        .unwrap_err();
    assert!(outputless.to_string().contains("`taken.none` has no outputs"));
}

#[test]
fn calls_that_cannot_be_are_refused_before_anything_is_submitted() {
    register_sums("refused");
    let engine = engine(1);
    let (x, y) = (vector(&engine, &[1.0]), vector(&engine, &[2.0]));
    let call = |name: &str| engine.operator(name).unwrap();
    let text = |error: Error| error.to_string();
    let too_few = call("refused.into").inputs(&[&x]).run_into(&[&y]).unwrap_err();
    assert_eq!(text(too_few), "operator `refused.into` takes 2 inputs, not 1");
    let too_many = call("refused.into").inputs(&[&x, &x]).run_into(&[&y, &y]).unwrap_err();
    assert_eq!(text(too_many), "operator `refused.into` has 1 outputs, not 2");
    let nowhere = call("refused.into").inputs(&[&x, &x]).produce().unwrap_err();
    assert_eq!(
        text(nowhere),
        "operator `refused.into` writes to outputs that it is given, and was given none"
    );
    let given = call("refused.parts").inputs(&[&x]).run_into(&[&y, &x]).unwrap_err();
    assert!(text(given).contains("`refused.parts` allocates its results itself"));
    let overlapping = call("refused.into").inputs(&[&x, &y]).run_into(&[&x]).unwrap_err();
    assert!(matches!(overlapping, Error::Conflict(_)));
    let nul = call("refused.repeat").inputs(&[&x]).attribute("times", "1\0").produce().unwrap_err();
    assert!(text(nul).contains("attribute \"times\" contains a NUL byte"));
    assert_eq!(engine.stats().in_flight, 0);
}

#[test]
fn a_failure_names_the_operator_and_follows_the_data_through_several_results() {
    register_sums("failing");
    let engine = engine(1);
    let x = vector(&engine, &[1.0]);
    let bad = engine.operator("failing.repeat").unwrap().inputs(&[&x]).attribute("times", "many");
    let bad = bad.produce().unwrap().remove(0);
    let failure = bad.wait().unwrap_err().to_string();
    assert!(failure.starts_with("operation `failing.repeat` ("), "{failure}");
    assert!(failure.ends_with("failed: attribute `times` is `many`, which is no i64"), "{failure}");
    let parts = engine.operator("failing.parts").unwrap().inputs(&[&bad]).produce().unwrap();
    for part in &parts {
        assert_eq!(part.wait().unwrap_err().to_string(), failure, "every waiter gets the root cause");
    }
    let narrow = engine.zeros(&[1], DType::F32).unwrap();
    let misfit = engine.operator("failing.repeat").unwrap().inputs(&[&x]).run_into(&[&narrow]).unwrap();
    let misfit = misfit.wait().unwrap_err().to_string();
    assert!(
        misfit.contains("output 0 of operator `failing.repeat` is float32 [2], but was given float32 [1]")
    );
    // The right one is written, without an allocation.
    let wide = engine.zeros(&[2], DType::F32).unwrap();
    block_on(engine.operator("failing.repeat").unwrap().inputs(&[&x]).run_into_async(&[&wide])).unwrap();
    assert_eq!(wide.to_vec::<f32>().unwrap(), [1.0, 1.0]);
}

#[test]
fn an_operator_that_gives_the_wrong_number_of_results_fails_and_one_that_panics_too() {
    operators()
        .register_closure("odd.count", 0, 2, Closure::Allocating(Box::new(|_, _| Ok(Vec::new()))))
        .unwrap();
    operators()
        .register_closure("odd.panic", 0, 1, Closure::Allocating(Box::new(|_, _| panic!("out of ink"))))
        .unwrap();
    let engine = engine(1);
    let produce = |name| engine.operator(name).unwrap().produce().unwrap().remove(0);
    assert!(produce("odd.count").wait().unwrap_err().to_string().contains("gave 0 results, not 2"));
    assert!(produce("odd.panic").wait().unwrap_err().to_string().contains("panicked: out of ink"));
}

/// Adds one to the only element of its input, on a queue of the simulated device.
struct OnQueue;

#[derive(Clone, Copy)]
struct Element(*mut f32);

// SAFETY: an address; the order of the operations keeps its uses apart, which is what is tested.
unsafe impl Send for Element {}

impl Element {
    fn of(tensor: &Tensor) -> Self {
        Self(tensor.data_ptr().unwrap().cast_mut().cast())
    }

    fn add_one_to(self, other: Self) {
        // SAFETY: the operation that this runs for keeps the memory and its order.
        unsafe { *other.0 = *self.0 + 1.0 }
    }
}

impl Implementation for OnQueue {
    fn start(&self, call: Invocation) {
        let (from, to) = (Element::of(&call.inputs()[0]), Element::of(&call.outputs()[0]));
        let queue = call.scope().queue().expect("called on one");
        let launched = SimQueue::from_queue(queue.as_ref()).expect("of the simulated device").launch(
            "add one",
            10,
            move || from.add_one_to(to),
        );
        call.finish(launched.map(|()| Vec::new()).map_err(Into::into));
    }
}

#[test]
fn on_a_queue_the_work_is_enqueued_in_order_and_a_chain_needs_no_host() {
    let device = SimDevice::new(SimOptions::default()).unwrap();
    let engine = Engine::builder().workers(1).device(device.clone()).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let signature =
        Signature { kind: OperatorKind::Destination, inputs: Some(1), outputs: 1, in_place: true };
    bindings::operators::register(operators(), "queue.add_one", signature, "a test", OnQueue).unwrap();
    let queue: Arc<dyn Queue> = device.queue(false);
    let tensors: Vec<Tensor> = (0..3)
        .map(|_| {
            let tensor = engine.empty(&[1], DType::F32, device.id()).unwrap();
            engine
                .op("zero")
                .writes([&tensor])
                .run(|[], [mut x]| {
                    x.as_mut_slice::<f32>()?.fill(0.0);
                    Ok(())
                })
                .unwrap();
            tensor.wait().unwrap();
            tensor
        })
        .collect();
    let call = |from: usize, to: usize| {
        let call = engine.operator("queue.add_one").unwrap().inputs(&[&tensors[from]]).on(&queue);
        call.run_into(&[&tensors[to]]).unwrap()
    };
    let ops = [call(0, 1), call(1, 2), call(2, 2)];
    // Issued, all of them, before the device has moved.
    engine.wait_all(Some(Duration::from_secs(30))).unwrap();
    assert!(!tensors[2].is_ready());
    device.run_until_idle();
    tensors[2].wait().unwrap();
    assert_eq!(tensors[2].to_vec::<f32>().unwrap(), [3.0]);
    drop(ops);
    let produced = engine.operator("queue.add_one").unwrap().inputs(&[&tensors[0]]).on(&queue).produce();
    assert!(produced.unwrap_err().to_string().contains("was given none"));
    assert!(watchdog.still_watches());
}

/// Enqueues a piece of work, and ends or breaks off. Says when it is dropped.
struct Leaves {
    breaks_off: bool,
    dropped: Arc<AtomicUsize>,
}

impl Implementation for Leaves {
    fn start(&self, call: Invocation) {
        let queue = call.scope().queue().expect("called on one");
        let queue = SimQueue::from_queue(queue.as_ref()).expect("of the simulated device");
        queue.launch("work", 10, || ()).unwrap();
        if !self.breaks_off {
            call.finish(Ok(Vec::new()));
        }
    }
}

impl Drop for Leaves {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn an_operator_that_was_taken_out_stays_until_the_work_that_it_has_enqueued_is_over() {
    for breaks_off in [false, true] {
        let device = SimDevice::new(SimOptions::default()).unwrap();
        let engine = Engine::builder().workers(1).device(device.clone()).build().unwrap();
        let watchdog = Watchdog::of(&engine);
        let dropped = Arc::new(AtomicUsize::new(0));
        let signature =
            Signature { kind: OperatorKind::Destination, inputs: Some(0), outputs: 1, in_place: true };
        let leaves = Leaves { breaks_off, dropped: Arc::clone(&dropped) };
        bindings::operators::register(operators(), "queue.leaves", signature, "a test", leaves).unwrap();
        let queue: Arc<dyn Queue> = device.queue(false);
        let x = engine.empty(&[1], DType::F32, device.id()).unwrap();
        for _ in 0..2 {
            engine.operator("queue.leaves").unwrap().on(&queue).run_into(&[&x]).unwrap();
        }
        operators().unregister("queue.leaves").unwrap();
        until("both calls have enqueued", || device.unfinished() == 2);
        // The only worker has left the calls when it comes to this.
        without_helping(|| engine.op("after").run(|[], []| Ok(())).unwrap().wait()).unwrap();
        assert_eq!(dropped.load(Ordering::SeqCst), 0, "the work has not begun");
        device.run_until_idle();
        until("it is dropped", || dropped.load(Ordering::SeqCst) == 1);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn an_operator_keeps_no_queue_once_the_work_there_is_over() {
    let device = SimDevice::new(SimOptions::default()).unwrap();
    let engine = Engine::builder().workers(1).device(device.clone()).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let signature =
        Signature { kind: OperatorKind::Destination, inputs: Some(0), outputs: 1, in_place: true };
    let leaves = Leaves { breaks_off: false, dropped: Arc::default() };
    bindings::operators::register(operators(), "queue.kept", signature, "a test", leaves).unwrap();
    let x = engine.empty(&[1], DType::F32, device.id()).unwrap();
    let progress = [(); 3].map(|()| {
        let queue: Arc<dyn Queue> = device.queue(false);
        engine.operator("queue.kept").unwrap().on(&queue).run_into(&[&x]).unwrap();
        Arc::downgrade(queue.record().unwrap().as_point().unwrap().0)
    });
    until("all have enqueued", || device.unfinished() == 3);
    device.run_until_idle();
    x.wait().unwrap();
    engine.wait_all(None).unwrap();
    drop((x, engine, device));
    until("the queues are gone", || progress.iter().all(|queue| queue.strong_count() == 0));
    assert!(watchdog.still_watches());
}

/// Counts what has become of contexts.
static DROPPED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn dropped(_context: *mut c_void) {
    DROPPED.fetch_add(1, Ordering::Relaxed);
}

/// Allocating: does what its context, a number, says.
unsafe extern "C" fn careless(
    _inputs: *const *const DLTensor,
    _n_inputs: usize,
    outputs: *mut *mut DLManagedTensorVersioned,
    _n_outputs: usize,
    _attributes: *const abi::OperatorAttribute,
    _n_attributes: usize,
    _stream: *mut c_void,
    context: *mut c_void,
) -> *const c_char {
    match context.addr() {
        1 => std::ptr::null(),
        2 => {
            // SAFETY: one output, by registration.
            unsafe { (*(*outputs)).dl_tensor.ndim = -1 };
            std::ptr::null()
        }
        _ => c"the paper is jammed".as_ptr(),
    }
}

const CARELESS: abi::OperatorFunction = Some(careless);

fn options(kind: u32) -> abi::OperatorOptions {
    let infer = if kind == abi::OPERATOR_INFERRED { CARELESS } else { None };
    abi::OperatorOptions {
        size: size_of::<abi::OperatorOptions>() as u32,
        kind,
        flags: 0,
        n_inputs: 0,
        n_outputs: 1,
        infer,
    }
}

#[test]
fn what_a_function_in_c_may_do_wrong_has_a_message_each() {
    let register = |name: &str, kind, context: usize| {
        let context = std::ptr::without_provenance_mut(context);
        // SAFETY: the function takes any number as its context.
        unsafe {
            bindings::operators::register_foreign(
                operators(),
                name,
                CARELESS,
                &options(kind),
                context,
                Some(dropped),
            )
        }
    };
    register("careless.null", abi::OPERATOR_ALLOCATING, 1).unwrap();
    register("careless.shape", abi::OPERATOR_INFERRED, 2).unwrap();
    register("careless.fails", abi::OPERATOR_ALLOCATING, 3).unwrap();
    let engine = engine(1);
    let failure = |name: &str| {
        let made = engine.operator(name).unwrap().produce().unwrap().remove(0);
        made.wait().unwrap_err().to_string()
    };
    assert!(
        failure("careless.null")
            .contains("output 0 of operator `careless.null` was given wrongly: tensor is NULL")
    );
    assert!(failure("careless.shape").contains("was described wrongly: ndim is -1"));
    assert!(failure("careless.fails").ends_with("failed: the paper is jammed"));

    // A refused context stays with its caller; a registered one is dropped after its last use.
    assert!(matches!(register("careless.null", abi::OPERATOR_ALLOCATING, 4), Err(Error::Conflict(_))));
    assert!(register("careless.kind", 7, 5).unwrap_err().to_string().contains("kind 7 is unknown"));
    assert_eq!(DROPPED.load(Ordering::Relaxed), 0);
    let call = engine.operator("careless.fails").unwrap();
    for name in ["careless.null", "careless.shape", "careless.fails"] {
        operators().unregister(name).unwrap();
    }
    assert_eq!(DROPPED.load(Ordering::Relaxed), 2, "a call that is being described keeps its operator");
    let last = call.produce().unwrap().remove(0);
    assert!(last.wait().unwrap_err().to_string().ends_with("failed: the paper is jammed"));
    engine.wait_all(None).unwrap();
    tests::ops::until("the context is dropped", || DROPPED.load(Ordering::Relaxed) == 3);
}

#[test]
fn options_of_the_c_interface_are_checked() {
    let refused = |change: fn(&mut abi::OperatorOptions)| {
        let mut options = options(abi::OPERATOR_ALLOCATING);
        change(&mut options);
        // SAFETY: it is refused, so nothing is called.
        let outcome = unsafe {
            bindings::operators::register_foreign(
                operators(),
                "checked",
                CARELESS,
                &options,
                std::ptr::null_mut(),
                None,
            )
        };
        outcome.unwrap_err().to_string()
    };
    assert!(refused(|options| options.size = 8).contains("size of its options is 8"));
    assert!(refused(|options| options.flags = 6).contains("flags 0x6 are unknown"));
    assert!(refused(|options| options.n_inputs = -2).contains("-2 inputs"));
    assert!(refused(|options| options.n_outputs = 0).contains("has no outputs"));
    assert!(refused(|options| options.n_outputs = i32::MAX).contains("2147483647 outputs, more than 65536"));
    assert!(refused(|options| options.kind = abi::OPERATOR_INFERRED).contains("has no function that infers"));
    assert!(refused(|options| options.infer = CARELESS).contains("is allocating"));
}

#[test]
fn more_outputs_than_an_operator_may_have_are_refused_by_their_number() {
    let register = |outputs| {
        operators().register_closure(
            "many.outputs",
            0,
            outputs,
            Closure::Allocating(Box::new(|_, _| Ok(vec![]))),
        )
    };
    for outputs in [OUTPUTS_MAX + 1, usize::MAX] {
        let error = register(outputs).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
        let wanted = format!("operator `many.outputs` has {outputs} outputs, more than 65536");
        assert!(error.to_string().contains(&wanted), "{error}");
    }
    register(OUTPUTS_MAX).unwrap();
    operators().unregister("many.outputs").unwrap();
}

#[test]
fn what_cannot_be_loaded_is_refused_by_its_path() {
    // SAFETY: there is nothing to run.
    let missing = unsafe { operators().load("/nowhere/liboperators.so") }.unwrap_err().to_string();
    assert!(missing.starts_with("/nowhere/liboperators.so: cannot be loaded: "), "{missing}");
    // The loader's own reason.
    assert!(missing.contains("No such file or directory"), "{missing}");
}

#[test]
fn a_library_that_lacks_a_function_is_refused_when_it_is_loaded() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, library) = (folder.join("lacking.c"), folder.join("liblacking.so"));
    let text = "void not_anywhere(void); const char *estafette_operators(void *r) { (void)r; not_anywhere(); return 0; }\n";
    std::fs::write(&source, text).unwrap();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let lazily = ["-shared", "-fPIC", "-Wl,-z,lazy", "-o"];
    let compiled = Command::new(compiler).args(lazily).arg(&library).arg(&source).status().unwrap();
    assert!(compiled.success());
    // SAFETY: nothing of it runs, since it is not loaded.
    let error = unsafe { operators().load(&library) }.unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    let error = error.to_string();
    assert!(error.contains("cannot be loaded: ") && error.contains("not_anywhere"), "{error}");
}

#[test]
fn a_function_that_cannot_enqueue_is_refused_on_a_queue() {
    let engine = engine(1);
    register_sums("no_queue");
    // SAFETY: the call is refused, so the function is not called.
    unsafe {
        let options = options(abi::OPERATOR_ALLOCATING);
        let options = abi::OperatorOptions { kind: abi::OPERATOR_DESTINATION, ..options };
        bindings::operators::register_foreign(
            operators(),
            "no_queue.foreign",
            CARELESS,
            &options,
            std::ptr::null_mut(),
            None,
        )
        .unwrap();
    }
    let device = SimDevice::new(SimOptions::default()).unwrap();
    let (stream, without_a_handle): (Arc<dyn Queue>, _) =
        (device.queue(false), HostDevice::new().default_queue());
    let x = vector(&engine, &[1.0]);
    for (name, queue, inputs) in [("into", &stream, &[&x, &x][..]), ("foreign", &without_a_handle, &[])] {
        let call = engine.operator(&format!("no_queue.{name}")).unwrap().inputs(inputs).on(queue);
        let refused = call.run_into(&[&vector(&engine, &[0.0])]);
        assert!(matches!(&refused, Err(Error::Invalid(why)) if why.contains(name)), "{refused:?}");
    }
}

#[test]
fn a_call_goes_on_when_the_last_handle_of_its_engine_without_workers_is_dropped() {
    register_sums("left");
    let watchdog = Watchdog::alone();
    let engine = engine(0);
    let (x, y) = (vector(&engine, &[1.0]), vector(&engine, &[2.0]));
    let sum = engine.zeros(&[1], DType::F32).unwrap();
    let lease = x.lease(Access::Write, "a test").wait(None).unwrap();
    drop(engine.operator("left.into").unwrap().inputs(&[&x, &y]).run_into(&[&sum]).unwrap());
    drop(engine);
    drop(lease);
    until("the call has ended", || sum.is_ready());
    assert_eq!(sum.to_vec::<f32>().unwrap(), [3.0]);
    assert!(watchdog.still_watches());
}

#[test]
fn a_call_that_is_described_goes_on_when_the_last_handle_of_its_engine_without_workers_is_dropped() {
    register_sums("described");
    let watchdog = Watchdog::alone();
    let engine = engine(0);
    let (x, y) = (vector(&engine, &[1.0]), vector(&engine, &[2.0]));
    let sum = engine.zeros(&[1], DType::F32).unwrap();
    engine.wait_all(None).unwrap();
    let call = engine.operator("described.into").unwrap().inputs(&[&x, &y]);
    drop(engine);
    drop(call.run_into(&[&sum]).unwrap());
    until("the call has ended", || sum.is_ready());
    assert_eq!(sum.to_vec::<f32>().unwrap(), [3.0]);
    assert!(watchdog.still_watches());
}

/// Gives its input twice.
struct Echo;

impl Implementation for Echo {
    fn start(&self, call: Invocation) {
        let input = call.inputs()[0].clone();
        call.finish(Ok(vec![Produced::from(input.clone()), Produced::from(input)]));
    }
}

#[test]
fn several_results_are_those_of_the_call_whatever_is_written_to_its_inputs_before_the_next_submission() {
    let signature =
        Signature { kind: OperatorKind::Allocating, inputs: Some(1), outputs: 2, in_place: false };
    bindings::operators::register(operators(), "echo.twice", signature, "a test", Echo).unwrap();
    // A second submission has to wait for the end of the first one.
    let engine = Engine::builder().workers(1).in_flight_limit(1).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let x = vector(&engine, &[1.0]);
    let mut call = Box::pin(engine.operator("echo.twice").unwrap().inputs(&[&x]).produce_async());
    let at_once = call.as_mut().now_or_never();
    let lease = x.lease(Access::Write, "a test").wait(None).unwrap();
    let results = at_once.unwrap_or_else(|| block_on(call)).unwrap();
    for result in &results {
        // The holder of the lease may wait for them.
        result.wait_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(result.to_vec::<f32>().unwrap(), [1.0]);
    }
    drop(lease);
    assert!(watchdog.still_watches());
}
