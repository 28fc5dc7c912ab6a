//! A thread of the engine panics: whoever waits gets an error, and nobody waits for ever. Each test has a
//! process of its own: the engine is the process's.

use adverb::{CompletionQueue, Connection, Context, Device, Listener, QueuePairOptions, Status};
use adverb_core::cm::{EventChannel, EventKind, Identifier, PortSpace};
use adverb_core::containment::{Barrier, insist};
use adverb_core::engine;
use adverb_core::event::AsyncEventKind;
use adverb_core::failure::FailureListener;
use adverb_core::reactor::{READABLE, Readiness, Source};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// How long anything may take before the test fails.
const SOON: Duration = Duration::from_secs(20);

/// A mistake in the background thread.
struct Mistake;

impl Source for Mistake {
    fn ready(self: Arc<Self>, _: Readiness) {
        panic!("a mistake that the test makes");
    }
}

/// Runs a test of this file in a process of its own, with both devices; None in that process.
fn in_child(test: &str) -> Option<Output> {
    const VARIABLE: &str = "ADVERB_TEST_CHILD";
    if std::env::var_os(VARIABLE).is_some() {
        return None;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).env(VARIABLE, "1").env("ADVERB_DEVICE", "roce0,iwarp0");
    Some(child.output().unwrap())
}

struct End {
    queue: CompletionQueue,
    connection: Connection,
}

/// Two ends of a connection, each with a receive that waits.
fn connected(context: &Context) -> [End; 2] {
    let listener = Listener::bind(context, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 4).unwrap();
    let address = listener.local_address();
    let pair = || {
        let domain = context.protection_domain().unwrap();
        let queue = context.completion_queue(16).unwrap();
        let pair = domain.queue_pair(QueuePairOptions::new(&queue)).unwrap();
        pair.post_receive(7, domain.buffer(64).unwrap()).unwrap();
        (queue, pair)
    };
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let (queue, pair) = pair();
            End { queue, connection: pair.connect(address, b"", SOON).unwrap() }
        });
        let (queue, pair) = pair();
        let connection = listener.accept(SOON).unwrap().accept(pair, b"", SOON).unwrap();
        [client.join().unwrap(), End { queue, connection }]
    })
}

#[test]
fn a_panic_of_the_background_thread_is_an_error_for_all_and_a_hang_for_nobody() {
    if let Some(output) =
        in_child("a_panic_of_the_background_thread_is_an_error_for_all_and_a_hang_for_nobody")
    {
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.matches("the thread `adverb` of adverb has failed").count(), 1, "{said}");
        return;
    }
    let contexts: Vec<Context> = ["roce0", "iwarp0"]
        .map(|name| Device::all().unwrap().into_iter().find(|device| device.name() == name).unwrap())
        .map(|device| device.open().unwrap())
        .into();
    let ends: Vec<End> = contexts.iter().flat_map(connected).collect();
    let listeners: Vec<Listener> = contexts
        .iter()
        .map(|context| Listener::bind(context, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 4).unwrap())
        .collect();
    // As the C libraries have them.
    let core: Vec<_> =
        adverb_core::device::Device::all().unwrap().iter().map(|device| device.open().unwrap()).collect();
    let channel = EventChannel::new().unwrap();
    let identifier = Identifier::new(Some(&channel), PortSpace::Tcp).unwrap();
    identifier.listen(4).unwrap();
    let (sender, refused) = mpsc::channel();
    for listener in listeners {
        let sender = sender.clone();
        // For as long as it takes, twice.
        std::thread::spawn(move || {
            let _ = sender.send(listener.accept(Duration::MAX).map(drop));
            let _ = sender.send(listener.accept(Duration::MAX).map(drop));
        });
    }

    // A descriptor that is readable for ever: it would be reported again and again.
    let (_closed, readable) = std::io::pipe().map(|(reader, writer)| (drop(writer), reader)).unwrap();
    engine::engine().unwrap().reactor.add(readable.as_raw_fd(), READABLE, Arc::new(Mistake)).unwrap();

    for End { queue, connection } in &ends {
        assert_eq!(queue.wait(SOON).unwrap().status, Status::Flushed);
        assert!(connection.wait_disconnected(SOON));
    }
    for _ in 0..4 {
        assert_eq!(refused.recv_timeout(SOON).unwrap().unwrap_err().errno(), libc::EIO);
    }
    for context in &contexts {
        let domain = context.protection_domain().unwrap();
        let queue = context.completion_queue(16).unwrap();
        assert_eq!(domain.queue_pair(QueuePairOptions::new(&queue)).unwrap_err().errno(), libc::EIO);
        assert!(Listener::bind(context, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 4).is_err());
    }
    for context in &core {
        assert!(context.events().ready(SOON.as_millis() as i32).unwrap());
        assert_eq!(
            context.events().try_next().unwrap().map(|event| event.kind),
            Some(AsyncEventKind::DeviceFatal)
        );
    }
    let event = channel.try_get().unwrap().expect("an event before that of the contexts");
    assert_eq!((event.kind, event.status), (EventKind::DeviceRemoval, -libc::EIO));
    drop(event);
    identifier.destroy();
    for device in adverb_core::device::Device::all().unwrap() {
        assert_eq!(device.open().map(drop).unwrap_err().errno(), libc::EIO);
    }
    // What there is can be given back, for which the background thread is needed.
    drop(ends);
    drop(contexts);
}

/// Something that cannot be put into error.
struct Stubborn;

impl FailureListener for Stubborn {
    fn engine_failed(&self) {
        panic!("a second mistake that the test makes");
    }
}

/// Where waits would not end with an error, the process does not go on.
#[test]
fn a_process_that_cannot_be_told_of_a_failure_ends() {
    let Some(output) = in_child("a_process_that_cannot_be_told_of_a_failure_ends") else {
        let engine = engine::engine().unwrap();
        let stubborn: Arc<dyn FailureListener> = Arc::new(Stubborn);
        engine.failure.concerns(Arc::downgrade(&stubborn)).unwrap();
        let (_closed, readable) = std::io::pipe().map(|(reader, writer)| (drop(writer), reader)).unwrap();
        engine.reactor.add(readable.as_raw_fd(), READABLE, Arc::new(Mistake)).unwrap();
        // The process ends, or the test fails.
        std::thread::sleep(3 * SOON);
        std::process::exit(0);
    };
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the engine cannot be stopped, so the process ends"), "{said}");
}

/// A function as C calls it, which pthread_cancel may leave.
extern "C-unwind" fn entry() {
    let _barrier = Barrier;
    panic!("a mistake that the test makes");
}

#[test]
fn a_panic_does_not_go_on_into_a_c_program() {
    let Some(output) = in_child("a_panic_does_not_go_on_into_a_c_program") else {
        // What would go on is caught here, and the child ends well.
        let _ = std::panic::catch_unwind(|| entry());
        std::process::exit(0);
    };
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("so the process ends"), "{output:?}");
}

/// A thread of the engine without which threads of the program would wait for ever begins once more, and then
/// the process ends, with a word why.
#[test]
fn a_thread_that_others_sleep_for_ends_the_process_when_it_has_failed_twice() {
    let Some(output) = in_child("a_thread_that_others_sleep_for_ends_the_process_when_it_has_failed_twice")
    else {
        engine::engine().unwrap();
        let mut count = 0;
        insist("adverb-guard", || {
            count += 1;
            eprintln!("begun: {count}");
            panic!("a mistake that the test makes");
        });
    };
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("begun: 2") && !said.contains("begun: 3"), "{said}");
    assert!(said.contains("`adverb-guard` of adverb has failed twice"), "{said}");
}
