//! What becomes of variables of ours whose values, or names, mean nothing.

use adverb::Context;
use std::process::Command;

/// Says to this test that it is the process that opens devices.
const OPENS: &str = "ADVERB_TEST_OPENS";

#[test]
fn a_value_or_name_that_means_nothing_is_said_once_without_being_asked() {
    if std::env::var_os(OPENS).is_some() {
        let _both = [Context::open_default().unwrap(), Context::open_default().unwrap()];
        return;
    }
    let test = "a_value_or_name_that_means_nothing_is_said_once_without_being_asked";
    for (name, value, expected) in [
        ("ADVERB_LOCAL", "auto", &[][..]),
        ("ADVERB_LOCAL", "", &[]),
        ("ADVERB_LOCAL", "atuo", &["ADVERB_LOCAL=atuo: wanted is auto, strict or off"]),
        ("ADVERB_CRC", "1", &["ADVERB_CRC=1: wanted is on or off"]),
        (
            "ADVERB_LOCL",
            "off",
            &["ADVERB_LOCL is no variable of adverb and does nothing; is ADVERB_LOCAL meant?"],
        ),
        (
            "ADVERB_DEVICE",
            "roce0,mlx5_0",
            &["ADVERB_DEVICE=roce0,mlx5_0: there is no device 'mlx5_0'; devices: roce0, iwarp0, \
               or a name of your choice with @ and what it is: mlx5_0@rate=100"],
        ),
    ] {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", test, "--nocapture"]).env(OPENS, "1").env_remove("ADVERB_LOG");
        let output = child.env(name, value).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let ours = said.lines().filter(|line| line.starts_with("adverb["));
        let texts: Vec<_> = ours.map(|line| line.split_once(" warning: ").expect(line).1).collect();
        assert_eq!(texts, expected, "{name}={value}");
    }
}
