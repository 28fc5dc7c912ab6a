//! A call as a line of text, as a line of JSON, or as events for Chrome and Perfetto.

mod packets;

use crate::calls::{Call, Returns};
use crate::decode;
use crate::names;
use crate::setting::Format;
use crate::writer::{Style, Writer};
use adverb_libibverbs::seam::{Answer, PolledCompletion, PostedRequest, Role};
use std::io::Write as _;
use std::sync::OnceLock;

pub(crate) use packets::{TransportEvent, seen};

/// What stands at the beginning of a file.
pub(crate) fn begin(format: Format) -> &'static [u8] {
    match format {
        Format::Chrome => b"[\n",
        Format::Text | Format::Json | Format::Ring => b"",
    }
}

/// A process whose calls are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) command: String,
    /// The instant from which its times count, so that files of several runs can be put together: on the
    /// clock of the machine, in nanoseconds.
    pub(crate) since: u64,
    /// In nanoseconds since 1970.
    pub(crate) wall: u64,
    /// Names the start of the machine: its clock counts from there.
    pub(crate) boot: String,
}

impl Process {
    /// This one, as it is now: after a fork another one.
    pub(crate) fn own() -> Self {
        let arguments = std::fs::read("/proc/self/cmdline").unwrap_or_default();
        let command = arguments.split(|byte| *byte == 0).filter(|word| !word.is_empty());
        let command = command.map(String::from_utf8_lossy).collect::<Vec<_>>().join(" ");
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let boot = if boot.trim().is_empty() { "unknown" } else { boot.trim() }.to_owned();
        let wall = adverb_core::clock::wall_at(base());
        Self { pid: std::process::id(), command, since: base(), wall, boot }
    }

    /// The line about it.
    pub(crate) fn line(&self, format: Format) -> Vec<u8> {
        let Self { pid, command, since, wall, boot } = self;
        let mut writer = Writer::new(Style::Json);
        let clock = |writer: &mut Writer| {
            writer.key("since").unsigned(*since);
            writer.key("wall").unsigned(*wall);
            writer.key("boot").word(boot);
        };
        match format {
            Format::Text | Format::Ring => {
                let shown: String = command.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
                writer.raw(
                    format!("# process {pid}: {shown}\n# process clock {since} {wall} {boot}\n").as_bytes(),
                );
            }
            Format::Json => {
                writer.open(b'{');
                writer.key("process").unsigned((*pid).into());
                writer.key("command").string(command.as_bytes());
                clock(&mut writer);
                writer.close(b'}');
                writer.raw(b"\n");
            }
            Format::Chrome => {
                writer.open(b'{');
                writer.key("name").word("process_name");
                writer.key("ph").word("M");
                writer.key("pid").unsigned((*pid).into());
                writer.key("args").open(b'{');
                writer.key("name").string(command.as_bytes());
                clock(&mut writer);
                writer.close(b'}');
                writer.close(b'}');
                writer.raw(b",\n");
            }
        }
        writer.bytes
    }
}

/// The process whose event it is, and when its times began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) pid: u32,
    pub(crate) base: u64,
}

impl Place {
    /// This process.
    pub(crate) fn own() -> Self {
        Self { pid: std::process::id(), base: base() }
    }
}

/// A completed call, or several polls that found nothing.
pub(crate) struct CompletedCall<'a> {
    pub(crate) place: Place,
    /// The result of the call, as the writer of the format has written it. None: the reader of this finds it
    /// now.
    pub(crate) result: Option<&'a [u8]>,
    pub(crate) call: &'a Call,
    pub(crate) answer: Answer,
    /// The arguments of the call, as the writer of the format has written them.
    pub(crate) arguments: &'a [u8],
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) times: u64,
    pub(crate) thread: u32,
    /// A fault that was put in the place of the call, or into its completions.
    pub(crate) fault: Option<u64>,
}

/// A request that begins or ends in a call.
pub(crate) struct Flow {
    pub(crate) number: u64,
    pub(crate) name: &'static str,
    pub(crate) begins: bool,
}

/// What a call has posted or found, beside its arguments.
#[derive(Default)]
pub(crate) struct Effects {
    /// The number of each request; 0 of a completion whose request is not known.
    pub(crate) numbers: Vec<u64>,
    pub(crate) flows: Vec<Flow>,
    /// How many requests were posted to the send queue before those of this call.
    pub(crate) place: Option<u64>,
    /// Of each completion, the message that its receive has taken, if packets are shown: the queue pair, and
    /// its so many-th.
    pub(crate) arrivals: Vec<Option<(u32, u64)>>,
    /// The requests that builders have posted.
    pub(crate) posted: Vec<PostedRequest>,
    /// Under the cursor.
    pub(crate) completed: Option<PolledCompletion>,
}

/// Whether the answer says that the call has failed, and the error number.
pub(crate) fn failure(call: &Call, answer: Answer) -> Option<i32> {
    let number = answer.value as i32;
    match call.returns {
        Returns::Object(_) | Returns::Pointer => (answer.value == 0).then_some(answer.errno),
        Returns::Number => (number != 0).then_some(number),
        Returns::Poll => (number != 0).then_some(number),
        Returns::MinusOne => (number < 0).then_some(answer.errno),
        Returns::Count => (number < 0).then_some(-number),
        Returns::WideCount => ((answer.value as isize) < 0).then(|| -(answer.value as isize) as i32),
        Returns::Value(_) | Returns::Nothing => None,
    }
}

/// Seconds with nine digits behind the point.
fn seconds(writer: &mut Writer, nanoseconds: u64) {
    writer.unsigned(nanoseconds / 1_000_000_000);
    let mut digits = *b".000000000";
    let mut left = nanoseconds % 1_000_000_000;
    for digit in digits[1..].iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
    writer.raw(&digits);
}

/// Microseconds with three.
fn microseconds(writer: &mut Writer, nanoseconds: u64) {
    writer.unsigned(nanoseconds / 1000);
    let left = nanoseconds % 1000;
    writer.raw(&[b'.', b'0' + (left / 100) as u8, b'0' + (left / 10 % 10) as u8, b'0' + (left % 10) as u8]);
}

/// Writes what a call has returned.
pub(crate) fn result(writer: &mut Writer, call: &Call, answer: Answer) {
    let seen = decode::CallOutcome { arguments: &[0; 6], value: answer.value, failed: false };
    match call.returns {
        Returns::Object(_) | Returns::Pointer if answer.value == 0 => writer.null(),
        Returns::Object(write) => write(writer, answer.value),
        Returns::Pointer => writer.pointer(answer.value),
        Returns::Value(form) => form.write(writer, answer.value, seen),
        Returns::WideCount => writer.signed(answer.value as i64),
        Returns::Nothing => match writer.style() {
            Style::Text => writer.raw(b"?"),
            Style::Json => writer.raw(b"null"),
            // Nothing needs no token.
            Style::Tokens => {}
        },
        _ => writer.signed(i64::from(answer.value as i32)),
    }
}

fn returned(writer: &mut Writer, ended: &CompletedCall<'_>) {
    match ended.result {
        Some(bytes) => writer.raw(bytes),
        None => result(writer, ended.call, ended.answer),
    }
}

/// What the system says of an error number.
fn words(number: i32) -> String {
    let text = std::io::Error::from_raw_os_error(number).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

fn posted(writer: &mut Writer, request: &PostedRequest) {
    writer.open(b'{');
    writer.key("wr_id").unsigned(request.wr_id);
    writer.key("opcode").name(names::WR_OPCODE, request.opcode.into());
    writer.key("send_flags").flags(names::SEND_FLAGS, request.flags.into());
    writer.key("length").unsigned(request.length);
    if request.rkey != 0 || request.remote_address != 0 {
        writer.key("remote_addr").hex(request.remote_address);
        writer.key("rkey").hex(request.rkey.into());
    }
    writer.close(b'}');
}

fn completed(writer: &mut Writer, completion: &PolledCompletion) {
    writer.open(b'{');
    writer.key("wr_id").unsigned(completion.wr_id);
    writer.key("status").name(names::WC_STATUS, completion.status.into());
    if completion.status == 0 {
        writer.key("opcode").name(names::WC_OPCODE, completion.opcode.into());
        if completion.is_receive() {
            writer.key("byte_len").unsigned(completion.byte_length.into());
        }
    } else {
        writer.key("vendor_err").hex(completion.vendor_error.into());
    }
    writer.key("qp_num").hex(completion.queue_pair.into());
    writer.close(b'}');
}

/// How a request is called in a picture.
pub(crate) fn request_name(role: Role, opcode: u32) -> &'static str {
    match role {
        Role::Receive => "receive",
        Role::Send => names::of(names::WR_OPCODE, opcode.into()).unwrap_or("request"),
    }
}

/// When this process, or its run, began.
pub(crate) fn base() -> u64 {
    static BASE: OnceLock<u64> = OnceLock::new();
    *BASE.get_or_init(|| {
        let now = adverb_core::clock::device();
        let said = adverb_core::setting::variable(crate::setting::SINCE).and_then(|text| text.parse().ok());
        said.filter(|since| *since <= now).unwrap_or(now)
    })
}

/// Writes what has ended, in whole lines.
pub(crate) fn write(format: Format, ended: &CompletedCall<'_>, effects: &Effects) -> Vec<u8> {
    match format {
        Format::Text | Format::Ring => text(ended, effects),
        Format::Json => json(ended, effects),
        Format::Chrome => chrome(ended, effects),
    }
}

fn text(ended: &CompletedCall<'_>, effects: &Effects) -> Vec<u8> {
    let mut writer = Writer::new(Style::Text);
    seconds(&mut writer, ended.start.saturating_sub(ended.place.base));
    writer.raw(b" ");
    writer.unsigned(ended.thread.into());
    writer.raw(b" ");
    writer.raw(ended.call.name.as_bytes());
    writer.raw(b"(");
    writer.raw(ended.arguments);
    writer.raw(b") = ");
    returned(&mut writer, ended);
    if let Some(number) = failure(ended.call, ended.answer) {
        let name = names::of_errno(number).unwrap_or("?");
        let words = if ended.call.is_poll() && number == libc::ENOENT {
            "no completion".to_owned()
        } else {
            words(number)
        };
        let _ = write!(writer.bytes, " {name} ({words})");
    }
    if let Some(completion) = &effects.completed {
        writer.raw(b" ");
        completed(&mut writer, completion);
    }
    if !effects.posted.is_empty() {
        writer.raw(b" ");
        writer.open(b'[');
        effects.posted.iter().for_each(|request| posted(writer.item(), request));
        writer.close(b']');
    }
    if let Some(number) = ended.fault {
        let _ = write!(writer.bytes, " [fault {number}]");
    }
    writer.raw(b" <");
    seconds(&mut writer, ended.end.saturating_sub(ended.start));
    writer.raw(b">");
    if ended.times > 1 {
        writer.raw(b" x");
        writer.unsigned(ended.times);
    }
    writer.raw(b"\n");
    writer.bytes
}

/// The parts of a JSON object that say what a call has answered and done.
fn outcome(writer: &mut Writer, ended: &CompletedCall<'_>, effects: &Effects) {
    returned(writer.key("result"), ended);
    if let Some(number) = failure(ended.call, ended.answer) {
        writer.key("errno").word(names::of_errno(number).unwrap_or("?"));
        writer.key("error").string(words(number).as_bytes());
    }
    if ended.times > 1 {
        writer.key("times").unsigned(ended.times);
    }
    if !effects.numbers.is_empty() {
        writer.key("requests").open(b'[');
        for number in &effects.numbers {
            match number {
                0 => writer.item().null(),
                number => writer.item().unsigned(*number),
            }
        }
        writer.close(b']');
    }
    if effects.arrivals.iter().any(Option::is_some) {
        writer.key("arrivals").open(b'[');
        for arrival in &effects.arrivals {
            match arrival {
                None => writer.item().null(),
                Some((_, number)) => writer.item().unsigned(*number),
            }
        }
        writer.close(b']');
    }
    if let Some(place) = effects.place.filter(|_| !effects.numbers.is_empty()) {
        writer.key("place").unsigned(place);
    }
    if !effects.posted.is_empty() {
        writer.key("posted").open(b'[');
        effects.posted.iter().for_each(|request| posted(writer.item(), request));
        writer.close(b']');
    }
    if let Some(completion) = &effects.completed {
        completed(writer.key("completion"), completion);
    }
    if let Some(number) = ended.fault {
        writer.key("fault").unsigned(number);
    }
}

fn json(ended: &CompletedCall<'_>, effects: &Effects) -> Vec<u8> {
    let mut writer = Writer::new(Style::Json);
    writer.open(b'{');
    seconds(writer.key("time"), ended.start.saturating_sub(ended.place.base));
    writer.key("pid").unsigned(ended.place.pid.into());
    writer.key("tid").unsigned(ended.thread.into());
    writer.key("call").word(ended.call.name);
    writer.key("arguments").open(b'{');
    writer.raw(ended.arguments);
    writer.close(b'}');
    outcome(&mut writer, ended, effects);
    seconds(writer.key("duration"), ended.end.saturating_sub(ended.start));
    writer.close(b'}');
    writer.raw(b"\n");
    writer.bytes
}

fn chrome(ended: &CompletedCall<'_>, effects: &Effects) -> Vec<u8> {
    let pid = u64::from(ended.place.pid);
    let mut writer = Writer::new(Style::Json);
    let duration = ended.end.saturating_sub(ended.start);
    let start = ended.start.saturating_sub(ended.place.base);
    let place = |writer: &mut Writer, at: u64| {
        microseconds(writer.key("ts"), at);
        writer.key("pid").unsigned(pid);
        writer.key("tid").unsigned(ended.thread.into());
    };
    writer.open(b'{');
    writer.key("name").word(ended.call.name);
    writer.key("cat").word(if ended.call.name.starts_with("rdma_") { "rdma_cm" } else { "verbs" });
    writer.key("ph").word("X");
    place(&mut writer, start);
    microseconds(writer.key("dur"), duration);
    writer.key("args").open(b'{');
    writer.raw(ended.arguments);
    if !ended.arguments.is_empty() {
        writer.raw(b",");
    }
    outcome(&mut writer, ended, effects);
    writer.close(b'}');
    writer.close(b'}');
    writer.raw(b",\n");
    for flow in &effects.flows {
        writer.open(b'{');
        writer.key("name").word(flow.name);
        writer.key("cat").word("request");
        writer.key("ph").word(if flow.begins { "s" } else { "f" });
        if !flow.begins {
            writer.key("bp").word("e");
        }
        // Numbers of processes have at most 22 bits, and those of requests fewer than the 42 that are left.
        writer.key("id").hex(pid << 42 | flow.number);
        // Inside of the call, which it belongs to in the picture. Another thread may find a completion before
        // the post returns.
        place(&mut writer, if flow.begins { start } else { start + duration.saturating_sub(1) });
        writer.close(b'}');
        writer.raw(b",\n");
    }
    for (pair, number) in effects.arrivals.iter().flatten() {
        writer.open(b'{');
        writer.key("name").word("arrival");
        writer.key("cat").word("arrival");
        writer.key("ph").word("f");
        writer.key("bp").word("e");
        writer.key("id").word(&arrival(ended.place, *pair, *number));
        place(&mut writer, start + duration.saturating_sub(1));
        writer.close(b'}');
        writer.raw(b",\n");
    }
    writer.bytes
}

/// The name of the arrow from the arrival of a message to the poll of its receive.
fn arrival(place: Place, pair: u32, number: u64) -> String {
    format!("a{:x}-{pair:x}-{number:x}", place.pid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::{CALLS, find};
    use serde_json::Value;

    fn ended<'a>(name: &str, value: usize, errno: i32, arguments: &'a [u8]) -> CompletedCall<'a> {
        let call = &CALLS[find(name).expect("a call")];
        let answer = Answer { value, errno };
        let start = base() + 1_002_003_004;
        CompletedCall {
            place: Place::own(),
            result: None,
            call,
            answer,
            arguments,
            start,
            end: start + 5678,
            times: 1,
            thread: 42,
            fault: None,
        }
    }

    #[test]
    fn a_line_of_text_has_time_thread_call_result_and_duration() {
        let line = text(
            &ended("ibv_close_device", -1_i32 as usize, libc::EBUSY, b"context=\"roce0\""),
            &Effects::default(),
        );
        let line = String::from_utf8(line).expect("text");
        assert_eq!(
            line,
            "1.002003004 42 ibv_close_device(context=\"roce0\") = -1 EBUSY (Device or resource busy) <0.000005678>\n"
        );
        let line = text(&CompletedCall { times: 3, ..ended("ibv_poll_cq", 0, 0, b"") }, &Effects::default());
        assert!(line.ends_with(b"() = 0 <0.000005678> x3\n"));
    }

    #[test]
    fn each_kind_of_function_says_by_its_own_result_that_it_has_failed() {
        let failed = |name, value: isize| {
            let ended = ended(name, value as usize, libc::ENOMEM, b"");
            failure(ended.call, ended.answer)
        };
        assert_eq!((failed("ibv_alloc_pd", 0), failed("ibv_alloc_pd", 8)), (Some(libc::ENOMEM), None));
        assert_eq!((failed("ibv_destroy_qp", 16), failed("ibv_destroy_qp", 0)), (Some(16), None));
        assert_eq!((failed("rdma_listen", -1), failed("rdma_listen", 0)), (Some(libc::ENOMEM), None));
        assert_eq!((failed("ibv_poll_cq", -22), failed("ibv_poll_cq", 2)), (Some(22), None));
        assert_eq!(failed("ibv_ack_cq_events", 0), None);
    }

    #[test]
    fn json_and_events_can_be_read_and_have_the_same_in_them() {
        let effects = Effects {
            numbers: vec![7, 0],
            flows: vec![Flow { number: 7, name: "IBV_WR_SEND", begins: true }],
            ..Effects::default()
        };
        let call = ended("ibv_post_send", 12, 0, b"\"qp\":\"0x1\"");
        let line: Value = serde_json::from_slice(&json(&call, &effects)).expect("JSON");
        assert_eq!((&line["call"], &line["errno"]), (&"ibv_post_send".into(), &"ENOMEM".into()));
        assert_eq!(line["requests"], serde_json::json!([7, null]));
        assert_eq!(line["arguments"]["qp"], "0x1");
        let events = String::from_utf8(chrome(&call, &effects)).expect("text");
        let events: Vec<Value> =
            serde_json::from_str(&format!("[{}]", events.trim_end().trim_end_matches(','))).expect("JSON");
        assert_eq!(events.len(), 2);
        assert_eq!((&events[0]["ph"], &events[1]["ph"]), (&"X".into(), &"s".into()));
        let time = |event: &Value, name: &str| event[name].as_f64().expect("a number");
        assert!(time(&events[1], "ts") >= time(&events[0], "ts"));
        assert!(time(&events[1], "ts") <= time(&events[0], "ts") + time(&events[0], "dur"));
        for format in [Format::Text, Format::Json, Format::Chrome] {
            assert!(Process::own().line(format).ends_with(b"\n"));
        }
    }
}
