//! The libraries export exactly the listed names under the listed versions, and everything that the installed
//! ones do.

use std::path::Path;
use std::process::Command;

use adverb_abi_tests::{exported, libraries, listed, output_of};

/// Fails with the differences between two sorted lists.
fn assert_same(what: &str, ours: &[String], theirs: &[String]) {
    let extra: Vec<_> = ours.iter().filter(|pair| !theirs.contains(pair)).collect();
    let missing: Vec<_> = theirs.iter().filter(|pair| !ours.contains(pair)).collect();
    assert!(extra.is_empty() && missing.is_empty(), "{what}: not in the list {extra:?}, missing {missing:?}");
    assert_eq!(ours.len(), theirs.len(), "{what}: a name stands twice");
}

#[test]
fn exports_are_the_listed_ones() {
    let folder = libraries();
    for (library, list) in [
        ("libibverbs.so", include_str!("../libibverbs.symbols")),
        ("librdmacm.so", include_str!("../librdmacm.symbols")),
    ] {
        let mut ours = exported(&folder.join(library));
        ours.retain(|pair| !pair.ends_with("@ADVERB_RDMACM"));
        assert_same(library, &ours, &listed(list));
    }
}

#[test]
fn the_private_node_serves_every_name_of_librdmacm() {
    let folder = libraries();
    let mut private = exported(&folder.join("libibverbs.so"));
    private.retain(|pair| pair.ends_with("@ADVERB_RDMACM"));
    let mut names: Vec<String> = exported(&folder.join("librdmacm.so"))
        .iter()
        .map(|pair| format!("adverb_{}@ADVERB_RDMACM", pair.split('@').next().expect("a name")))
        .collect();
    names.sort();
    assert_same("ADVERB_RDMACM", &private, &names);
}

#[test]
fn everything_that_the_installed_libraries_export_is_there() {
    let folder = libraries();
    let folder_of = |path: &Path| path.parent().expect("a folder").to_owned();
    let cm = installed("librdmacm.so.1");
    for (ours, installed) in [
        ("libibverbs.so", installed("libibverbs.so.1")),
        ("librspreload.so", folder_of(&cm).join("rsocket/librspreload.so")),
        ("librdmacm.so", cm),
    ] {
        let ours = exported(&folder.join(ours));
        let missing: Vec<_> = exported(&installed).into_iter().filter(|pair| !ours.contains(pair)).collect();
        assert!(missing.is_empty(), "{}: we lack {missing:?}", installed.display());
    }
}

#[test]
fn sonames_and_dependencies_are_those_that_programs_ask_for() {
    let folder = libraries();
    let dynamic = |library: &str| output_of(Command::new("objdump").arg("-p").arg(folder.join(library)));
    let has = |section: &str, key: &str, value: &str| {
        section.lines().any(|line| line.split_whitespace().eq([key, value]))
    };
    assert!(has(&dynamic("libibverbs.so"), "SONAME", "libibverbs.so.1"));
    assert!(!has(&dynamic("libibverbs.so"), "NEEDED", "librdmacm.so.1"));
    assert!(has(&dynamic("librdmacm.so"), "SONAME", "librdmacm.so.1"));
    assert!(has(&dynamic("librdmacm.so"), "NEEDED", "libibverbs.so.1"));
}

/// The path of an installed library, as the loader's cache has it.
fn installed(name: &str) -> std::path::PathBuf {
    let cache = output_of(Command::new("/sbin/ldconfig").arg("-p"));
    let native = if cfg!(target_arch = "x86_64") { "x86-64" } else { "AArch64" };
    let line = cache.lines().find(|line| line.trim_start().starts_with(name) && line.contains(native));
    let path = line.and_then(|line| line.split(" => ").nth(1));
    Path::new(path.unwrap_or_else(|| panic!("{name} is not installed (libibverbs-dev, librdmacm-dev)")))
        .to_owned()
}
