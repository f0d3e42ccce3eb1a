//! Programs: operations that are recorded once and replayed often.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use estafette::Program;
use estafette::bindings;
use estafette::program::ProgramBuilder;
use estafette_sync::sync::Mutex;

use crate::context::{BodyContext, Context, estafette_drop};
use crate::engine::{self, estafette_engine};
use crate::entry::{DONE, Refusal, entry, entry_unless_null, flag, place, text};
use crate::handles::Table;
use crate::names;
use crate::op::estafette_op;
use crate::options;
use crate::places::HandleKind;
use crate::slots::Submitted;
use crate::status::estafette_status;
use crate::submit::{
    CheckedWork, PendingCall, WorkArguments, estafette_function, estafette_submit_options, on, queue,
};
use crate::tensor::estafette_tensor;

/// Operations that are recorded once and then run any number of times, each time as one operation. Any thread
/// may use a program. A program destroyed during a call is freed when the last call returns.
#[derive(Debug)]
pub enum estafette_program {}

static PROGRAMS: Table<Mutex<ProgramStage>> = Table::new(HandleKind::Program);

#[derive(Debug)]
enum ProgramStage {
    Recording(Box<ProgramBuilder>, Contexts),
    Ready(Program),
    /// The program is being finished, or could not be: then the contexts stay until it is destroyed.
    Abandoned(#[expect(dead_code, reason = "they are held, and dropped")] Contexts),
}

type Contexts = Vec<Arc<Context>>;

fn refused(why: &str) -> Refusal {
    Refusal::invalid(format!("program: {why}"))
}

/// Begins to record a program. `name` is that of its replays, for messages; NULL means "c". The caller owns
/// the result and gives it up by `estafette_program_destroy`.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL `engine` or `out`, or a name that is not UTF-8;
/// `ESTAFETTE_FORKED`. `*out` is written only on success. May be called by any thread.
///
/// # Safety
/// Each pointer but handles is NULL or what its type says; `out` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_program_begin(
    engine: *mut estafette_engine,
    name: *const c_char,
    out: *mut *mut estafette_program,
) -> estafette_status {
    entry(|| {
        let out = place(out, "out")?;
        // SAFETY: by contract of this function.
        let name = unsafe { text(name, "c", "name") }?;
        let engine = engine::engine(engine)?;
        let vacant = PROGRAMS.reserve()?;
        let stage =
            Mutex::new(ProgramStage::Recording(Box::new(engine.program(names::kept(name))), Contexts::new()));
        // SAFETY: writable, by contract.
        unsafe { out.write(vacant.fill(stage)) };
        DONE
    })
}

/// Records a node. The arguments are those of `estafette_submit_with`, but every replay calls `function` with
/// `context`, and `drop_context`, which may be NULL, is called once with it when the program was destroyed,
/// no replay is in flight, and every fence that a call of `function` has ended with has settled. Nodes have
/// the meaning that they would have as operations submitted in this order. Of the options, `priority`,
/// `nonblocking` and `on_skip` must be 0.
///
/// A function reports its end as that of an operation does. Two replays may call it at the same time if all
/// that the program does is to read.
///
/// Returns as `estafette_submit_with`, and `ESTAFETTE_INVALID` for a program that is finished. On an error
/// the caller keeps `context`. May be called by any thread.
///
/// # Safety
/// As for `estafette_submit`; the functions may be called by any thread, and `function` as often as the
/// program is replayed.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "C has no other way")]
pub unsafe extern "C" fn estafette_program_add(
    program: *mut estafette_program,
    options: *const estafette_submit_options,
    function: estafette_function,
    context: *mut c_void,
    drop_context: estafette_drop,
    reads: *const *mut estafette_tensor,
    n_reads: usize,
    writes: *const *mut estafette_tensor,
    n_writes: usize,
) -> estafette_status {
    entry(|| {
        // SAFETY: by contract of this function.
        let options = unsafe { options::read(options) }?;
        let program = PROGRAMS.get(program, "program")?;
        if options.priority != 0 || options.nonblocking != 0 || options.on_skip.is_some() {
            return Err(Refusal::invalid(
                "estafette_submit_options: a node of a program has no priority of its own, no nonblocking, and no on_skip",
            ));
        }
        let work = WorkArguments {
            function,
            context,
            drop_context,
            reads: (reads, n_reads),
            writes: (writes, n_writes),
        };
        // SAFETY: by contract of this function.
        let CheckedWork { name, function, reads, writes } = unsafe { work.parse(&options) }?;
        let mut stage = program.lock();
        let ProgramStage::Recording(builder, contexts) = &mut *stage else {
            return Err(refused("it is finished, nothing more can be recorded"));
        };
        let queue = queue(bindings::program::engine(builder), options.on)?;
        let node = on(builder.op(name).reads(reads).writes(writes), queue);
        // All that could be refused is refused before the context is taken.
        let node = bindings::program::checked_external(node)?;
        let context = Arc::new(Context::new(context, drop_context));
        contexts.push(Arc::clone(&context));
        node.run(move |completion| {
            // The program keeps it; this keeps it until the fence of this call has settled.
            let context = BodyContext::Shared(context.clone());
            PendingCall { function, context, held: None, produces: false }.start(completion);
        });
        DONE
    })
}

/// Ends the recording. `graph` is 0, or 1 for a program whose nodes are all on one CUDA device: it becomes
/// one graph, launched by one call of the driver per replay. Then the first replay calls the functions, once
/// each, while what they enqueue on the stream that `estafette_op_stream` gives is recorded and not run; no
/// later replay calls them.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL, for a program that is finished, another value of
/// `graph`, or, with the node that is in the way, for a program that cannot be a graph; `ESTAFETTE_CONFLICT`
/// for a program whose replay would wait for itself, since one of its tensors is in memory under a lease that
/// another one waits for. A program that cannot be a graph, or is in conflict, can only be destroyed then,
/// and keeps the contexts of its nodes until it is. `ESTAFETTE_FORKED`. May be called by any thread.
/// `program` may be any value.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_program_finish(program: *mut estafette_program, graph: i32) -> estafette_status {
    entry(|| {
        let program = PROGRAMS.get(program, "program")?;
        let as_graph = flag("graph", graph)?;
        let mut stage = program.lock();
        let (builder, contexts) =
            match std::mem::replace(&mut *stage, ProgramStage::Abandoned(Contexts::new())) {
                ProgramStage::Recording(builder, contexts) => (builder, contexts),
                other => {
                    *stage = other;
                    return Err(refused("it is finished"));
                }
            };
        drop(stage);
        // Under no lock: it may take long, and a program that is refused gives its tensors up.
        let finished = if as_graph { builder.finish_as_graph() } else { builder.finish() };
        let (stage, refused) = match finished {
            Ok(finished) => (ProgramStage::Ready(finished), None),
            Err(error) => (ProgramStage::Abandoned(contexts), Some(error)),
        };
        *program.lock() = stage;
        refused.map_or(DONE, |error| Err(error.into()))
    })
}

/// Submits one run of all nodes as one operation. `nonblocking` is 1 to be refused with
/// `ESTAFETTE_IN_FLIGHT_LIMIT` instead of waiting for room, else 0. A handle of the operation goes to `*out`,
/// which may be NULL; the caller gives it up by `estafette_op_release`.
///
/// The replay ends when all nodes have ended, the fences included that they end with.
///
/// A node whose input was left by a node that failed is not called, and all others are; the replay has failed
/// then, and so has everything that the program writes.
///
/// Returns as `estafette_submit_with`, and `ESTAFETTE_INVALID` for a program that is not finished. May be
/// called by any thread, inside of operations too.
///
/// # Safety
/// `out` is NULL or may be written. `program` may be any value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_program_replay(
    program: *mut estafette_program,
    nonblocking: i32,
    out: *mut *mut estafette_op,
) -> estafette_status {
    entry(|| {
        let program = PROGRAMS.get(program, "program")?;
        let ready = match &*program.lock() {
            ProgramStage::Ready(ready) => ready.clone(),
            ProgramStage::Recording(..) => return Err(refused("it is still being recorded; finish it")),
            ProgramStage::Abandoned(_) => return Err(refused("it could not be finished")),
        };
        let nonblocking = flag("nonblocking", nonblocking)?;
        let handle = if out.is_null() { None } else { Some(Submitted::reserve()?) };
        let op = if nonblocking { bindings::program::try_replay(&ready) } else { ready.replay() }?;
        if let Some(handle) = handle {
            // SAFETY: writable, by contract.
            unsafe { out.write(handle.fill(op)) };
        }
        DONE
    })
}

/// Gives a program up. Replays in flight run to their end. NULL is legal and does nothing.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for a handle that is not in use, as of a program that was
/// destroyed before; `ESTAFETTE_FORKED`: there the program is leaked. May be called by any thread. `program`
/// may be any value.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_program_destroy(program: *mut estafette_program) -> estafette_status {
    entry_unless_null(program, || PROGRAMS.release(program, "program"))
}
