//! The world of the steps: engines beside the model, and the comparison after each step.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use estafette::devices::{Fence, host};
use estafette::wait::{Ready, Status};
use estafette::{Completion, Engine, Error, Lease, ManagedTensor, Op, Tensor};

use super::model::{
    AccessMode, FenceId, Model, Question, RequestId, RequestKind, RequestState, TensorId, Verdict,
};
use crate::dice::Dice;
use crate::foreign::{Deleted, Memory};
use crate::nothing_left::assert_nothing_left;

/// Limit of required events: far more time than they take on a loaded machine with two cores.
const LIMIT: Duration = Duration::from_secs(20);

/// Elements of a block of memory.
pub const BLOCK: usize = 24;

#[derive(Debug, Clone)]
pub struct Shape {
    /// Source of everything else that is drawn.
    pub seed: u64,
    /// Workers of each engine.
    pub workers: Vec<usize>,
    pub blocks: usize,
    /// Steps before everything is brought to its end.
    pub steps: usize,
}

impl Shape {
    /// A shape whose numbers of engines, workers and blocks depend on `seed`.
    pub fn drawn(seed: u64, steps: usize) -> Self {
        let mut dice = Dice::new(seed);
        let engines = 1 + dice.roll(3);
        let workers = (0..engines).map(|_| dice.roll(3)).collect();
        Self { seed, workers, blocks: 1 + dice.roll(3), steps }
    }
}

/// The engine's side of a request.
pub enum Real {
    /// An operation; its completion while its body is open.
    Op(Op, Option<Completion>),
    Asking(Asking),
    Held(Lease),
    /// A lease whose holder has a struct.
    Exported(ManagedTensor),
    /// A lease that is held by the tensor which was derived from it, a question, a collapse, or over.
    Elsewhere,
}

/// A lease that is waited for, and its outcome.
pub struct Asking {
    future: Pin<Box<dyn Future<Output = Result<Vec<Lease>, Error>>>>,
    outcome: Option<Result<Vec<Lease>, Error>>,
}

impl Asking {
    /// Joins the queue.
    pub fn new(future: impl Future<Output = Result<Vec<Lease>, Error>> + 'static) -> Self {
        let mut asking = Self { future: Box::pin(future), outcome: None };
        asking.poll();
        asking
    }

    fn poll(&mut self) {
        if self.outcome.is_none()
            && let Poll::Ready(outcome) = self.future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            self.outcome = Some(outcome);
        }
    }
}

/// A question whether a tensor is ready, and the answer.
#[derive(Debug)]
pub struct Asked {
    /// The model's side.
    pub question: Question,
    ready: Ready,
    answer: Option<Result<(), Error>>,
}

impl Asked {
    pub fn new(question: Question, ready: Ready) -> Self {
        Self { question, ready, answer: None }
    }

    fn poll(&mut self) {
        if self.answer.is_none()
            && let Poll::Ready(answer) =
                Pin::new(&mut self.ready).poll(&mut Context::from_waker(Waker::noop()))
        {
            self.answer = Some(answer);
        }
    }
}

/// The engine's side of a tensor.
#[derive(Debug)]
pub struct Memo {
    /// The program's handle.
    pub tensor: Option<Tensor>,
    release: ReleaseSign,
}

/// Sign of the end of a tensor's memory.
#[derive(Debug)]
enum ReleaseSign {
    Counted(Deleted),
    /// The end of the lease that it was derived from.
    Lease(RequestId, Fence),
}

impl ReleaseSign {
    fn count(&self) -> usize {
        match self {
            Self::Counted(deleted) => deleted.count(),
            Self::Lease(_, fence) => usize::from(!fence.state().is_pending()),
        }
    }
}

/// Bodies that have begun since it was looked, and what they noticed.
#[derive(Default)]
struct Begun {
    bodies: Vec<(RequestId, Completion)>,
    /// Bodies that ran inside a wait that has no time to run any.
    in_looks: Vec<RequestId>,
}

/// Engines, model, and everything that the program holds.
pub struct World {
    pub shape: Shape,
    pub model: Model,
    pub engines: Vec<Engine>,
    pub memory: Vec<Memory>,
    /// As the model's tensors.
    pub tensors: Vec<Memo>,
    /// As the model's requests.
    pub requests: Vec<Real>,
    /// Fences that are pending.
    pub fences: BTreeMap<FenceId, host::Completer>,
    /// Questions that wait for an answer.
    pub questions: Vec<Asked>,
    /// Views of operations that run.
    pub views: Vec<(RequestId, TensorId, ManagedTensor)>,
    pub aliases: Vec<(TensorId, Lease)>,
    fences_made: FenceId,
    begun: Arc<Mutex<Begun>>,
    looking: Arc<AtomicBool>,
    log: Vec<String>,
}

impl World {
    /// Engines with nothing to do.
    pub fn new(shape: Shape) -> Result<Self, Error> {
        let engine = |workers: &usize| {
            // No lease here is ever held for too long.
            Engine::builder().workers(*workers).lease_timeout(Duration::from_secs(3600)).build()
        };
        let engines = shape.workers.iter().map(engine).collect::<Result<_, _>>()?;
        let memory = (0..shape.blocks).map(|_| Memory::of(&[1.0; BLOCK])).collect();
        Ok(Self {
            shape,
            model: Model::default(),
            engines,
            memory,
            tensors: Vec::new(),
            requests: Vec::new(),
            fences: BTreeMap::new(),
            questions: Vec::new(),
            views: Vec::new(),
            aliases: Vec::new(),
            fences_made: 0,
            begun: Arc::default(),
            looking: Arc::default(),
            log: Vec::new(),
        })
    }

    /// Notes a step, for the message of a failure.
    pub fn note(&mut self, step: String) {
        self.log.push(step);
    }

    /// A tensor that the program has a handle of.
    pub fn tensor(&self, id: TensorId) -> Tensor {
        self.tensors[id].tensor.clone().expect("steps use tensors whose handles are there")
    }

    /// Notes a tensor that `model` has numbered.
    pub fn imported(&mut self, tensor: Tensor, deleted: Deleted) {
        self.tensors.push(Memo { tensor: Some(tensor), release: ReleaseSign::Counted(deleted) });
        self.keep_pace();
    }

    /// Notes a tensor that was derived from a lease; `end` is when the lease ends.
    pub fn derived(&mut self, tensor: Tensor, lease: RequestId, end: Fence) {
        self.tensors.push(Memo { tensor: Some(tensor), release: ReleaseSign::Lease(lease, end) });
        self.requests[lease] = Real::Elsewhere;
    }

    /// Notes the engine's side of the newest request.
    pub fn submitted(&mut self, real: Real) {
        self.requests.push(real);
        assert_eq!(self.requests.len(), self.model.requests.len(), "both sides count alike");
    }

    /// Notes that the model has numbered requests whose engine's side is elsewhere.
    pub fn keep_pace(&mut self) {
        self.requests.resize_with(self.model.requests.len(), || Real::Elsewhere);
    }

    /// A fence that a later step completes.
    pub fn fence(&mut self) -> (FenceId, Fence) {
        let id = self.fences_made;
        self.fences_made += 1;
        let (completer, fence) = host::promise("a fence of a step");
        self.fences.insert(id, completer);
        (id, fence)
    }

    /// Body of the next request: it hands its completion over.
    pub fn body(&self) -> impl FnOnce(Completion) + Send + 'static {
        let (id, begun, looking) = (self.model.requests.len(), self.begun.clone(), self.looking.clone());
        let driver: ThreadId = std::thread::current().id();
        move |completion| {
            let mut begun = begun.lock().unwrap_or_else(PoisonError::into_inner);
            if looking.load(Ordering::Relaxed) && std::thread::current().id() == driver {
                begun.in_looks.push(id);
            }
            begun.bodies.push((id, completion));
        }
    }

    /// Runs `look`, during which this thread must run no body.
    pub fn without_helping<T>(&self, look: impl FnOnce() -> T) -> T {
        self.looking.store(true, Ordering::Relaxed);
        let result = look();
        self.looking.store(false, Ordering::Relaxed);
        result
    }

    /// Says which steps led here, and what the engines say.
    pub fn fail(&self, what: &str) -> ! {
        let steps: Vec<_> = self.log.iter().enumerate().map(|(at, step)| format!("{at:4} {step}")).collect();
        let said: Vec<_> = self.engines.iter().map(|engine| engine.diagnose().to_string()).collect();
        let open = self.model.requests.iter().enumerate();
        let open: Vec<_> = open
            .filter(|(_, request)| request.state != RequestState::Over)
            .map(|(id, request)| format!("{id:4} {request:?}"))
            .collect();
        panic!(
            "{what}\n{:?}\n{}\n\nthe model:\n{}\n\nthe engines:\n{}\n\n{what}\n",
            self.shape,
            steps.join("\n"),
            open.join("\n"),
            said.join("\n---\n")
        );
    }

    /// Waits until all has happened that must, and sees to it that nothing has happened that must not.
    pub fn settle(&mut self) {
        let deadline = Instant::now() + LIMIT;
        let mut agreed = 0;
        // A wrong grant is in a pool's queue by the time that both agree: it comes before what is
        // submitted last.
        while agreed < 2 {
            self.run_all();
            self.observe();
            match self.compare().or_else(|| self.compare_diagnoses()) {
                None => agreed += 1,
                Some(wrong) if Instant::now() > deadline => self.fail(&wrong),
                Some(_) => agreed = 0,
            }
        }
    }

    /// Runs ready operations, on the workers or on this thread.
    fn run_all(&self) {
        for engine in &self.engines {
            let last = engine.op("last").run(|[], []| Ok(()));
            let mut last = last.unwrap_or_else(|error| self.fail(&format!("refused: {error}")));
            // Without workers, polling runs whatever is ready.
            while Pin::new(&mut last).poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                std::thread::yield_now();
            }
        }
    }

    fn observe(&mut self) {
        let begun = std::mem::take(&mut *self.begun.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(request) = begun.in_looks.first() {
            self.fail(&format!("request {request} ran on a thread that only looked"));
        }
        for (id, completion) in begun.bodies {
            match &mut self.requests[id] {
                Real::Op(_, open) => *open = Some(completion),
                _ => self.fail(&format!("the body of request {id} ran, which is over")),
            }
        }
        for real in &mut self.requests {
            if let Real::Asking(asking) = real {
                asking.poll();
            }
        }
        self.questions.iter_mut().for_each(Asked::poll);
    }

    /// The state of a request that waits in the model: whether it has begun, or ended without beginning.
    fn seen(&self, id: RequestId) -> Option<Verdict> {
        match &self.requests[id] {
            Real::Op(_, Some(_)) => Some(Verdict::Begin),
            Real::Op(op, None) if !self.model.requests[id].cancelled && op.is_done() => Some(Verdict::Skip),
            Real::Asking(Asking { outcome: Some(Ok(_)), .. }) => Some(Verdict::Begin),
            Real::Asking(Asking { outcome: Some(Err(_)), .. }) => Some(Verdict::Skip),
            _ => None,
        }
    }

    /// Follows what has happened as far as the model lets it. Gives what must still happen, or what must not
    /// have happened.
    ///
    /// The end of an operation that is skipped may show after what it leads to. So either is a fault only if
    /// it stays: nothing but the engine itself is at work until the next step.
    fn compare(&mut self) -> Option<String> {
        while self.follow() {}
        let mut missing = None;
        for id in self.waiting() {
            if let Some(seen) = self.seen(id) {
                let may = self.model.may(id);
                return Some(format!("request {id} did {seen:?}, but at the soonest it may {may:?}"));
            }
            let must = self.model.must(id);
            let cancelled = self.model.requests[id].cancelled;
            if !cancelled && matches!(must, Verdict::Begin | Verdict::Skip) {
                missing = Some(format!("request {id} must {must:?}, and does not"));
            }
        }
        for id in 0..self.tensors.len() {
            let (count, deleted) = (self.tensors[id].release.count(), self.model.tensors[id].deleted);
            if count > usize::from(deleted) {
                return Some(format!("the memory of tensor {id} was released too early or too often"));
            }
            if !deleted && self.model.must_be_deleted(id) {
                missing = Some(format!("the memory of tensor {id} must be released, and is not"));
            }
        }
        self.compare_questions().or(missing)
    }

    fn compare_questions(&mut self) -> Option<String> {
        let Self { questions, model, .. } = self;
        questions.retain(|asked| match &asked.answer {
            Some(answer) if model.may_know(&asked.question, answer.is_ok()) => {
                model.give_up(asked.question.request);
                false
            }
            _ => true,
        });
        questions.iter().find_map(|Asked { question, answer, .. }| match answer {
            Some(answer) => Some(format!("it is {answer:?}, but what came before is not over: {question:?}")),
            None if model.must_know(question) => Some(format!("it must be known to be ready: {question:?}")),
            None => None,
        })
    }

    /// True if the model allows the engine's answer. A cancelled operation, and what fails by that, may leave
    /// between two steps; so the model follows the engine until it allows the answer.
    pub fn allows(&mut self, answer: impl Fn(&Model) -> bool) -> bool {
        let deadline = Instant::now() + LIMIT;
        while !answer(&self.model) {
            if Instant::now() > deadline {
                return false;
            }
            self.observe();
            while self.follow() {}
        }
        true
    }

    fn waiting(&self) -> Vec<RequestId> {
        let requests = self.model.requests.iter().enumerate();
        requests.filter(|(_, request)| request.state == RequestState::Waiting).map(|(id, _)| id).collect()
    }

    fn follow(&mut self) -> bool {
        let mut followed = false;
        for id in self.waiting() {
            let (must, may, seen) = (self.model.must(id), self.model.may(id), self.seen(id));
            let request = &self.model.requests[id];
            if matches!(request.kind, RequestKind::Collapse | RequestKind::Question) || request.cancelled {
                // Only later steps show the effect.
                match must {
                    Verdict::Begin => self.model.begin(id),
                    Verdict::Skip => self.model.skip(id),
                    Verdict::Wait | Verdict::Fences => continue,
                }
                followed = true;
            } else if seen == Some(may) {
                followed = true;
                if may == Verdict::Skip {
                    self.model.skip(id);
                    self.requests[id] = Real::Elsewhere;
                } else {
                    self.begin(id);
                }
            }
        }
        for id in 0..self.tensors.len() {
            let gone = self.tensors[id].release.count() == 1 && !self.model.tensors[id].deleted;
            if gone && self.model.may_be_deleted(id) {
                followed = true;
                self.model.tensors[id].deleted = true;
                if let ReleaseSign::Lease(lease, _) = self.tensors[id].release {
                    self.model.end_lease(lease, None);
                }
            }
        }
        followed
    }

    /// A body has begun, or a lease is held.
    pub fn begin(&mut self, id: RequestId) {
        self.model.begin(id);
        let asking = match &mut self.requests[id] {
            Real::Asking(asking) => asking,
            _ => return,
        };
        let Some(Ok(mut leases)) = asking.outcome.take() else { self.fail("a lease that is not there") };
        if self.model.requests[id].tensors.len() == 1 {
            self.requests[id] = Real::Held(leases.remove(0));
        } else {
            self.requests[id] = Real::Elsewhere;
            self.model.hand_over(id);
            self.requests.extend(leases.into_iter().map(Real::Held));
            self.keep_pace();
        }
    }

    /// An operation has ended; the views that are left of it are leases now.
    pub fn ended(&mut self, id: RequestId, well: bool, fence: Option<FenceId>) {
        let (kept, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.views).into_iter().partition(|(op, ..)| *op == id);
        self.views = others;
        let mode = |tensor: TensorId| {
            let its = self.model.requests[id].tensors.iter().filter(|(used, _)| *used == tensor);
            its.map(|(_, mode)| *mode).reduce(|a, b| if a == b { a } else { AccessMode::Update })
        };
        let views: Vec<_> =
            kept.iter().filter_map(|(_, tensor, _)| Some((*tensor, mode(*tensor)?))).collect();
        self.model.end(id, well, fence, &views);
        for (_, tensor, exported) in kept {
            self.model.tensors[tensor].holders -= 1;
            self.requests.push(Real::Exported(exported));
        }
        self.requests[id] = Real::Elsewhere;
    }

    /// The granted and the queued requests, as the engines report them.
    fn compare_diagnoses(&self) -> Option<String> {
        let ids: BTreeMap<u64, RequestId> = self
            .waiting()
            .into_iter()
            .filter_map(|id| match &self.requests[id] {
                Real::Op(op, _) => Some((op.id(), id)),
                _ => None,
            })
            .collect();
        let (mut queries, mut leases) = (0, 0);
        for operation in self.engines.iter().flat_map(|engine| engine.diagnose().operations) {
            if operation.lease.is_some() {
                leases += 1;
            } else if operation.name == "ready" {
                queries += 1;
            }
            if let Some(id) = ids.get(&operation.id)
                && matches!(operation.status, Status::Granted | Status::Fenced(_) | Status::Running)
                && self.model.may(*id) == Verdict::Wait
            {
                return Some(format!("request {id} was granted: {operation}"));
            }
        }
        if queries > self.questions.len() {
            return Some(format!("{queries} questions are queued, {} were asked", self.questions.len()));
        }
        let is_lease = |request: &&super::model::Request| {
            request.kind == RequestKind::Lease && request.state != RequestState::Over
        };
        let expected = self.model.requests.iter().filter(is_lease).count();
        if leases != expected {
            return Some(format!("{leases} leases are queued or held, {expected} were asked for or taken"));
        }
        None
    }

    /// Ends everything, and sees to it that nothing is left.
    pub fn finish(mut self) {
        loop {
            for asked in std::mem::take(&mut self.questions) {
                self.model.give_up(asked.question.request);
            }
            for (tensor, _lease) in std::mem::take(&mut self.aliases) {
                self.model.tensors[tensor].holders -= 1;
            }
            for (fence, completer) in std::mem::take(&mut self.fences) {
                completer.complete();
                self.model.fence_done(fence);
            }
            for id in 0..self.requests.len() {
                self.end_one(id);
            }
            for id in 0..self.tensors.len() {
                self.tensors[id].tensor = None;
                self.model.tensors[id].handle = false;
            }
            self.settle();
            if self.model.requests.iter().all(|request| request.state == RequestState::Over) {
                break;
            }
        }
        if let Some(left) = self.model.tensors.iter().position(|tensor| !tensor.deleted) {
            self.fail(&format!("the memory of tensor {left} was never released"));
        }
        assert_nothing_left(&self.engines.iter().collect::<Vec<_>>());
    }

    fn end_one(&mut self, id: RequestId) {
        match std::mem::replace(&mut self.requests[id], Real::Elsewhere) {
            Real::Op(op, Some(completion)) => {
                completion.complete(Ok(()));
                drop(op);
                self.ended(id, true, None);
            }
            Real::Held(lease) => {
                drop(lease);
                self.model.end_lease(id, None);
            }
            Real::Exported(managed) => {
                drop(managed);
                self.model.end_lease(id, None);
            }
            waiting => self.requests[id] = waiting,
        }
    }
}
