//! A process in which nothing fails, and whose tensors the program under test uses.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitCode, Stdio};

use estafette::devices::DLDevice;
use estafette::engine::Memory;
use estafette::remote::{Address, Door, ShareOptions, Ticket};
use estafette::{DType, Engine};
use futures::executor::block_on;

/// The one element of each of its tensors.
pub const VALUE: i64 = 7;

/// The other process.
pub struct OtherProcess {
    process: Child,
    pub address: Address,
    pub ticket: Ticket,
}

impl OtherProcess {
    /// Starts it.
    pub fn start() -> Self {
        let this = std::env::current_exe().expect("the path of this program");
        let mut command = Command::new(this);
        command.arg("--owner").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("a process");
        let mut line = String::new();
        let mut output = BufReader::new(process.stdout.take().expect("piped"));
        output.read_line(&mut line).expect("text");
        let (address, ticket) = line.trim_end().split_once(' ').expect("an address and a ticket");
        let address = Address::from_bytes(address.as_bytes()).expect("an address");
        let ticket = ticket.split(',').map(|byte| byte.parse().expect("a byte")).collect::<Vec<u8>>();
        let ticket = Ticket::from_bytes(&ticket).expect("a ticket");
        Self { process, address, ticket }
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        // It ends at the end of its input as well, where this process is aborted.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The other process, to the end of its input.
pub fn run() -> ExitCode {
    let engine = Engine::builder().workers(1).build().expect("an engine");
    let x = engine.empty(&[1], DType::I64, Memory::Shared(DLDevice::CPU)).expect("memory");
    let filled = engine.op("fill").writes([&x]).run(|[], [mut x]| {
        x.as_mut_slice::<i64>()?[0] = VALUE;
        Ok(())
    });
    filled.expect("submitted").wait().expect("it is filled");
    let (door, ticket) =
        (Door::open().expect("a door"), x.ticket(&ShareOptions::default()).expect("a ticket"));
    let bytes: Vec<_> = ticket.to_bytes().iter().map(u8::to_string).collect();
    println!("{} {}", door.address(), bytes.join(","));
    std::thread::spawn(move || {
        let mut links = Vec::new();
        while let Ok(link) = block_on(engine.accept(&door)) {
            // A link that the other process gave up gets nothing.
            if block_on(link.send(&x, &ShareOptions::default())).is_ok() {
                links.push(link);
            }
        }
    });
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop(ticket);
    ExitCode::SUCCESS
}
