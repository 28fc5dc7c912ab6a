//! What single calls answer, asked by a C program that was compiled against the distribution's headers.

use std::process::Command;

use adverb_abi_tests::{Folder, compile, install, output_of};

#[test]
fn calls_answer_as_the_manual_pages_say() {
    let folder = Folder::new("calls");
    let program =
        compile(&folder, "calls", include_str!("../calls.c")).unwrap_or_else(|error| panic!("{error}"));
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", install(&folder)).env("ADVERB_DEVICE", "iwarp0");
    let output = output_of(&mut command);
    let checks = output.split_whitespace().next().and_then(|number| number.parse::<u32>().ok());
    assert!(checks.is_some_and(|checks| checks > 300), "{output}");
}
