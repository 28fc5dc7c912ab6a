//! `adverb demo`: two processes that do everything that RDMA can do, check every byte, and are refused what
//! they may not do.

mod operation;
mod peer;
mod refusal;

use crate::environment;
use crate::failure::Failure;
use crate::pair::child::Child;
use crate::pair::table::{Table, bytes, rate, time};
use adverb_core::interfaces;
use operation::{Effort, Operation, SideResult};
use peer::{Answer, Order, Role};
use refusal::Refusal;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Show RDMA between two processes of this machine: every operation, every byte checked
#[derive(clap::Args)]
#[command(after_help = "Takes a few seconds. Exit status 0 if everything was as it must be, else 1.")]
pub(crate) struct Args {
    /// Show this device only [default: every device of this build]
    #[arg(long, value_name = "NAME", value_parser = environment::device)]
    device: Option<String>,
    /// Be one of the two processes
    #[arg(long, hide = true)]
    peer: bool,
}

/// The whole demonstration ends within this time, whatever happens.
const LIMIT: Duration = Duration::from_secs(90);
/// No single step takes longer, unless something is wrong.
const STEP: Duration = Duration::from_secs(15);

const INTRODUCTION: &str = "\
adverb demo: two processes of this machine, a client and a server, do RDMA with each other. No RDMA hardware is used.

With RDMA one process writes into the memory of another one, or reads it, over a network, while the other process does
nothing. It reaches only memory that was offered to it, with the key that it was given, and only as it was allowed to.
";

/// Runs the demonstration.
pub(crate) fn demo(args: &Args) -> Result<ExitCode, Failure> {
    if args.peer {
        peer::serve(LIMIT + STEP);
        return Ok(ExitCode::SUCCESS);
    }
    let start = Instant::now();
    println!("{INTRODUCTION}");
    let hint = interfaces::hint();
    if !hint.is_empty() {
        println!("demo FAILED: the two processes cannot reach each other{hint}.");
        return Ok(ExitCode::from(1));
    }
    let devices = match &args.device {
        Some(name) => vec![name.as_str()],
        None => adverb::Device::known(),
    };
    let mut total = Total::default();
    let outcome = devices
        .iter()
        .try_for_each(|device| show(device, &mut total, start + LIMIT).map_err(|e| (device, e)));
    let took = start.elapsed().as_secs_f64();
    match outcome {
        Ok(()) => {
            println!(
                "demo PASSED: {} operations shown, {} checked byte by byte, {} forbidden accesses refused, in {took:.1} s.",
                total.operations,
                bytes(total.checked as f64),
                total.refused
            );
            Ok(ExitCode::SUCCESS)
        }
        Err((device, error)) => {
            println!("demo FAILED on {device} after {took:.1} s: {error}.");
            Ok(ExitCode::from(1))
        }
    }
}

#[derive(Default)]
struct Total {
    operations: usize,
    checked: u64,
    refused: usize,
}

/// The two processes, and until when they have time.
struct Pair {
    client: Child<Order, Answer>,
    server: Child<Order, Answer>,
    address: SocketAddr,
    deadline: Instant,
}

/// Which way the requests go.
const DIRECTIONS: [(&str, Role, Role); 2] =
    [("client → server", Role::Active, Role::Passive), ("server → client", Role::Passive, Role::Active)];

fn show(device: &str, total: &mut Total, deadline: Instant) -> Result<(), String> {
    let (mut pair, offers) = Pair::start(device, deadline)?;
    println!(
        "{device}: {}.\nServer: process {} at {}. Client: process {}.\n",
        match device {
            "roce0" => "RoCE v2, InfiniBand's transport over ordinary UDP sockets",
            "iwarp0" => "iWARP, RDMA over ordinary TCP connections",
            _ => "an RDMA transport",
        },
        pair.server.id(),
        pair.address,
        pair.client.id()
    );
    pair.connect()?;
    // Not shown.
    let start = Instant::now();
    pair.show(Operation::Send, Effort::LEAST, Role::Active, Role::Passive)?;
    let effort = Effort::fitting(start.elapsed());
    let mut table =
        Table::new(["What is done", "Which way", "Bytes checked", "8 bytes take", "", "In 64 KiB blocks"]);
    for operation in offers {
        for (direction, client, server) in DIRECTIONS {
            let (one, other) = pair.show(operation, effort, client, server)?;
            total.operations += 1;
            total.checked += one.checked + other.checked;
            table.row(row(operation, direction, one, other));
        }
    }
    println!("{table}");
    println!(
        "  \"8 bytes take\" is the median of {}, both processes busily waiting. Every byte arrived as it was sent.\n",
        effort.rounds()
    );
    let mut table = Table::new(["What is tried and must fail", "Which way", "What became of it"]);
    for refusal in Refusal::ALL {
        for (direction, client, server) in DIRECTIONS {
            pair.connect()?;
            pair.both(&Order::Try(*refusal, client), &Order::Try(*refusal, server))?;
            total.refused += 1;
            table.row(vec![
                refusal.name().into(),
                direction.into(),
                "refused, nothing touched, connection ended".into(),
            ]);
        }
    }
    println!("{table}");
    Ok(())
}

fn row(operation: Operation, direction: &str, one: SideResult, other: SideResult) -> Vec<String> {
    let latency = one.latency.or(other.latency);
    vec![
        operation.name().into(),
        direction.into(),
        bytes((one.checked + other.checked) as f64),
        latency.map_or("-".into(), |nanoseconds| time(Duration::from_nanos(nanoseconds))),
        match latency {
            None => "",
            Some(_) if operation.is_one_way() => "one way",
            Some(_) => "there and back",
        }
        .into(),
        one.rate.or(other.rate).map_or("-".into(), rate),
    ]
}

impl Pair {
    /// Starts both processes on a device; the operations that it has.
    fn start(device: &str, deadline: Instant) -> Result<(Self, Vec<Operation>), String> {
        let start = |name| Child::start(name, &["demo", "--peer"], &[("ADVERB_DEVICE", device)]);
        // A network namespace may have no IPv4.
        let anywhere = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()]
            .map(|ip| SocketAddr::from((ip, 0)));
        let anywhere =
            anywhere.into_iter().find(|address| UdpSocket::bind(address).is_ok()).unwrap_or(anywhere[0]);
        let mut pair =
            Self { client: start("client")?, server: start("server")?, address: anywhere, deadline };
        let open = Order::Open(device.to_owned());
        let (Answer::Offers(offers), _) = pair.both(&open, &open)? else {
            return Err("a wrong answer".into());
        };
        let by = pair.by();
        if let Answer::Listening(address) = pair.server.ask(&Order::Listen(anywhere), by)? {
            pair.address = address;
        }
        Ok((pair, offers))
    }

    fn by(&self) -> Instant {
        self.deadline.min(Instant::now() + STEP)
    }

    /// A new connection in place of the old one.
    fn connect(&mut self) -> Result<(), String> {
        let connect = Order::Connect(self.address);
        self.both(&connect, &Order::Accept).map(drop)
    }

    /// What both processes have seen of an operation.
    fn show(
        &mut self,
        operation: Operation,
        effort: Effort,
        client: Role,
        server: Role,
    ) -> Result<(SideResult, SideResult), String> {
        match self.both(&Order::Show(operation, client, effort), &Order::Show(operation, server, effort))? {
            (Answer::Seen(client), Answer::Seen(server)) => Ok((client, server)),
            _ => Err("a wrong answer".into()),
        }
    }

    /// Both processes carry out an order at the same time.
    fn both(&mut self, client: &Order, server: &Order) -> Result<(Answer, Answer), String> {
        let by = self.by();
        self.server.order(server)?;
        self.client.order(client)?;
        match (self.client.answer(by), self.server.answer(by)) {
            (Ok(client), Ok(server)) => Ok((client, server)),
            (Err(client), Err(server)) => Err(format!("{client}; {server}")),
            (Err(error), _) | (_, Err(error)) => Err(error),
        }
    }
}
