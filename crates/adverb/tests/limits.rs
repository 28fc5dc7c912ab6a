//! A device has as many queue pairs as its attributes say, and no more.

use adverb_core::cq::CompletionQueue;
use adverb_core::qp::{Capabilities, QueuePairOptions, Service};

// RFC5042-6.4.1-1
#[test]
fn a_device_has_no_more_queue_pairs_than_it_says() {
    // SAFETY: the only test of this process, and no other thread reads the environment yet.
    unsafe { std::env::set_var("ADVERB_DEVICE", "roce0,iwarp0") };
    let count = adverb::Device::all().unwrap().len();
    assert_eq!(count, 2);
    for device in adverb_core::device::Device::all().unwrap() {
        let context = device.open().unwrap();
        let queue = CompletionQueue::new(&context, 16, None).unwrap();
        let options = QueuePairOptions {
            send_cq: queue.clone(),
            receive_cq: queue,
            srq: None,
            capabilities: Capabilities {
                max_send_wr: 1,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            service: Service::Rc,
            signal_all: true,
        };
        // Each queue pair begins with a number of its own.
        let transport = context.transport();
        let allocate = || transport.allocate_number(&options).map_err(|error| error.errno());
        let numbers: Vec<u32> = (0..context.attributes().max_qp).map(|_| allocate().unwrap()).collect();
        assert_eq!(allocate(), Err(libc::ENOMEM), "{}", device.name());
        transport.release_number(numbers[0]);
        let last = allocate().unwrap();
        assert_eq!(allocate(), Err(libc::ENOMEM), "{}", device.name());
        numbers[1..].iter().chain([&last]).for_each(|number| transport.release_number(*number));
    }
}
